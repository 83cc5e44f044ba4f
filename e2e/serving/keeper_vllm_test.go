package serving

import (
	"flag"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/pd"
)

var leaseRequests = flag.Int("lease.requests", 0, "how many clients leave in TestKeeperAtLength, with a keeper and again "+
	"without; 0: it does not run (make lease-vllm)")

const (
	// shortLease is what the engines of TestKeeperAtLength have.
	shortLease = 5 * time.Second
	// A leg is held for longHold, and where something happens meanwhile, for shortHold: six leases, and two.
	longHold, shortHold = 30 * time.Second, 10 * time.Second
	// fewRequests are enough where a case is not left to chance.
	fewRequests = 10
)

// TestKeeperAtLength does to real engines whatever leaves hand-offs unread or late, with a keeper and without, and prints
// side by side what came of it. With the keeper it has to be good.
func TestKeeperAtLength(t *testing.T) {
	if *leaseRequests == 0 {
		t.Skip("make lease-vllm runs it")
	}
	realengine.Require(t, "vllm")
	p := startShortPair(t)
	r := leaseReport{cells: map[string][2]string{}}
	for column, keeper := range []keeperProgram{replaceable(t, nixlKeeper(t)), {}} {
		r.column = column
		k := keep(t, p, keeper)
		for _, d := range departures {
			r.row(t, k, "client leaves "+d.name, func() string {
				return k.leaveAll(t, []departure{d}, *leaseRequests/len(departures))
			})
		}
		r.put("all of these clients", times(k.took))
		r.loseLegs(t, p, keeper)
		r.row(t, k, fmt.Sprint("leg held for ", longHold), func() string { return k.hold(t, longHold, nil) })
		r.row(t, k, "leg held, prefill restarted", func() string { return k.hold(t, 0, func() { r.restartPrefill(t, k) }) })
		r.row(t, k, fmt.Sprint("then: leg held for ", shortHold), func() string { return k.hold(t, shortHold, nil) })
		r.row(t, k, "then: clients leave", func() string { return k.leaveAll(t, departures, fewRequests) })
		if keeper.there() {
			r.loseKeeper(t, k)
		}
	}
	fmt.Print(r.String())
}

// startShortPair starts three engines.
func startShortPair(t *testing.T) *harness.Pair {
	t.Helper()
	var r realEngines
	var starting sync.WaitGroup
	for to, o := range map[**realengine.Engine]vllm.Options{
		&r.plain:   {Name: "plain"},
		&r.prefill: {Name: "prefill", Role: vllm.Prefill, Lease: shortLease},
		&r.failing: {Name: "decode", Role: vllm.Decode, Lease: shortLease},
	} {
		starting.Go(func() { *to = startEngine(t, o) })
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	p := r.pair(t, r.failing)
	p.Lease = shortLease
	return p
}

// replaceable returns a keeper whose program can be taken away, so that it is not started again.
func replaceable(t *testing.T, k keeperProgram) keeperProgram {
	t.Helper()
	link := filepath.Join(t.TempDir(), "keeper")
	if err := os.Symlink(k.path, link); err != nil {
		t.Fatal(err)
	}
	k.path = link
	return k
}

// leaveAll has n clients leave, one after another, each time in another state, and tells how soon prefill was free.
func (k *kept) leaveAll(t *testing.T, states []departure, n int) string {
	t.Helper()
	explained, all := k.explained, len(k.took)
	for i := range n {
		d, stream := states[i/2%len(states)], i%2 == 1
		k.took = append(k.took, k.leave(t, d, stream))
		if last := k.took[all+i]; last > harness.ReleaseWithin && k.keeper.there() {
			t.Errorf("left %s, stream %v: prefill held blocks for %v", d.name, stream, last)
		}
	}
	took := k.took[all:]
	return fmt.Sprintf("%s; decode itself told %v late", times(took), k.explained-explained)
}

// times are median, 99th percentile and longest.
func times(took []time.Duration) string {
	took = slices.Sorted(slices.Values(took))
	at := func(q float64) int64 { return took[int(math.Ceil(q*float64(len(took))))-1].Milliseconds() }
	return fmt.Sprintf("%d: free after %d/%d/%d ms", len(took), at(0.5), at(0.99), at(1))
}

// leaseReport is a table: what was done, and what came of it with a keeper and without.
type leaseReport struct {
	column int
	order  []string
	cells  map[string][2]string
	sum    [2]counts

	restarted bool // prefill was in the row that is being made, and counts from 0
}

// row does something, and notes what it says and what was counted.
func (r *leaseReport) row(t *testing.T, k *kept, what string, do func() string) {
	t.Helper()
	before := k.counts(t)
	r.restarted = false
	said := do()
	if r.restarted {
		before.expired, before.late, k.explained = 0, 0, 0
	}
	after := k.counts(t)
	if k.keeper.there() {
		after.mustBe(t, before)
	}
	d := after.since(before)
	r.sum[r.column] = r.sum[r.column].plus(d)
	r.put(what, fmt.Sprintf("%s; %v", said, d))
}

// put writes a cell of the table, and shows it.
func (r *leaseReport) put(what, text string) {
	if !slices.Contains(r.order, what) {
		r.order = append(r.order, what)
	}
	cells := r.cells[what]
	cells[r.column] = text
	r.cells[what] = cells
	fmt.Printf("%s, %s: %s\n", [2]string{"with NIXL", "without"}[r.column], what, text)
}

func (r *leaseReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| lease %v | with NIXL | without |\n|---|---|---|\n", shortLease)
	for _, what := range r.order {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", what, r.cells[what][0], r.cells[what][1])
	}
	fmt.Fprintf(&b, "| all | %v | %v |\n", r.sum[0], r.sum[1])
	return b.String()
}

// loseLegs has decode refuse legs, and die with them.
func (r *leaseReport) loseLegs(t *testing.T, p *harness.Pair, keeper keeperProgram) {
	t.Helper()
	decode := newFrail(t, p.Decode.Addr)
	k := keepBefore(t, p, keeper, decode.addr)
	lose := func(status int, verdict pd.Verdict, spoil, mend func()) func() string {
		return func() string {
			var took []time.Duration
			for i := range fewRequests {
				c := k.call(200, 8, i%2 == 1)
				want := k.Want(t, c)
				spoil()
				got := harness.MustSend(t, c, k.sidecar.Addr("http"), k.Model)
				took = append(took, k.freed(t, time.Now()))
				mend()
				right := status != http.StatusOK || slices.Equal(got.Tokens, want)
				if got.Status != status || got.Decision.Verdict != verdict || !right {
					t.Errorf("status %d, decision %v, tokens %v, want %v: %s", got.Status, got.Decision, got.Tokens, want, got.Body)
				}
			}
			return times(took)
		}
	}
	r.row(t, k, "decode answers the leg with 500", lose(http.StatusOK, pd.Local,
		func() { decode.refuse.Store(http.StatusInternalServerError) }, func() {}))
	r.row(t, k, "decode dies with the leg", lose(http.StatusServiceUnavailable, pd.Refused,
		func() { decode.die.Store(true) }, func() { decode.live(t) }))
	k.sidecar.MustStop(t)
}

// hold has two legs held for a time, and something happen to them first. Then blocks that are not held get new content.
func (k *kept) hold(t *testing.T, d time.Duration, first func()) string {
	t.Helper()
	l := k.holdLegs(t)
	if first != nil {
		first()
	}
	pass(t, d)
	churn(t, k.Pair)
	var said []string
	for i, got := range l.end() {
		tokens := "right"
		if !slices.Equal(got.Tokens, l.want[i]) {
			tokens = "WRONG"
			if k.keeper.there() {
				t.Errorf("status %d, decision %v, tokens %v, want %v", got.Status, got.Decision, got.Tokens, l.want[i])
			}
		}
		said = append(said, fmt.Sprintf("%d %v (%v), tokens %s", got.Status, got.Decision.Verdict, got.Decision.Reason, tokens))
	}
	return strings.Join(slices.Compact(said), "; ")
}

// restartPrefill ends the prefill engine at once and starts it again at the same address.
func (r *leaseReport) restartPrefill(t *testing.T, k *kept) {
	t.Helper()
	k.Prefill.Kill(t)
	k.Revive(t)
	r.restarted = true
}

// loseKeeper has the keeper die, for a moment and for longer.
func (r *leaseReport) loseKeeper(t *testing.T, k *kept) {
	t.Helper()
	starts := harness.Sample(t, k.sidecar.Addr("metrics"), "tandem_keeper_starts_total")
	r.row(t, k, fmt.Sprintf("leg held for %v, keeper killed", shortHold), func() string {
		return k.hold(t, shortHold, func() { k.killKeeper(t) })
	})
	if again := harness.Sample(t, k.sidecar.Addr("metrics"), "tandem_keeper_starts_total"); again != starts+1 {
		t.Errorf("the keeper was started %v times before it was killed, and %v times after", starts, again)
	}
	program, err := os.Readlink(k.keeper.path)
	if err == nil {
		err = os.Remove(k.keeper.path)
	}
	if err != nil {
		t.Fatal(err)
	}
	k.killKeeper(t)
	k.awaitKeeper(t, false)
	r.row(t, k, "keeper gone: clients leave", func() string { return k.leaveAll(t, departures, fewRequests) })
	if err := os.Symlink(program, k.keeper.path); err != nil {
		t.Fatal(err)
	}
	k.awaitKeeper(t, true)
	r.row(t, k, "keeper back: clients leave", func() string { return k.leaveAll(t, departures, fewRequests) })
}
