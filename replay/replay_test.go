package replay

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/kvfeed"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/replay/engine"
)

// conversation is the beginning of Mooncake's conversation trace (kvcache-ai/Mooncake, Apache-2.0).
func conversation(t testing.TB) *Trace {
	t.Helper()
	f, err := os.Open("testdata/conversation.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace := &Trace{BlockTokens: 512}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var row struct {
			Timestamp float64 `json:"timestamp"`
			Input     int     `json:"input_length"`
			Output    int     `json:"output_length"`
			Blocks    []int64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		trace.Requests = append(trace.Requests, Request{Due: time.Duration(row.Timestamp * 1e6), Input: row.Input, Output: row.Output, Blocks: row.Blocks})
	}
	return trace
}

// thresholdConfig is the built-in configuration with another threshold.
func thresholdConfig(t testing.TB, tokens int) *config.Config {
	t.Helper()
	text := strings.Replace(string(config.Default()), "nonCachedTokens: 2048", fmt.Sprintf("nonCachedTokens: %d", tokens), 1)
	c, err := config.Parse([]byte(text), plugin.Table)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func options(t testing.TB, tokens int, pool string) Options {
	t.Helper()
	o := Options{Config: thresholdConfig(t, tokens), Engine: engine.VLLM(), Link: Link{Bandwidth: 50e9, Latency: time.Millisecond},
		Scrape: 200 * time.Millisecond, Stale: 2 * time.Second, Hop: time.Millisecond, Seed: 1}
	var err error
	if o.Table, o.Hardware, err = engine.Preset("llama-70b-h100-tp4"); err != nil {
		t.Fatal(err)
	}
	o.Engine.KVTokens = o.Hardware.KVTokens
	if err := o.Pool.UnmarshalText([]byte(pool)); err != nil {
		t.Fatal(err)
	}
	return o
}

func replayed(t testing.TB, o Options, trace *Trace) *Result {
	t.Helper()
	r, err := Run(t.Context(), o, trace)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }

func TestSameSeed(t *testing.T) {
	trace := conversation(t)
	first := replayed(t, options(t, 2048, "2P+4D"), trace)
	if again := replayed(t, options(t, 2048, "2P+4D"), trace); !reflect.DeepEqual(first, again) {
		t.Error("two runs with the same seed differ")
	}
	other := options(t, 2048, "2P+4D")
	other.Seed = 2
	if reflect.DeepEqual(first.Records, replayed(t, other, trace).Records) {
		t.Error("runs with different seeds are equal: the seed has no effect")
	}
}

// TestEveryRequestEnds also checks what records say of the two ways of a request.
func TestEveryRequestEnds(t *testing.T) {
	trace := conversation(t)
	r := replayed(t, options(t, 2048, "2P+4D"), trace)
	ways := map[bool]int{}
	for i := range r.Records {
		one := &r.Records[i]
		ways[one.Remote]++
		switch {
		case one.Refused:
			t.Errorf("request %d was refused: %s", i, one.Reason)
		case one.TTFT <= 0 || one.E2E < one.TTFT:
			t.Errorf("request %d: TTFT %v, E2E %v", i, one.TTFT, one.E2E)
		case one.Remote != (one.Moved > 0), one.Remote != strings.HasPrefix(one.Prefill, "prefill-"):
			t.Errorf("request %d: remote %v, %d tokens moved, prefilled on %q", i, one.Remote, one.Moved, one.Prefill)
		case !strings.HasPrefix(one.Decode, "decode-"):
			t.Errorf("request %d was decoded on %s", i, one.Decode)
		}
	}
	if ways[true] == 0 || ways[false] == 0 {
		t.Errorf("%v: want both remote and local requests", ways)
	}
}

// TestReplicas: of several pickers each knows only the requests that it has picked for. Between two readings of pages, two pickers send their
// requests to the same engine; one picker spreads them, and so do two that tell each other in time.
func TestReplicas(t *testing.T) {
	trace := &Trace{Requests: []Request{{Due: time.Second, Input: 4096, Output: 20}, {Due: time.Second + time.Millisecond, Input: 4096, Output: 20}}}
	for _, c := range []struct {
		replicas int
		sync     time.Duration
		together bool
	}{{0, 0, false}, {1, 0, false}, {2, 0, true}, {2, 100 * time.Microsecond, false}, {2, time.Minute, true}} {
		same, runs := 0, 20
		for seed := range runs {
			o := options(t, 0, "2B")
			o.Replicas, o.Sync, o.Seed = c.replicas, c.sync, uint64(seed+1)
			r := replayed(t, o, trace)
			if !reflect.DeepEqual(r, replayed(t, o, trace)) {
				t.Fatal("two runs with the same seed differ")
			}
			if r.Records[0].Decode == r.Records[1].Decode {
				same++
			}
		}
		if (same > 0) != c.together || same == runs {
			t.Errorf("%d pickers that tell each other every %v sent both requests to the same of two idle engines in %d of %d runs", c.replicas, c.sync, same, runs)
		}
	}
}

// TestThreshold: the decider of the configuration decides.
func TestThreshold(t *testing.T) {
	trace := conversation(t)
	for _, test := range []struct {
		threshold int
		remote    float64
	}{{1, 1}, {1_000_000, 0}} {
		if got := replayed(t, options(t, test.threshold, "2P+4D"), trace).Summary(SLO{}).RemoteShare; got != test.remote {
			t.Errorf("threshold %d: %v of the requests are remote, want %v", test.threshold, got, test.remote)
		}
	}
}

// TestPrefixCache: a second prompt that begins like the first goes to the engine that has its beginning, and only the rest is computed.
func TestPrefixCache(t *testing.T) {
	ids := []int64{1, 2, 3, 4, 5, 6, 7, 8}
	trace := &Trace{BlockTokens: 512, Requests: []Request{
		{Due: 0, Input: 4100, Output: 2, Blocks: ids},
		{Due: 10 * time.Second, Input: 4100, Output: 2, Blocks: ids},
		{Due: 20 * time.Second, Input: 4100, Output: 2, Blocks: []int64{9, 2, 3, 4, 5, 6, 7, 8}},
	}}
	r := replayed(t, options(t, 1_000_000, "4B"), trace)
	a, b, c := &r.Records[0], &r.Records[1], &r.Records[2]
	if a.Cached != 0 || b.Cached != 4096 || c.Cached != 0 {
		t.Errorf("cached: %d, %d and %d tokens; want 0, 4096 and 0", a.Cached, b.Cached, c.Cached)
	}
	if a.Decode != b.Decode || b.TTFT > a.TTFT/5 {
		t.Errorf("on %s in %v, then on %s in %v: want the same engine, in much less time", a.Decode, a.TTFT, b.Decode, b.TTFT)
	}
}

// TestRemoteRequest adds up the times of a single remote request.
func TestRemoteRequest(t *testing.T) {
	o := options(t, 1, "1P+1D")
	o.Link.Handshake = 70 * time.Millisecond
	trace := &Trace{Requests: []Request{{Input: 4096, Output: 3}, {Due: time.Minute, Input: 4096, Output: 3}}}
	r := replayed(t, o, trace)
	step := func(s engine.Step) float64 { return o.Table.Milliseconds(s) + 2 }
	prefill, transfer := step(engine.Step{New: 4096}), 4096*float64(o.Hardware.KVBytes)/50e9*1e3
	decode := step(engine.Step{Batch: 1, Context: 4095})
	for i, want := range []float64{1 + prefill + 1 + 1 + 70 + transfer + decode, 1 + prefill + 1 + 1 + transfer + decode} {
		if got := float64(r.Records[i].TTFT) / 1e6; math.Abs(got-want) > 0.001 {
			t.Errorf("request %d: TTFT %v ms, want %v", i, got, want)
		}
	}
	if want := 2 * 4096 * float64(o.Hardware.KVBytes); r.KVBytes != want {
		t.Errorf("%v bytes moved, want %v", r.KVBytes, want)
	}
	if want := 8 * r.End.Seconds(); r.Summary(SLO{}).GPUSeconds != want {
		t.Errorf("%v GPU seconds, want %v", r.Summary(SLO{}).GPUSeconds, want)
	}
}

// TestWaiting: of requests that come together, all but the first wait, and a timeline shows them. Requests that have ended are counted.
// TestTokenArrives: of engines whose legs begin together, decode reserves its blocks before prefill computes, and the first token comes
// with the KV cache, without a step of decode.
func TestTokenArrives(t *testing.T) {
	trace := &Trace{Requests: []Request{{Input: 8000, Output: 1}, {Due: 10 * time.Second, Input: 8000, Output: 3}}}
	o := options(t, 1, "1P+1D")
	o.Engine.TokenArrives, o.Request = true, 5*time.Millisecond
	r := replayed(t, o, trace)
	decode := func(context float64) time.Duration {
		return time.Duration((o.Table.Milliseconds(engine.Step{Batch: 1, Context: context}) + 2) * 1e6)
	}
	prefill := time.Duration((o.Table.Milliseconds(engine.Step{New: 8000}) + 2) * 1e6)
	kv := time.Duration(8000 * float64(o.Hardware.KVBytes) / o.Link.Bandwidth * 1e9)
	first := o.Hop + o.Request + prefill + o.Link.Latency + kv
	for i, want := range []time.Duration{first, first + decode(8000) + decode(8001)} {
		if one := r.Records[i]; (one.TTFT-first).Abs() > time.Microsecond || (one.E2E-want).Abs() > time.Microsecond || one.Moved != 8000 {
			t.Errorf("request %d: TTFT %v, E2E %v, %d tokens moved, want %v, %v, 8000", i, one.TTFT, one.E2E, one.Moved, first, want)
		}
	}
}

func TestWaiting(t *testing.T) {
	o := options(t, 0, "1B")
	o.Engine.Sequences, o.Ended = 1, new(atomic.Int64)
	trace := &Trace{Requests: []Request{{Input: 4096, Output: 50}, {Input: 4096, Output: 50}, {Due: time.Millisecond, Input: 4096, Output: 50}}}
	r := replayed(t, o, trace)
	a, b, c := &r.Records[0], &r.Records[1], &r.Records[2]
	if a.Waited != 0 || b.Waited != a.E2E-o.Hop || c.Waited != b.E2E-o.Hop-time.Millisecond {
		t.Errorf("waited %v, %v and %v, where the first two took %v and %v", a.Waited, b.Waited, c.Waited, a.E2E, b.E2E)
	}
	if r.Unfinished != 2 || o.Ended.Load() != 3 {
		t.Errorf("%d unfinished when the last one came, %d ended; want 2 and 3", r.Unfinished, o.Ended.Load())
	}
	for i, s := range r.Timeline {
		want := 2
		if s.At > a.E2E {
			want = 1
		}
		if s.At > b.E2E {
			want = 0
		}
		if s.At != time.Duration(i)*100*time.Millisecond || s.Role != "both" || s.Engines != 1 || s.At > o.Hop && (s.Waiting != want || s.Running != 1 || s.KVUsage <= 0) {
			t.Errorf("sample %d: %+v, want %d waiting", i, s, want)
		}
	}
	if len(r.Timeline) < 3 {
		t.Errorf("%d samples in %v", len(r.Timeline), r.End)
	}
}

// TestTimelineCoversLongRuns: it has a bounded number of moments, at even intervals.
func TestTimelineCoversLongRuns(t *testing.T) {
	tl := timeline{each: firstInterval}
	n := &node{role: "both", engine: engine.New(engine.Config{BlockTokens: 16, KVTokens: 1600}, nil, nil)}
	for now := time.Duration(0); now < time.Hour; now += 777 * time.Millisecond {
		tl.until(now, []*node{n})
	}
	if len(tl.moments) < mostMoments/2 || len(tl.moments) >= mostMoments {
		t.Fatalf("%d moments", len(tl.moments))
	}
	for i, m := range tl.moments {
		if m[0].At != time.Duration(i)*tl.each {
			t.Fatalf("moment %d is at %v, where one is every %v", i, m[0].At, tl.each)
		}
	}
	if last := tl.moments[len(tl.moments)-1][0].At; last < time.Hour-tl.each-time.Second {
		t.Errorf("it ends at %v", last)
	}
}

// TestOldLoads: loads are as old as the interval at which pages are read.
func TestOldLoads(t *testing.T) {
	w := &world{left: 1, options: &Options{Engine: engine.VLLM()}}
	o := options(t, 1, "1B")
	w.options.Engine.KVTokens, w.options.Table = 100_000, o.Table
	w.join("a", "both")
	c, p, n := &w.clock, &picker{world: w}, w.nodes[0]
	e := n.newEndpoint()
	p.loads = loads{picker: p, clock: c, random: random(1), pages: []*page{{node: n, endpoint: e}}, busy: 200 * time.Millisecond, idle: time.Second,
		current: &epp.Snapshot{Endpoints: []*epp.Endpoint{e}}, loads: make([]epp.Load, 1), changed: true}
	l := &p.loads
	l.read(l.pages[0])
	before := l.Snapshot()
	n.engine.Add(c.now, &engine.Request{Prompt: 50_000, Output: 1})
	l.woken(n)
	if running, _ := l.Snapshot().Loads[0].Signals.Value(epp.Running); l.Snapshot() != before || running != 0 {
		t.Error("the load changed before the page was read")
	}
	for c.now < 300*time.Millisecond {
		e, ok := c.next()
		if !ok {
			t.Fatal("the page is not read again")
		}
		e.run()
	}
	if s := l.Snapshot(); s == before || c.Since(s.Loads[0].At) > 220*time.Millisecond {
		t.Error("the page of a busy engine was not read within its interval")
	}
}

func TestFairSharing(t *testing.T) {
	for _, test := range []struct {
		name string
		to   [2]int // of two transfers of 100 bytes from engine 0, at 0 s and at 5 s
		from int    // of the second one
		want [2]time.Duration
	}{
		{"the same port sends", [2]int{1, 2}, 0, [2]time.Duration{15 * time.Second, 20 * time.Second}},
		{"the same port receives", [2]int{1, 1}, 3, [2]time.Duration{15 * time.Second, 20 * time.Second}},
		{"different ports", [2]int{1, 2}, 3, [2]time.Duration{10 * time.Second, 15 * time.Second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c clock
			n := network{clock: &c, link: Link{Bandwidth: 10}, pairs: map[[2]*node]*pair{}}
			nodes := []*node{{}, {}, {}, {}}
			var got [2]time.Duration
			n.send(nodes[0], nodes[test.to[0]], 100, func(bool) { got[0] = c.now })
			c.after(5*time.Second, func() { n.send(nodes[test.from], nodes[test.to[1]], 100, func(bool) { got[1] = c.now }) })
			for e, ok := c.next(); ok; e, ok = c.next() {
				e.run()
			}
			for i := range got {
				if (got[i] - test.want[i]).Abs() > time.Second/5 {
					t.Errorf("transfer %d ended at %v, want %v", i, got[i], test.want[i])
				}
			}
		})
	}
}

func TestBlocks(t *testing.T) {
	hash := func(ids []int64, input, tokens int, own uint64) []uint64 {
		return (&prompt{parts: ids, own: own, each: 512, tokens: input, seed: seed}).blocks(tokens, 100)
	}
	a := hash([]int64{1, 2, 3}, 1536, 64, 7)
	if len(a) != 24 || len(slices.Compact(slices.Sorted(slices.Values(a)))) != 24 {
		t.Errorf("%d blocks, want 24 different ones", len(a))
	}
	for _, test := range []struct {
		name   string
		ids    []int64
		input  int
		shared int
	}{
		{"the same", []int64{1, 2, 3}, 1536, 24},
		{"another last part", []int64{1, 2, 4}, 1536, 16},
		{"another first part", []int64{4, 2, 3}, 1536, 0},
		{"shorter", []int64{1, 2}, 1000, 15},
		{"longer, without a name for its end", []int64{1, 2, 3}, 2000, 24},
	} {
		b, shared := hash(test.ids, test.input, 64, 8), 0
		for shared < min(len(a), len(b)) && a[shared] == b[shared] {
			shared++
		}
		if shared != test.shared || len(b) != test.input/64 {
			t.Errorf("%s: %d of %d blocks are shared, want %d", test.name, shared, len(b), test.shared)
		}
	}
	if long, short := hash([]int64{1, 2, 3}, 1536, 768, 7), hash([]int64{1, 9, 3}, 1536, 768, 7); len(long) != 2 || long[0] == short[0] {
		t.Error("a block of several parts does not tell them apart")
	}
}

func TestRefusedBeforeTheRun(t *testing.T) {
	for _, test := range []struct {
		name  string
		trace Trace
		want  string
	}{
		{"no requests", Trace{}, "no requests"},
		{"KV too small", Trace{Requests: []Request{{Input: 10, Output: 1}, {Input: 448_000, Output: 1}}}, "request 2: a request of 448000 and 1 tokens does not fit"},
		{"parts that are no whole blocks", Trace{BlockTokens: 500, Requests: []Request{{Input: 1, Output: 1}}}, "not whole blocks"},
	} {
		o := options(t, 1, "1B")
		if err := o.Check(&test.trace); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	explained := configured(t, "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: burst-prefix-cache-producer}, {type: queue-scorer}]\n")
	explained.Explain = 1
	if err := explained.Supported(); err == nil || !strings.Contains(err.Error(), "none can be explained") {
		t.Errorf("%v, want that no request can be explained", err)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, options(t, 1, "1B"), conversation(t)); err != context.Canceled {
		t.Errorf("%v, want that it was cancelled", err)
	}
}

func TestPoolText(t *testing.T) {
	for text, want := range map[string]string{"4P+12D": "4P+12D", " 2b ": "2B", "1P+1P+1D": "2P+1D", "3D+1B": "3D+1B"} {
		var p Pool
		if err := p.UnmarshalText([]byte(text)); err != nil || p.String() != want {
			t.Errorf("%q: %v, %v; want %s", text, p, err, want)
		}
	}
	for text, want := range map[string]string{"4P": "no engine that decodes", "": "is not a number", "4": "has no role", "0D": "is not a number", "4000D+4000B": "more than"} {
		var p Pool
		if err := p.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestSummary(t *testing.T) {
	r := Result{GPUs: 4, End: 10 * time.Second, Unfinished: 3, Records: []Record{
		{Input: 100, Output: 11, TTFT: time.Second, E2E: 2 * time.Second, Remote: true},                         // TPOT 100 ms
		{Input: 100, Output: 11, TTFT: 2 * time.Second, E2E: 4 * time.Second, Cached: 100},                      // 200 ms
		{Input: 100, Output: 1, TTFT: 3 * time.Second, E2E: 3 * time.Second, Remote: true, Waited: time.Second}, // none
		{Input: 100, Output: 11, TTFT: 4 * time.Second, E2E: 5 * time.Second, Preempted: 2},                     // 100 ms
		{Input: 100, Output: 11, Refused: true},
	}}
	s := r.Summary(SLO{TTFT: 3 * time.Second, TPOT: 150 * time.Millisecond})
	want := Summary{Requests: 5, Refused: 1, TTFT: Quantiles{2000, 4000, 4000}, TPOT: Quantiles{100, 200, 200}, E2E: Quantiles{3000, 5000, 5000},
		Waited: Quantiles{0, 1000, 1000}, Met: 0.4, Goodput: 0.2, Throughput: 3.4, PerGPU: 0.85, RemoteShare: 0.5, GPUSeconds: 40, HitRate: 0.25, Preemptions: 2,
		Unfinished: 3}
	if s != want {
		t.Errorf("%+v, want\n%+v", s, want)
	}
	var h histogram
	h.add(10*time.Millisecond, 98)
	h.add(500*time.Millisecond, 2)
	if q := h.quantiles(); math.Abs(q.P50-10) > 0.1 || math.Abs(q.P99-500) > 5 {
		t.Errorf("gaps: %+v, want 10 ms at the median and 500 at p99", q)
	}
}

// BenchmarkConversation replays the beginning of the trace over 16 engines. x-real-time is how many seconds of the trace a second of
// the processor replays.
func BenchmarkConversation(b *testing.B) {
	trace, o := conversation(b), options(b, 2048, "4P+12D")
	var virtual time.Duration
	for b.Loop() {
		virtual += replayed(b, o, trace).End
	}
	b.ReportMetric(virtual.Seconds()/b.Elapsed().Seconds(), "x-real-time")
}

// preciseConfig goes by KV events. approximately has the picker estimate instead.
func preciseConfig(t testing.TB, approximately bool) *config.Config {
	t.Helper()
	producer := "precise-prefix-cache-producer"
	if approximately {
		producer = "approx-prefix-cache-producer"
	}
	c, err := config.Parse([]byte(`apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: `+producer+`}, {type: prefix-cache-scorer}, {type: active-request-scorer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-scorer, weight: 2}, {pluginRef: active-request-scorer}]
`), plugin.Table)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestKVEvents: what engines tell reaches the index that production has. It predicts what the modelled engines then find, with caches that
// are too small for the trace; what drops out while a request is on its way is what differs. The same seed gives the same result.
func TestKVEvents(t *testing.T) {
	trace, o := conversation(t), options(t, 0, "6B")
	o.Config, o.Events, o.Engine.KVTokens = preciseConfig(t, false), 5*time.Millisecond, 200_000
	var feeds []*kvfeed.Feed
	o.listening = func(f *kvfeed.Feed) { feeds = append(feeds, f) }
	r := replayed(t, o, trace)
	if len(feeds) != 1 {
		t.Fatalf("%d feeds", len(feeds))
	}
	predicted, reported := feeds[0].Predicted()
	if difference := math.Abs(float64(predicted - reported)); reported == 0 || difference > 0.05*float64(reported) {
		t.Errorf("%d cached tokens were predicted, and engines found %d", predicted, reported)
	}
	state := feeds[0].State()
	for _, e := range state.Endpoints {
		if len(e.Sources) == 1 && (e.Sources[0].Lost > 0 || e.Sources[0].Restarts > 0 || len(e.Sources[0].Skipped) > 0 || e.Sources[0].Removed == 0) {
			t.Errorf("%+v", e)
		}
	}
	if again := replayed(t, o, trace); !reflect.DeepEqual(r, again) {
		t.Error("two runs with the same seed differ")
	}
	o.Config = preciseConfig(t, true)
	if approximate := replayed(t, o, trace); r.Summary(SLO{}).HitRate < approximate.Summary(SLO{}).HitRate {
		t.Errorf("hit rate %.3f by events, %.3f by estimates", r.Summary(SLO{}).HitRate, approximate.Summary(SLO{}).HitRate)
	}
}

// TestTiers: with memory of the host behind caches that are too small, the index predicts what engines find in either, requests go where it is,
// and a picker that estimates finds less.
func TestTiers(t *testing.T) {
	trace, o := conversation(t), options(t, 0, "6B")
	o.Config, o.Events, o.Engine.KVTokens = preciseConfig(t, false), 5*time.Millisecond, 200_000
	without := replayed(t, o, trace).Summary(SLO{})
	o.Engine.HostTokens, o.Engine.HostLoad = 2_000_000, 5*time.Microsecond
	var feeds []*kvfeed.Feed
	o.listening = func(f *kvfeed.Feed) { feeds = append(feeds, f) }
	r := replayed(t, o, trace)
	with := r.Summary(SLO{})
	if with.LoadRate == 0 || with.HitRate < 1.2*without.HitRate {
		t.Errorf("hit rate %.3f with %.3f of the host, %.3f without it", with.HitRate, with.LoadRate, without.HitRate)
	}
	predicted, reported := feeds[0].Predicted()
	if difference := math.Abs(float64(predicted - reported)); reported == 0 || difference > 0.05*float64(reported) {
		t.Errorf("%d cached tokens were predicted, and engines found %d", predicted, reported)
	}
	for _, e := range feeds[0].State().Endpoints {
		if len(e.Sources) == 1 && (len(e.Sources[0].Skipped) > 0 || e.Sources[0].Blocks == 0) {
			t.Errorf("%+v", e)
		}
	}
	if again := replayed(t, o, trace); !reflect.DeepEqual(r, again) {
		t.Error("two runs with the same seed differ")
	}
	o.Config = preciseConfig(t, true)
	if approximate := replayed(t, o, trace).Summary(SLO{}); with.HitRate <= approximate.HitRate {
		t.Errorf("hit rate %.3f by events, %.3f by estimates", with.HitRate, approximate.HitRate)
	}
}

// TestPromptIDs: prompts that begin with the same parts begin with the same token ids, and only these.
func TestPromptIDs(t *testing.T) {
	w := &world{trace: &Trace{BlockTokens: 4, Requests: []Request{{Input: 10, Blocks: []int64{1, 2}}, {Input: 13, Blocks: []int64{1, 2, 3}}, {Input: 9, Blocks: []int64{2}}}}, asks: []asked{{}}}
	var all [][]uint32
	for i := range w.trace.Requests {
		p := w.prompt(i, false)
		ids := p.ids(100)
		if len(ids) != p.tokens || !slices.Equal(ids[:5], p.ids(5)) || p.ids(0) != nil {
			t.Errorf("prompt %d: %d ids of %d tokens", i, len(ids), p.tokens)
		}
		all = append(all, ids)
	}
	if !slices.Equal(all[0][:8], all[1][:8]) || all[0][8] == all[1][8] || all[0][0] == all[2][0] {
		t.Errorf("ids %v", all)
	}
}
