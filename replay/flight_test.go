package replay

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/replay/engine"
)

// TestPairs: the link of two engines is that of the first rule that names them, and its transfers share it.
func TestPairs(t *testing.T) {
	const base = 10 // bytes in a second
	slow := Pair{"prefill-0", "decode-*", Link{Bandwidth: 5, Latency: time.Second}}
	for _, test := range []struct {
		name  string
		pairs []Pair
		to    []string // of transfers of 100 bytes from prefill-0, at 0 s
		want  []time.Duration
	}{
		{"no rule", nil, []string{"decode-0"}, []time.Duration{10 * time.Second}},
		{"a rule for others", []Pair{{"prefill-1", "*", Link{Bandwidth: 1}}}, []string{"decode-0"}, []time.Duration{10 * time.Second}},
		{"bandwidth and latency", []Pair{slow}, []string{"decode-0"}, []time.Duration{21 * time.Second}},
		{"the first rule counts", []Pair{slow, {"*", "*", Link{Bandwidth: 1}}}, []string{"decode-0"}, []time.Duration{21 * time.Second}},
		{"two transfers of a pair share it", []Pair{slow}, []string{"decode-0", "decode-0"}, []time.Duration{41 * time.Second, 41 * time.Second}},
		{"two pairs share the port", []Pair{slow}, []string{"decode-0", "decode-1"}, []time.Duration{21 * time.Second, 21 * time.Second}},
		{"zones", []Pair{{"a", "b", Link{Bandwidth: 2}}}, []string{"decode-0", "decode-1"}, []time.Duration{20 * time.Second, 50 * time.Second}},
		{"a stall, without the port", []Pair{{"*", "decode-1", Link{Bandwidth: 10, Stalls: 1, Stall: time.Minute}}}, []string{"decode-0", "decode-1"},
			[]time.Duration{10 * time.Second, 70 * time.Second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			zones := []Zone{{"b", []string{"decode-1"}}, {"a", []string{"*"}}}
			nodes := map[string]*node{}
			for _, name := range []string{"prefill-0", "decode-0", "decode-1"} {
				nodes[name] = &node{name: name, zone: zoneOf(zones, name)}
			}
			var c clock
			n := network{clock: &c, random: random(1), link: Link{Bandwidth: base}, others: test.pairs, pairs: map[[2]*node]*pair{}}
			got := make([]time.Duration, len(test.to))
			for i, to := range test.to {
				n.send(nodes["prefill-0"], nodes[to], 100, func(bool) { got[i] = c.now })
			}
			for e, ok := c.next(); ok; e, ok = c.next() {
				e.run()
			}
			for i := range got {
				if (got[i] - test.want[i]).Abs() > 200*time.Millisecond {
					t.Errorf("transfer %d ended at %v, want %v", i, got[i], test.want[i])
				}
			}
		})
	}
}

// TestLoss: the stated share of transfers fails.
func TestLoss(t *testing.T) {
	var c clock
	n := network{clock: &c, random: random(1), link: Link{Bandwidth: 1e6, Loss: 0.25}, pairs: map[[2]*node]*pair{}}
	from, to, lost := &node{}, &node{}, 0
	for range 4000 {
		n.send(from, to, 1, func(ok bool) {
			if !ok {
				lost++
			}
		})
	}
	for e, ok := c.next(); ok; e, ok = c.next() {
		e.run()
	}
	if lost < 900 || lost > 1100 {
		t.Errorf("%d of 4000 transfers failed, want about 1000", lost)
	}
}

// TestUnusedHandoff adds up the times of a request whose transfer fails or stalls.
func TestUnusedHandoff(t *testing.T) {
	base := options(t, 1, "1P+1D")
	step := func(s engine.Step) float64 { return base.Table.Milliseconds(s) + 2 }
	const input, handed = 4096, 1 + 1 // ms: from the pick to prefill, and to decode
	prefill, bytes := step(engine.Step{New: input}), input*float64(base.Hardware.KVBytes)
	transfer, last := 1+bytes/50e9*1e3, step(engine.Step{Batch: 1, Context: input - 1})
	for _, test := range []struct {
		name   string
		change func(*Link)
		remote bool
		reason pd.Reason
		want   float64 // TTFT in ms
	}{
		{"none", func(*Link) {}, true, pd.Uncached, handed + prefill + transfer + last},
		{"lost", func(l *Link) { l.Loss = 1 }, false, pd.TransferFailed, handed + prefill + transfer + prefill},
		{"a short stall", func(l *Link) { l.Stalls, l.Stall = 1, 10*time.Second }, true, pd.Uncached, handed + prefill + 10_000 + transfer + last},
		{"a stall beyond the sidecar's patience", func(l *Link) { l.Stalls, l.Stall = 1, time.Minute }, false, pd.TransferFailed,
			handed + prefill + 30_000 + prefill},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := base
			o.First = 30 * time.Second
			test.change(&o.Link)
			r := replayed(t, o, &Trace{Requests: []Request{{Input: input, Output: 3}}})
			one := &r.Records[0]
			if one.Remote != test.remote || one.FellBack == test.remote || one.Reason != test.reason {
				t.Errorf("%+v, want remote %v for %s", one, test.remote, test.reason)
			}
			if got := float64(one.TTFT) / 1e6; math.Abs(got-test.want) > 0.001 {
				t.Errorf("TTFT %v ms, want %v", got, test.want)
			}
		})
	}
}

// TestFallbackBudget: of requests whose transfers fail, as many are computed by decode as the sidecar's budget allows: 20 at once, and one
// of ten.
func TestFallbackBudget(t *testing.T) {
	o := options(t, 1, "1P+1D")
	o.Link.Loss = 1
	trace := &Trace{}
	for i := range 31 {
		trace.Requests = append(trace.Requests, Request{Due: time.Duration(i) * time.Minute, Input: 512, Output: 2})
	}
	r := replayed(t, o, trace)
	for i := range r.Records {
		if one, want := &r.Records[i], i >= 22 && i < 30; one.Refused != want || one.FellBack == want {
			t.Errorf("request %d: refused %v, fell back %v; want that it is refused: %v", i+1, one.Refused, one.FellBack, want)
		}
	}
	if s := r.Summary(SLO{}); s.FellBack != 23 || s.Refused != 8 || r.Refusals()[pd.Budget] != 8 {
		t.Errorf("%+v, want 23 that fell back, and 8 refused for %s", s, pd.Budget)
	}
}

// TestHandoffsThatWaitForEachOther: two engines keep blocks for each other, so neither can reserve those that it is to receive. As in
// production the sidecar's patience ends it.
func TestHandoffsThatWaitForEachOther(t *testing.T) {
	o := options(t, 1, "2B")
	o.Engine.KVTokens, o.First = 10_000, 30*time.Second
	r := replayed(t, o, &Trace{Requests: []Request{{Input: 6000, Output: 2}, {Due: 300 * time.Millisecond, Input: 6000, Output: 2}}})
	a, b := &r.Records[0], &r.Records[1]
	if a.Prefill != b.Decode || b.Prefill != a.Decode {
		t.Fatalf("%s for %s, and %s for %s: want that both engines compute for each other", a.Prefill, a.Decode, b.Prefill, b.Decode)
	}
	if !a.FellBack || a.TTFT < o.First || a.Moved != 0 {
		t.Errorf("%+v, want that it fell back after %v, and that nothing was moved", a, o.First)
	}
	if !b.Remote || b.TTFT < o.First || b.TTFT > o.First+5*time.Second {
		t.Errorf("%+v, want that it was served when the other one had given its blocks back", b)
	}
}

// split is queueing for a pool whose prompts are all computed by prefill engines.
const split = queueing + `schedulingProfiles:
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer}]}
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer}]}
`

const splitPlugins = `plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- {type: always-disagg-pd-decider}
- {type: decode-filter}
- {type: prefill-filter}
`

// TestEviction: a running request of negative priority ends for a more important one that waits, and its engines serve that one.
func TestEviction(t *testing.T) {
	on := func(text string) string {
		return strings.Replace(text, "flowControl:\n", "flowControl:\n  enableEviction: true\n", 1)
	}
	remote := strings.Replace(split, "plugins:\n", splitPlugins, 1)
	stalls := func(o *Options) { o.Link.Stalls, o.Link.Stall = 1, 20*time.Second }
	both := func(o *Options) { o.Engine.TokenArrives = true }
	for _, test := range []struct {
		name, text, pool string
		change           func(*Options)
		at               time.Duration // when the important request comes
		evicted          bool
		within           time.Duration // it is answered
	}{
		{"off", queueing, "1B", nil, time.Second, false, time.Minute},
		{"a running request", on(queueing), "1B", nil, time.Second, true, 4 * time.Second},
		{"while prefill computes", on(remote), "1P+1D", nil, 100 * time.Millisecond, true, 12 * time.Second},
		{"while the KV cache is on its way", on(remote), "1P+1D", stalls, 10 * time.Second, true, 40 * time.Second},
		{"both legs at once, while prefill computes", on(remote), "1P+1D", both, 100 * time.Millisecond, true, 12 * time.Second},
		{"both legs at once, while the KV cache is on its way", on(remote), "1P+1D", func(o *Options) { both(o); stalls(o) }, 10 * time.Second, true, 40 * time.Second},
		{"while decode computes", on(remote), "1P+1D", nil, 8 * time.Second, true, 25 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := configured(t, test.text)
			if err := o.Pool.UnmarshalText([]byte(test.pool)); err != nil {
				t.Fatal(err)
			}
			if test.change != nil {
				test.change(&o)
			}
			o.Engine.KVTokens = 30_000 // the important request needs blocks of the other one
			trace := &Trace{Classes: []Class{{Name: "batch", Priority: -1}, {Name: "chat"}}, Requests: []Request{
				{Input: 20_000, Output: 2000}, {Due: test.at, Input: 12_000, Output: 10, Class: 1}, {Due: 5 * time.Minute, Input: 28_000, Output: 10, Class: 1}}}
			r := replayed(t, o, trace)
			if again := replayed(t, o, trace); !reflect.DeepEqual(r, again) {
				t.Error("two runs with the same seed differ")
			}
			batch, chat, last := &r.Records[0], &r.Records[1], &r.Records[2]
			if batch.Evicted != test.evicted || batch.Refused != test.evicted || test.evicted && batch.Reason != pd.Evicted {
				t.Errorf("%+v, want evicted %v", batch, test.evicted)
			}
			if soon := chat.Queued < 50*time.Millisecond; soon != test.evicted || chat.Refused || chat.E2E > test.within {
				t.Errorf("%+v, want that it waits only without evictions, and ends within %v", chat, test.within)
			}
			if last.Refused || last.Waited > 0 {
				t.Errorf("%+v, want that nothing of the evicted request is left in any engine", last)
			}
			if s := r.Summary(SLO{}); (s.Evicted == 1) != test.evicted {
				t.Errorf("%d evicted", s.Evicted)
			}
		})
	}
}
