package serving

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// testKeeper has real engines told by the sidecar itself: hand-offs that are not read are released in every state, and one
// that is longer than a lease on its way to decode is read whole.
func testKeeper(t *testing.T) {
	k := keep(t, engines.pair(t, engines.failing), nixlKeeper(t))
	before := k.counts(t)
	for _, d := range departures {
		for _, stream := range []bool{false, true} {
			if took := k.leave(t, d, stream); took > harness.ReleaseWithin {
				t.Errorf("left %s, stream %v: prefill held blocks for %v", d.name, stream, took)
			}
		}
	}
	after := k.counts(t)
	after.mustBe(t, before)
	if after.ways["nixl ok"] == before.ways["nixl ok"] {
		t.Error("prefill was never told by the sidecar")
	}
	legs := k.holdLegs(t)
	pass(t, k.Lease*11/10)
	legs.mustEnd(t, pd.Remote)
	k.counts(t).mustBe(t, after)
}

// kept is a pair of engines behind a sidecar, with gates on both ways, and perhaps a keeper.
type kept struct {
	*harness.Pair
	sidecar   harness.Program
	toPrefill *harness.Gate // holds answers
	toDecode  *harness.Gate // holds legs
	keeper    keeperProgram
	explained float64         // late notices so far that decode has sent of its own
	took      []time.Duration // how long prefill held blocks of clients that had left, each time so far
}

// keep starts a sidecar with a keeper, or without if there is none, and has it meet the engines.
func keep(t *testing.T, p *harness.Pair, keeper keeperProgram) *kept {
	t.Helper()
	toDecode := harness.NewGate(t, p.Decode.Addr, harness.Requests)
	k := keepBefore(t, p, keeper, toDecode.Addr)
	k.toDecode = toDecode
	return k
}

// keepBefore does so with decode at an address that the test says.
func keepBefore(t *testing.T, p *harness.Pair, keeper keeperProgram, decode string) *kept {
	t.Helper()
	k := &kept{Pair: p, keeper: keeper, toPrefill: harness.NewGate(t, p.Prefill.Addr, harness.Answers)}
	k.sidecar = harness.StartSidecar(t, decode, append(keeper.flags(), "--lease="+p.Lease.String(), "--first-event-timeout=10m", "--hang-after=0")...) // gates are shut for long
	k.meet(t)
	return k
}

// meet returns when all know each other: the engines each other, and the keeper prefill.
func (k *kept) meet(t *testing.T) {
	t.Helper()
	k.awaitKeeper(t, true)
	before := k.joins(t)
	k.mustServe(t)
	k.until(t, "the keeper to meet prefill", func() bool { return !k.keeper.there() || k.joins(t) > before })
}

func (k *kept) joins(t *testing.T) float64 {
	t.Helper()
	return k.bySeries(t, "tandem_lease_connects_total")["ok"]
}

// mustServe makes a call that nothing happens to.
func (k *kept) mustServe(t *testing.T) {
	t.Helper()
	c := k.call(200, 8, true)
	r := harness.MustSend(t, c, k.sidecar.Addr("http"), k.Model)
	harness.MustMatch(t, r, true, k.Want(t, c))
	if r.Decision.Verdict != pd.Remote {
		t.Errorf("decision %v", r.Decision)
	}
}

// call is one with a prompt that no engine has seen.
func (k *kept) call(prompt, tokens int, stream bool) harness.Call {
	return harness.Call{API: pd.APICompletions, Prompt: k.Fresh(prompt), Tokens: tokens, Stream: stream}.Remote(k.toPrefill.Addr)
}

// awaitKeeper waits until the keeper is up, or down; there may be none.
func (k *kept) awaitKeeper(t *testing.T, up bool) {
	t.Helper()
	if !k.keeper.there() {
		return
	}
	k.until(t, fmt.Sprintf("the keeper to be up: %v", up), func() bool {
		return harness.Sample(t, k.sidecar.Addr("metrics"), "tandem_keeper_up") == 1 == up
	})
}

// until polls a state that no program announces, for at most patience.
func (k *kept) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx := harness.Within(t)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s took more than %v", what, harness.Patience)
		case <-poll.C:
		}
	}
}

// freed returns how long after a moment prefill held nothing any more, for good: the sidecar has nothing to release either.
func (k *kept) freed(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	var empty time.Time
	rests := false
	k.until(t, "prefill to hold nothing", func() bool {
		switch {
		case k.Prefill.Metric(t, harness.UsageGauge) != 0:
			empty, rests = time.Time{}, false
			return false
		case rests:
			return true
		case empty.IsZero():
			empty = time.Now()
		}
		rests = harness.Sample(t, k.sidecar.Addr("metrics"), "tandem_open_requests") == 0
		return false
	})
	return max(0, empty.Sub(since))
}

// counts are what prefill and the sidecar count of hand-offs.
type counts struct {
	expired, late float64            // prefill: leases that ended, and unexplained notices of hand-offs that were none any more
	stranded      float64            // the sidecar: hand-offs that it could not release
	ways          map[string]float64 // the sidecar: releases by way and result
}

// afterExpiry is counted for a notice of a hand-off that prefill does not hold.
const afterExpiry = "vllm:nixl_num_notifications_after_expiry_total"

// counts returns them as they are now.
func (k *kept) counts(t *testing.T) counts {
	t.Helper()
	reportCounts(t, k.Pair)
	return counts{
		expired: k.Prefill.Metric(t, harness.Expiries), late: k.Prefill.Metric(t, afterExpiry) - k.explained,
		stranded: harness.SumOf(t, k.sidecar.Addr("metrics"), "tandem_kv_stranded_total"),
		ways:     k.bySeries(t, "tandem_kv_release_total"),
	}
}

// reportCounts has the prefill engine compute something: engines tell what their workers have counted only then.
func reportCounts(t *testing.T, p *harness.Pair) {
	t.Helper()
	harness.MustSend(t, harness.Call{API: pd.APICompletions, Prompt: p.Fresh(20), Tokens: 4}, p.Prefill.Addr, p.Model)
}

// since is what was counted after an earlier look.
func (c counts) since(before counts) counts {
	ways := maps.Clone(c.ways)
	for way, n := range before.ways {
		if ways[way] -= n; ways[way] == 0 {
			delete(ways, way)
		}
	}
	return counts{c.expired - before.expired, c.late - before.late, c.stranded - before.stranded, ways}
}

// plus adds two spans up.
func (c counts) plus(d counts) counts {
	ways := maps.Clone(d.ways)
	for way, n := range c.ways {
		ways[way] += n
	}
	return counts{c.expired + d.expired, c.late + d.late, c.stranded + d.stranded, ways}
}

// mustBe fails unless everything went well after an earlier look.
func (c counts) mustBe(t *testing.T, before counts) {
	t.Helper()
	if d := c.since(before); d.expired != 0 || d.late != 0 || d.stranded != 0 {
		t.Error(d)
	}
}

func (c counts) String() string {
	text := fmt.Sprintf("%v expired, %v late, %v stranded", c.expired, c.late, c.stranded)
	for _, way := range slices.Sorted(maps.Keys(c.ways)) {
		text += fmt.Sprintf(", %s %v", way, c.ways[way])
	}
	return text
}

// bySeries reads a metric of the sidecar by the values of its labels, the last label first.
func (k *kept) bySeries(t *testing.T, name string) map[string]float64 {
	t.Helper()
	_, text := harness.FetchPage(t, "http://"+k.sidecar.Addr("metrics")+"/metrics")
	series := map[string]float64{}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name+"{")
		labels, value, found := strings.Cut(rest, "} ")
		if !ok || !found {
			continue
		}
		var values []string
		for _, pair := range harness.LabelPair.FindAllStringSubmatch(labels, -1) {
			values = append(values, pair[2])
		}
		slices.Reverse(values)
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		series[strings.Join(values, " ")] = v
	}
	return series
}

// heldLegs are two requests, whole and streamed, whose decode legs have been sent and not arrived.
type heldLegs struct {
	kept *kept
	got  [2]<-chan harness.Reply
	want [2][]int
}

func (k *kept) holdLegs(t *testing.T) *heldLegs {
	t.Helper()
	l := &heldLegs{kept: k}
	var calls [2]harness.Call
	for i := range calls {
		calls[i] = k.call(200, 8, i == 1)
		l.want[i] = k.Pair.Want(t, calls[i])
	}
	k.toDecode.Shut()
	for i, c := range calls {
		l.got[i] = beginPatiently(t, c, k.sidecar.Addr("http"), k.Model)
		<-k.toDecode.Held
	}
	return l
}

// beginPatiently makes a call in the background that takes as long as it takes.
func beginPatiently(t *testing.T, c harness.Call, base, model string) <-chan harness.Reply {
	got := make(chan harness.Reply, 1)
	go func() {
		r, err := c.Send(t.Context(), base, model)
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	return got
}

// end lets the legs arrive, and gives the answers.
func (l *heldLegs) end() (answers [2]harness.Reply) {
	l.kept.toDecode.Release()
	for i := range answers {
		answers[i] = <-l.got[i]
	}
	return answers
}

// mustEnd fails unless both answers are right, and got that way.
func (l *heldLegs) mustEnd(t *testing.T, verdict pd.Verdict) {
	t.Helper()
	for i, r := range l.end() {
		harness.MustMatch(t, r, i == 1, l.want[i])
		if r.Decision.Verdict != verdict {
			t.Errorf("decision %v", r.Decision)
		}
	}
}

// leave has a client leave, and gives how long prefill held anything after that. What decode has sent of its own is
// explained.
func (k *kept) leave(t *testing.T, d departure, stream bool) time.Duration {
	t.Helper()
	before := k.counts(t)
	took := k.freed(t, d.leave(t, k, stream))
	switch late := k.counts(t).late - before.late; {
	case late > d.mayBeLate(stream):
		t.Errorf("left %s, stream %v: %v late notices", d.name, stream, late)
	default:
		k.explained += late
	}
	return took
}

// pass lets a time go by in which nothing may happen.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// abandon makes a call, and leaves when at returns; begun is closed when the answer begins. It returns when the client is
// gone.
func (k *kept) abandon(t *testing.T, c harness.Call, at func(begun <-chan struct{})) {
	t.Helper()
	ctx, leave := context.WithCancel(harness.Within(t))
	defer leave()
	begun, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		resp, err := (&harness.Fleet{Model: k.Model, Front: harness.Front{Addr: k.sidecar.Addr("http")}}).Open(ctx, c)
		close(begun)
		if err == nil {
			<-ctx.Done()
			resp.Body.Close()
		}
	}()
	at(begun)
	leave()
	<-ended
}
