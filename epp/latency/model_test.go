package latency

import (
	"fmt"
	"math"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// handClock is a clock that a test moves.
type handClock struct {
	epp.Clock
	mu  sync.Mutex
	now time.Time
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func endpoint(slot int, role string) *epp.Endpoint {
	e := epp.NewEndpoint("default", fmt.Sprintf("%s-%d", role, slot), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(slot)}), 8000), "",
		map[string]string{pd.RoleLabel: role})
	e.Slot = slot
	return e
}

// candidate returns an endpoint whose page shows so many running requests.
func candidate(e *epp.Endpoint, running float64) epp.Candidate {
	load := &epp.Load{At: time.Unix(1, 0)}
	load.Signals.Set(epp.Running, running)
	load.Signals.Set(epp.Waiting, 0)
	load.Signals.Set(epp.KVUsage, 0)
	return epp.Candidate{Endpoint: e, Load: load, Trust: 1}
}

// outcome returns that of a request, whose sidecar told how long its parts took.
func outcome(decode, prefill *epp.Candidate, tokens, cached int, prompt, handoff, perToken time.Duration) *epp.Outcome {
	const completion = 101
	seen := func(c *epp.Candidate) *epp.Seen {
		return &epp.Seen{Load: *c.Load, InFlight: c.InFlight, Cached: cached}
	}
	row := epp.DecodeRow("decode")
	d := &epp.Decision{Verdict: pd.Local, Tokens: tokens, Cached: cached,
		Picks: []epp.StagePick{{Row: &row, Endpoints: []*epp.Endpoint{decode.Endpoint}, Seen: seen(decode)}}}
	p := &pd.Phases{}
	p.Set(pd.PhaseRecv, 0)
	p.Set(pd.PhaseFirst, prompt)
	p.Set(pd.PhaseDecode, (completion-1)*perToken)
	if prefill != nil {
		split := epp.PrefillRow("prefill", 1)
		d.Verdict = pd.Remote
		d.Picks = append(d.Picks, epp.StagePick{Row: &split, Endpoints: []*epp.Endpoint{prefill.Endpoint}, Seen: seen(prefill)})
		p.Set(pd.PhasePrefill, prompt)
		p.Set(pd.PhaseHandoff, 0)
		p.Set(pd.PhaseFirst, handoff)
	}
	return &epp.Outcome{Status: 200, Decision: d, Phases: p, Served: decode.Address,
		Result: &pd.AnswerSummary{End: pd.EndDone, Prompt: int64(tokens), Cached: int64(cached), Completion: completion}}
}

// served has a request sent, and end.
func served(m *Model, o *epp.Outcome) {
	sent := *o.Decision
	sent.Tokens, sent.Cached = 0, 0 // no load that the test does not want
	m.Sent(&sent)
	m.Observe(o)
}

func near(t *testing.T, what string, got, want time.Duration, by float64) {
	t.Helper()
	if math.Abs(float64(got)/float64(want)-1) > by {
		t.Errorf("%s: got %v, want %v to %.0f %%", what, got, want, 100*by)
	}
}

// perK is the time of a prompt of so many tokens at a speed.
func perK(tokens int, each time.Duration) time.Duration { return time.Duration(tokens) * each / 1000 }

func TestModelLearnsEachEngine(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	m := NewModel(clock)
	d, fast, slow := candidate(endpoint(1, "decode"), 8), candidate(endpoint(2, "prefill"), 0), candidate(endpoint(3, "prefill"), 0)
	fresh := candidate(endpoint(4, "prefill"), 0)
	for i := range 60 {
		clock.advance(time.Second)
		tokens := 500 + 211*i%9000
		served(m, outcome(&d, &fast, tokens, 0, 20*time.Millisecond+perK(tokens, 20*time.Millisecond), 30*time.Millisecond+perK(tokens, 5*time.Millisecond), 20*time.Millisecond))
		served(m, outcome(&d, &slow, tokens, 0, 20*time.Millisecond+perK(tokens, 80*time.Millisecond), 30*time.Millisecond+perK(tokens, 60*time.Millisecond), 20*time.Millisecond))
	}
	const tokens = 4000
	near(t, "fast prefill", m.Prompt(&fast, tokens, 0, epp.Loads{}).Time, 100*time.Millisecond, 0.15)
	near(t, "slow prefill", m.Prompt(&slow, tokens, 0, epp.Loads{}).Time, 340*time.Millisecond, 0.15)
	near(t, "one that is not known", m.Prompt(&fresh, tokens, 0, epp.Loads{}).Time, 200*time.Millisecond, 0.5)
	if e := m.Prompt(&fresh, tokens, 0, epp.Loads{}); e.Known != 0 {
		t.Errorf("%.1f outcomes of an engine that had none", e.Known)
	}
	near(t, "fast link", m.Handoff(&fast, &d, tokens).Time, 50*time.Millisecond, 0.2)
	near(t, "slow link", m.Handoff(&slow, &d, tokens).Time, 270*time.Millisecond, 0.2)
	near(t, "step", m.Token(&d, tokens, 0).Time, 20*time.Millisecond, 0.15)
	if cold, warm := m.Prompt(&fast, tokens, 0, epp.Loads{}).Time, m.Prompt(&fast, tokens, 3900, epp.Loads{}).Time; warm >= cold/2 {
		t.Errorf("a prompt that is cached but for 100 tokens takes %v, a cold one %v", warm, cold)
	}
}

// TestModelGoesByCountersOfTransfers: an engine's own counters tell how slow its network is, before a hand-off to it has ended and until more
// is known; other engines are not taken for slow.
func TestModelGoesByCountersOfTransfers(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	m := NewModel(clock)
	slow, other, from := candidate(endpoint(1, "decode"), 0), candidate(endpoint(2, "decode"), 0), candidate(endpoint(3, "prefill"), 0)
	const tokens = 4000
	before := m.Handoff(&from, &slow, tokens).Time
	slow.Load.Signals.Set(epp.ReadTokens, 900)
	slow.Load.Signals.Set(epp.ReadSeconds, 0.9)
	if got := m.Handoff(&from, &slow, tokens).Time; got != before {
		t.Errorf("a few tokens make %v of %v", got, before)
	}
	slow.Load.Signals.Set(epp.ReadTokens, 90_000)
	slow.Load.Signals.Set(epp.ReadSeconds, 45)
	near(t, "slow by its counters", m.Handoff(&from, &slow, tokens).Time, 2030*time.Millisecond, 0.05)
	o := outcome(&slow, &from, tokens, 0, 100*time.Millisecond, 2*time.Second, 20*time.Millisecond)
	served(m, o)
	near(t, "slow after an outcome", m.Handoff(&from, &slow, tokens).Time, 2030*time.Millisecond, 0.1)
	if expected := m.Expect(clock.now, o.Decision).TTFT.P50; expected < time.Second {
		t.Errorf("expected after %v", expected)
	}
	if got := m.Handoff(&from, &other, tokens).Time; got > time.Second {
		t.Errorf("an engine that tells nothing takes %v", got)
	}
	for range 60 { // it has become fast
		clock.advance(time.Second)
		served(m, outcome(&slow, &from, tokens, 0, 100*time.Millisecond, 60*time.Millisecond, 20*time.Millisecond))
	}
	near(t, "fast by the latest outcomes", m.Handoff(&from, &slow, tokens).Time, 60*time.Millisecond, 0.5)
}

// TestModelLearnsLoading: it learns how long an engine loads what is not in the accelerator's memory, and what such tokens are worth.
func TestModelLearnsLoading(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	m := NewModel(clock)
	d, fast, slow := candidate(endpoint(1, "decode"), 8), candidate(endpoint(2, "prefill"), 0), candidate(endpoint(3, "prefill"), 0)
	served := func(prefill *epp.Candidate, tokens, cached int, loads epp.Loads, took time.Duration) {
		o := outcome(&d, prefill, tokens, 0, took, 30*time.Millisecond, 20*time.Millisecond)
		o.Decision.Picks[1].Seen.Cached, o.Decision.Picks[1].Seen.Loads = cached, loads
		served(m, o)
	}
	const each = 50 * time.Millisecond
	for i := range 80 {
		clock.advance(time.Second)
		tokens := 1000 + 211*i%5000
		cached := tokens * (i % 4) / 4
		for _, one := range []struct {
			c    *epp.Candidate
			load time.Duration
		}{{&fast, each / 5}, {&slow, each * 4 / 5}} {
			served(one.c, tokens, cached, epp.Loads{int32(cached)}, 20*time.Millisecond+perK(tokens-cached, each)+perK(cached, one.load))
		}
	}
	loads := epp.Loads{3000}
	near(t, "loading fast", m.Prompt(&fast, 4000, 3000, loads).Time, 100*time.Millisecond, 0.2)
	near(t, "loading slowly", m.Prompt(&slow, 4000, 3000, loads).Time, 190*time.Millisecond, 0.2)
	if s := m.Value(&fast, 3000, epp.Loads{}); s.Tokens != 3000 || s.Load != 0 {
		t.Errorf("nothing is loaded: %+v", s)
	}
	a, b := m.Value(&fast, 3000, loads), m.Value(&slow, 3000, loads)
	near(t, "time saved by loading fast", a.Time, 120*time.Millisecond, 0.25)
	if a.Tokens < 1800 || a.Tokens > 2900 || b.Tokens > 1500 || b.Tokens > a.Tokens/2 {
		t.Errorf("tokens that save as much: %v where loading is fast, %v where it is slow", a.Tokens, b.Tokens)
	}
	if s := NewModel(clock).Value(&fast, 3000, epp.Loads{0, 3000}); s.Tokens != 0 || s.Time >= 0 {
		t.Errorf("loading that takes longer than computing saves %+v", s)
	}
}

func TestModelChargesPromptsToAnswers(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	m := NewModel(clock)
	d := candidate(endpoint(1, "decode"), 8)
	idle := m.Token(&d, 1000, 0).Time
	if with := m.Token(&d, 1000, 10_000).Time; with <= idle {
		t.Errorf("a prompt of 10,000 tokens on the engine leaves its step at %v", with)
	}
	for range 20 {
		o := outcome(&d, nil, 5000, 0, 300*time.Millisecond, 0, 20*time.Millisecond)
		m.Sent(o.Decision)
	}
	busy := m.Token(&d, 1000, 0).Time
	if busy < 3*idle/2 {
		t.Errorf("beside 100,000 tokens of prompts a step takes %v, else %v", busy, idle)
	}
	clock.advance(5 * time.Minute)
	near(t, "step when the prompts are long past", m.Token(&d, 1000, 0).Time, idle, 0.01)
}

// TestShortAnswersPauseMore has an engine generate answers of a second, and another of eight: what computing a prompt takes is a larger part of
// the former. One of which no answer has ended is taken to be as all are.
func TestShortAnswersPauseMore(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	m := NewModel(clock)
	short, long := candidate(endpoint(1, "decode"), 8), candidate(endpoint(2, "decode"), 8)
	fresh := candidate(endpoint(3, "decode"), 8)
	costs := func(c *epp.Candidate) float64 {
		return float64(m.Token(c, 4000, 4000).Time)/float64(m.Token(c, 4000, 0).Time) - 1
	}
	before := costs(&fresh)
	prefill := candidate(endpoint(4, "prefill"), 0)
	for range 60 {
		clock.advance(time.Second)
		served(m, outcome(&short, &prefill, 4000, 0, 200*time.Millisecond, 30*time.Millisecond, 10*time.Millisecond))
		served(m, outcome(&long, &prefill, 4000, 0, 200*time.Millisecond, 30*time.Millisecond, 80*time.Millisecond))
	}
	if s, l := costs(&short), costs(&long); s < 5*l {
		t.Errorf("computing a prompt makes steps %.0f %% longer where answers take a second, %.1f %% where they take eight", 100*s, 100*l)
	}
	if f, l := costs(&fresh), costs(&long); f <= l || before <= 0 {
		t.Errorf("an engine without answers: steps %.1f %% longer, %.1f %% before any had ended; where they take eight seconds %.1f %%", 100*f, 100*before, 100*l)
	}
}

func TestModelKnowsQueues(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	m := NewModel(clock)
	full, empty := candidate(endpoint(1, "decode"), 8), candidate(endpoint(1, "decode"), 8)
	empty.Endpoint = full.Endpoint
	full.Load.Signals.Set(epp.Waiting, 12)
	full.Load.Signals.Set(epp.Delayed, 2)
	if got := m.Queue(&full); got != 10 {
		t.Errorf("%v wait by the page, want 10: two wait only for their KV cache", got)
	}
	m.Sent(outcome(&full, nil, 100, 0, 0, 0, 0).Decision)
	m.Sent(outcome(&empty, nil, 100, 0, 0, 0, 0).Decision)
	if got := m.Queue(&empty); got != 5 {
		t.Errorf("%v wait on average, want 5", got)
	}
	clock.advance(10 * time.Minute)
	if got := m.Queue(&empty); got > 1e-3 {
		t.Errorf("%v wait ten minutes later, want none", got)
	}
}

// TestComputedPromptsAreNotAhead: of the requests in flight to an engine that hands over, those whose prompts are computed delay no others.
func TestComputedPromptsAreNotAhead(t *testing.T) {
	for _, tc := range []struct {
		running, waiting float64
		sent, inFlight   int // requests: when the page was read, and now
		want             int // tokens, of 1,000 for each request
	}{
		{0, 0, 10, 10, 0},
		{1, 2, 10, 10, 3000},
		{1, 2, 10, 12, 5000},
		{30, 5, 10, 10, 10000},
		{0, 0, 0, 4, 4000},
		{0, 0, 0, 0, 0},
	} {
		c := candidate(endpoint(0, "prefill"), tc.running)
		c.Load.Signals.Set(epp.Waiting, tc.waiting)
		c.Load.Sent.Requests, c.InFlight = tc.sent, epp.InFlight{Requests: tc.inFlight, Tokens: 1000 * tc.inFlight}
		if got := aheadOf(c.Load, c.InFlight); got != tc.want {
			t.Errorf("%+v: %d tokens are ahead", tc, got)
		}
	}
	if got := aheadOf(&epp.Load{}, epp.InFlight{Requests: 3, Tokens: 900}); got != 900 {
		t.Errorf("by a page that tells nothing, %d tokens are ahead", got)
	}
}

func TestModelTakesOnlyWhatWentAsPlanned(t *testing.T) {
	d, p := candidate(endpoint(1, "decode"), 8), candidate(endpoint(2, "prefill"), 0)
	for name, spoil := range map[string]func(*epp.Outcome){
		"no decision": func(o *epp.Outcome) { o.Decision = nil },
		"no phases":   func(o *epp.Outcome) { o.Phases = nil },
		"no result":   func(o *epp.Outcome) { o.Result = nil },
		"broken off":  func(o *epp.Outcome) { o.Result.End = pd.EndAborted },
		"fell back": func(o *epp.Outcome) {
			o.Happened = &pd.Result{Verdict: pd.Local, Reason: pd.PrefillFailed, Attempts: 1}
		},
		"second candidate":        func(o *epp.Outcome) { o.Happened = &pd.Result{Verdict: pd.Remote, Attempts: 1, Candidate: 1} },
		"a leg more":              func(o *epp.Outcome) { o.Happened = &pd.Result{Verdict: pd.Remote, Attempts: 2} },
		"another endpoint served": func(o *epp.Outcome) { o.Served = "10.0.0.99:8000" },
		"nothing seen":            func(o *epp.Outcome) { o.Decision.Picks[0].Seen = nil },
	} {
		t.Run(name, func(t *testing.T) {
			m := NewModel(&handClock{now: time.Unix(100, 0)})
			before := m.Prompt(&p, 4000, 0, epp.Loads{})
			o := outcome(&d, &p, 4000, 0, time.Minute, time.Minute, time.Minute)
			spoil(o)
			m.Observe(o)
			if after := m.Prompt(&p, 4000, 0, epp.Loads{}); after != before {
				t.Errorf("the estimate went from %+v to %+v", before, after)
			}
		})
	}
}

// The slot of an endpoint that has left goes to another one, and outcomes of the former may come later.
func TestModelForgetsEndpoints(t *testing.T) {
	m := NewModel(&handClock{now: time.Unix(100, 0)})
	d, old := candidate(endpoint(1, "decode"), 8), candidate(endpoint(2, "prefill"), 0)
	late := outcome(&d, &old, 4000, 0, time.Minute, time.Minute, 20*time.Millisecond)
	served(m, late)
	if m.Prompt(&old, 4000, 0, epp.Loads{}).Known == 0 || m.Handoff(&old, &d, 4000).Known == 0 {
		t.Fatal("nothing was learnt")
	}
	m.EndpointLeft(old.Endpoint)
	next := candidate(endpoint(2, "prefill"), 0)
	if e := m.Prompt(&next, 4000, 0, epp.Loads{}); e.Known != 0 {
		t.Errorf("the next endpoint of the slot has %.1f outcomes", e.Known)
	}
	if e := m.Handoff(&next, &d, 4000); e.Known != 0 {
		t.Errorf("its link has %.1f outcomes", e.Known)
	}
	served(m, outcome(&d, &next, 4000, 0, 200*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond))
	m.EndpointLeft(old.Endpoint) // told late
	m.Observe(late)              // ended late
	if e := m.Prompt(&next, 4000, 0, epp.Loads{}); e.Known == 0 {
		t.Error("the next endpoint of the slot was forgotten for the one before")
	}
}

// An engine whose only outcome was bad gets no more of them if it is avoided for that.
func TestModelGivesAnotherChance(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	m := NewModel(clock)
	d, good, bad := candidate(endpoint(1, "decode"), 8), candidate(endpoint(2, "prefill"), 0), candidate(endpoint(3, "prefill"), 0)
	observe := func(p *epp.Candidate, prompt, handoff time.Duration) {
		clock.advance(time.Second)
		served(m, outcome(&d, p, 4000, 0, prompt, handoff, 20*time.Millisecond))
	}
	for range 50 {
		observe(&good, 200*time.Millisecond, 50*time.Millisecond)
	}
	observe(&bad, time.Minute, 5*time.Second)
	if p, h := m.Prompt(&bad, 4000, 0, epp.Loads{}).Time, m.Handoff(&bad, &d, 4000).Time; p > time.Second || h > 200*time.Millisecond {
		t.Errorf("after one bad outcome a prompt is expected to take %v, and its hand-off %v", p, h)
	}
	for range 600 {
		observe(&good, 200*time.Millisecond, 50*time.Millisecond)
	}
	near(t, "ten minutes later, a prompt", m.Prompt(&bad, 4000, 0, epp.Loads{}).Time, 200*time.Millisecond, 0.2)
	near(t, "and its hand-off", m.Handoff(&bad, &d, 4000).Time, 50*time.Millisecond, 0.2)
}

func TestModelConcurrently(t *testing.T) {
	clock := &handClock{now: time.Unix(100, 0)}
	m := NewModel(clock)
	var working sync.WaitGroup
	for i := range 4 {
		working.Go(func() {
			d, p := candidate(endpoint(1+i, "decode"), 8), candidate(endpoint(10+i, "prefill"), 0)
			for range 200 {
				o := outcome(&d, &p, 1000, 0, 100*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond)
				m.Sent(o.Decision)
				m.Observe(o)
				m.Prompt(&p, 1000, 0, epp.Loads{})
				m.Handoff(&p, &d, 1000)
				m.Token(&d, 1000, 1000)
				m.Queue(&d)
				clock.advance(time.Millisecond)
			}
			m.EndpointLeft(p.Endpoint)
		})
	}
	working.Wait()
}

func BenchmarkObserve(b *testing.B) {
	m := NewModel(epp.SystemClock)
	d, p := candidate(endpoint(1, "decode"), 8), candidate(endpoint(2, "prefill"), 0)
	o := outcome(&d, &p, 4000, 0, 200*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond)
	b.ReportAllocs()
	for b.Loop() {
		m.Observe(o)
	}
}
