package overload

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// overloadFor is short in every go test; the promise is about a minute.
var overloadFor = flag.Duration("overload.for", 5*time.Second, "how long TestOverload and TestQueues keep their load up, and TestPrefillLost each of its loads")

// overloadTimed says whether times are held against what is promised. A few seconds beside other tests show that load is shed,
// refused and bounded, by counts; how fast the rest is answered, they only print.
func overloadTimed() bool { return *overloadFor >= 30*time.Second }

// What the slow engines of these tests do.
const (
	overloadSeqs     = 16  // that one engine runs at once
	overloadTokens   = 25  // of an answer, a second's worth
	overloadPrompt   = 600 // tokens of a prompt that is prefilled remotely
	overloadPrefills = 3
	overloadDecoders = 2
	// overloadQueue is how many requests the default configuration lets wait in an engine that runs so few.
	overloadQueue = 32
	// overloadTTFT is how late the first token may come: a full queue takes 32/16 s, and a prompt before it half as long again.
	overloadTTFT = 4 * time.Second
)

// overloadBurst returns a sidecar's burst of local prefills: the default in a minute, and its share in less, which it would fill.
func overloadBurst() int {
	return max(2, min(pd.FallbackBurst, int(pd.FallbackBurst*overloadFor.Minutes())))
}

// overloadStack is a fleet of slow engines behind Envoy.
type overloadStack struct {
	*harness.Fleet
	client   *loadClient
	prefills []harness.Program
	decodes  []harness.Program
}

// overloadLayout is what an overloadStack consists of.
type overloadLayout struct {
	prefills int
	seqs     int    // that one engine runs at once
	config   string // of the picker
	flags    []string
}

func newOverloadStack(t *testing.T, l overloadLayout) *overloadStack {
	t.Helper()
	dir := t.TempDir()
	o := &overloadStack{Fleet: &harness.Fleet{Model: "slow", Config: filepath.Join(dir, "config.yaml"), Endpoints: filepath.Join(dir, "endpoints.yaml")}}
	flags := []string{"--model-file=" + filepath.Join("testdata", "slow.yaml"), fmt.Sprintf("--max-num-seqs=%d", l.seqs), "--blocks=4096"}
	for i := range l.prefills {
		p := harness.Start(t, stack.Sim(harness.BinDir, fmt.Sprintf("prefill-%d", i), append(flags, "--role=prefill")...))
		o.prefills, o.Prefill = append(o.prefills, p), append(o.Prefill, harness.Engine{Addr: p.Addr("http")})
	}
	for i := range overloadDecoders {
		p := harness.Start(t, stack.Sim(harness.BinDir, fmt.Sprintf("decode-%d", i), append(flags, "--role=decode")...))
		o.decodes = append(o.decodes, p)
		o.Decode = append(o.Decode, harness.DecodePod{Engine: harness.Engine{Addr: p.Addr("http")}, Sidecar: harness.StartSidecar(t, p.Addr("http"), "--log-level=error", fmt.Sprint("--fallback-burst=", overloadBurst()))})
	}
	o.WriteConfig(t, l.config)
	o.WriteEndpoints(t)
	o.StartPicker(t, append(l.flags, "--log-level=error")...)
	o.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"})
	o.client = newLoadClient(t, o.Fleet)
	return o
}

// overloadConfig returns the default with a threshold for small prompts, and what the chart makes of it: a second endpoint in every
// answer, and a budget for prompts that find no prefill endpoint.
func overloadConfig(t *testing.T) string {
	t.Helper()
	text := string(config.Default())
	for from, to := range map[string]string{
		"nonCachedTokens: 2048":                    fmt.Sprintf("nonCachedTokens: %d", harness.Threshold),
		"  - type: max-score-picker":               "  - type: max-score-picker\n    parameters: {maxNumOfEndpoints: 2}",
		"        prefill: prefix-based-pd-decider": "        prefill: prefix-based-pd-decider\n      onNoPrefill: budget",
	} {
		if strings.Count(text, from) != 1 {
			t.Fatalf("the default configuration lacks, or repeats, %q", from)
		}
		text = strings.Replace(text, from, to, 1)
	}
	return text
}

// mixed returns a load of which so many in ten are prefilled remotely.
func (o *overloadStack) mixed(remote int) func(i int) harness.Call {
	return func(i int) harness.Call {
		tokens := harness.Threshold / 2
		if i%10 < remote {
			tokens = overloadPrompt
		}
		return harness.Call{API: pd.APICompletions, Prompt: o.Fresh(tokens), Tokens: overloadTokens, Stream: true}
	}
}

// requests returns how many requests all engines have taken.
func (o *overloadStack) requests(t *testing.T) (n int) {
	t.Helper()
	for _, p := range slices.Concat(o.prefills, o.decodes) {
		n += int(harness.StateOf(t, p).Requests)
	}
	return n
}

// probe returns a request that hardly takes time.
func (o *overloadStack) probe(ctx context.Context) served {
	return o.client.ask(ctx, harness.Call{API: pd.APICompletions, Prompt: o.Fresh(harness.Threshold / 2), Tokens: 1, Stream: true})
}

// recover tells when the first of three answers in a row was asked for that begin nearly as soon as those of an idle stack: a
// quarter of a second is for the machine, and a full queue takes two.
func (o *overloadStack) recover(ctx context.Context, idle time.Duration) time.Duration {
	begun, first, good := time.Now(), time.Duration(0), 0
	for good < 3 {
		asked := time.Since(begun)
		if asked > 20*time.Second {
			return asked // never, as far as a user is concerned
		}
		s := o.probe(ctx)
		switch {
		case !s.finished() || s.ttft > 2*idle+250*time.Millisecond:
			good = 0
		case good == 0:
			first, good = asked, 1
		default:
			good++
		}
	}
	return first
}

// TestOverload offers four times what the stack can do. It sheds what is too much, finishes as much as it ever does, keeps its
// queues short, and is back to normal when the load ends.
func TestOverload(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	o := newOverloadStack(t, overloadLayout{prefills: overloadPrefills, seqs: overloadSeqs, config: overloadConfig(t)})
	ctx, cancel := context.WithTimeout(t.Context(), *overloadFor+harness.Patience)
	defer cancel()
	next := o.mixed(3)
	o.client.closedLoop(ctx, 2, time.Second, next) // engines shake hands
	var idle time.Duration
	for range 5 {
		idle = max(idle, o.probe(ctx).ttft)
	}
	const settle, measured = 2 * time.Second, 3 * time.Second
	const full = overloadDecoders * overloadSeqs
	begun := time.Now()
	best := o.client.closedLoop(ctx, full+full/4, settle+measured, next)
	capacity := rateWithin(best, begun.Add(settle), begun.Add(settle+measured), overloadTTFT)

	took, peak := o.requests(t), o.watchPeaks(t)
	begun = time.Now()
	rest := o.client.openLoop(ctx, 4*capacity, *overloadFor, next)
	recovery := o.recover(ctx, idle)
	row := overloadRow{name: "4 × capacity", all: rest(), peaks: peak(), best: capacity}
	row.engine = o.requests(t) - took
	from, to := begun.Add(settle), begun.Add(*overloadFor)
	row.goodput, row.inTime = rateWithin(row.all, from, to, time.Hour), rateWithin(row.all, from, to, overloadTTFT)

	t.Logf("\n%s%s%sback to normal after %v; a first token of the idle stack took %v", overloadHeader,
		overloadRow{name: "capacity", all: best, best: capacity, goodput: capacity, inTime: capacity}, row, recovery, idle)
	row.mustBeSound(t)
	row.mustStayBounded(t)
	if overloadTimed() && (row.goodput < 0.9*capacity || row.inTime < 0.9*capacity) {
		t.Errorf("%.1f answers a second, %.1f of them in time, of %.1f at best", row.goodput, row.inTime, capacity)
	}
	if row.kinds()["429 refused saturated"] == 0 {
		t.Error("nothing was shed")
	}
	if recovery > 5*time.Second {
		t.Errorf("back to normal after %v", recovery)
	}
	o.MustRest(t)
}

// TestPrefillLost has more prompts come than the prefill pods can compute, then the pods die at full load, and then they are
// not in the pool any more. What decode pods prefill themselves is so little that running answers hardly notice; the rest is
// refused.
func TestPrefillLost(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	o := newOverloadStack(t, overloadLayout{prefills: overloadPrefills, seqs: overloadSeqs, config: overloadConfig(t)})
	const clients = overloadDecoders * overloadSeqs
	ctx, cancel := context.WithTimeout(t.Context(), 4**overloadFor+harness.Patience)
	defer cancel()
	lives := o.client.closedLoop(ctx, clients, *overloadFor, o.mixed(5))
	rate := float64(len(lives)) / overloadFor.Seconds()

	peak := o.watchPeaks(t)
	over := o.client.openLoop(ctx, 60, *overloadFor, func(i int) harness.Call { // the pods compute 20 a second
		q := o.mixed(10)(i)
		q.Tokens = 10
		return q
	})()
	full := overloadRow{name: "prefill full", all: over, peaks: peak()}
	o.MustRest(t)
	for _, p := range o.prefills {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	dead := o.client.openLoop(ctx, rate, *overloadFor, o.mixed(5))()
	o.Prefill = nil
	o.WriteEndpoints(t)
	o.Eventually(t, "prefill pods in the pool", func() (string, bool) {
		state, err := harness.EndpointsOf(o.Pickers[0])
		return fmt.Sprint(len(state.Endpoints), err), err == nil && len(state.Endpoints) == overloadDecoders
	})
	gone := o.client.openLoop(ctx, rate, *overloadFor, o.mixed(5))()

	rows := []overloadRow{{name: "prefill lives", all: lives}, full, {name: "prefill dead", all: dead}, {name: "prefill gone", all: gone}}
	text := overloadHeader
	for _, row := range rows {
		text += row.String()
	}
	t.Logf("\n%s", text)
	full.mustStayBounded(t)
	for i, row := range rows {
		row.mustBeSound(t)
		if slower := float64(row.itl()) / float64(rows[0].itl()); overloadTimed() && slower > 2 {
			t.Errorf("%s: the time between tokens is %.1f times the normal one", row.name, slower)
		}
		kinds := row.kinds()
		local, shed := kinds["200 local no-prefill"]+kinds["200 local prefill-failed"], kinds["503 refused budget"]+kinds["429 refused saturated"]
		if i > 0 && (local == 0 || shed == 0) {
			t.Errorf("%s: %v", row.name, kinds)
		}
		// Each of the pods has a budget, and a request may ask both of them.
		if most := overloadDecoders * (overloadBurst() + len(row.all)/10); local > most {
			t.Errorf("%s: %d were prefilled on decode, want at most %d", row.name, local, most)
		}
	}
}

// overloadRow is a line of the table that these tests print.
type overloadRow struct {
	name                  string
	all                   []served
	best, goodput, inTime float64 // answers a second; 0 = not measured
	engine                int     // requests that engines took; 0 = not measured
	peaks                 overloadPeaks
}

const overloadHeader = "load           offered  finished  best/s  good/s  in time/s  TTFT p50    p99  ITL p50   mean    p99  " +
	"waiting  sidecar  streams  RSS MiB  legs  what became of them\n"

// String prints the row with a line end.
func (r overloadRow) String() string {
	ttft, itl := collect(r.all, func(s *served) time.Duration { return s.ttft }), []time.Duration(nil)
	for i := range r.all {
		itl = append(itl, r.all[i].gaps...)
	}
	ms := func(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
	p := &r.peaks
	return fmt.Sprintf("%-14s %7d  %8d  %6.1f  %6.1f  %9.1f  %8s  %5s  %7s  %5s  %5s  %7d  %7d  %7d  %7s  %4d  %v\n", r.name, len(r.all), len(ttft),
		r.best, r.goodput, r.inTime, ms(harness.Quantile(ttft, 0.5)), ms(harness.Quantile(ttft, 0.99)), ms(harness.Quantile(itl, 0.5)), ms(r.itl()), ms(harness.Quantile(itl, 0.99)),
		p.waiting, p.open, p.streams, fmt.Sprint(p.epp, "/", p.sidecar), r.engine, r.kinds())
}

// kinds counts requests by status and reason.
func (r *overloadRow) kinds() map[string]int {
	kinds := map[string]int{}
	for i := range r.all {
		kinds[fmt.Sprint(r.all[i].status, " ", r.all[i].reason)]++
	}
	return kinds
}

// itl returns the mean time between two tokens.
func (r *overloadRow) itl() time.Duration { return meanOf(collect(r.all, (*served).tpot)) }

// mustBeSound fails for each kind of answer that is neither whole nor a proper refusal.
func (r *overloadRow) mustBeSound(t *testing.T) {
	t.Helper()
	wrong := map[string]int{}
	for i := range r.all {
		if w := r.all[i].wrong; w != "" {
			wrong[w]++
		}
	}
	for _, w := range slices.Sorted(maps.Keys(wrong)) {
		t.Errorf("%s: %d times %s", r.name, wrong[w], w)
	}
}

// mustStayBounded fails if something grew with the load that should not.
func (r *overloadRow) mustStayBounded(t *testing.T) {
	t.Helper()
	// A page is up to a quarter of a second old when the first queue shows, and as much comes in meanwhile.
	if limit := 2 * overloadQueue; r.peaks.waiting > limit {
		t.Errorf("%s: %d requests waited in one engine, want at most %d", r.name, r.peaks.waiting, limit)
	}
	// Its requests are in its own engine, or in a prefill engine, of which it has a share.
	const engine = overloadSeqs + 2*overloadQueue
	if limit := engine + overloadPrefills*engine/overloadDecoders; r.peaks.open > limit {
		t.Errorf("%s: one sidecar had %d requests open, want at most %d", r.name, r.peaks.open, limit)
	}
	const maxRSS = 200 // MiB, of a process that holds nothing
	if r.peaks.epp > maxRSS || r.peaks.sidecar > maxRSS {
		t.Errorf("%s: the picker took %d MiB and a sidecar %d, want at most %d", r.name, r.peaks.epp, r.peaks.sidecar, maxRSS)
	}
	// A request takes an engine for each leg, and none for being refused.
	if admitted := len(r.all) - r.kinds()["429 refused saturated"]; r.engine > 2*admitted {
		t.Errorf("%s: engines took %d requests for %d that were not refused", r.name, r.engine, admitted)
	}
}

// overloadPeaks are the most of everything that should not grow.
type overloadPeaks struct {
	waiting      int // requests in the queue of one engine
	open         int // requests in one sidecar
	streams      int // from Envoy to the picker
	epp, sidecar int // resident size, MiB
}

// watchPeaks looks five times a second until the peaks are asked for.
func (o *overloadStack) watchPeaks(t *testing.T) (peaks func() overloadPeaks) {
	t.Helper()
	var p overloadPeaks
	var watching sync.WaitGroup
	stop := make(chan struct{})
	watching.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			o.look(t, &p)
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	return func() overloadPeaks {
		close(stop)
		watching.Wait()
		p.epp = harness.PeakOf(t, o.Pickers[0].PID())
		for _, pod := range o.Decode {
			p.sidecar = max(p.sidecar, harness.PeakOf(t, pod.Sidecar.PID()))
		}
		return p
	}
}

func (o *overloadStack) look(t *testing.T, p *overloadPeaks) {
	for _, e := range slices.Concat(o.prefills, o.decodes) {
		if n, err := (harness.Engine{Addr: e.Addr("http")}).ReadMetric("vllm:num_requests_waiting"); err == nil {
			p.waiting = max(p.waiting, int(n))
		}
	}
	for _, pod := range o.Decode {
		if n, _, err := harness.ReadSeries(pod.Sidecar.Addr("metrics"), "tandem_open_requests"); err == nil {
			p.open = max(p.open, int(n))
		}
	}
	p.streams = max(p.streams, o.Front.Stat(t, "cluster.epp.upstream_rq_active"))
}
