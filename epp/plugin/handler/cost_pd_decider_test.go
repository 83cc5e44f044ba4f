package handler

import (
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/pd"
)

// pair is a decode and a prefill endpoint, and what a decider that goes by costs has learnt of them.
type pair struct {
	t               *testing.T
	decider         *byCost
	decode, prefill epp.Candidate
	headers         http.Header
}

func newPair(t *testing.T) *pair {
	one := func(slot int, role string) epp.Candidate {
		e := epp.NewEndpoint("default", role, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(slot)}), 8000), "",
			map[string]string{pd.RoleLabel: role})
		e.Slot = slot
		load := &epp.Load{At: time.Unix(1, 0), Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 20_000}}
		for _, s := range []epp.Signal{epp.Waiting, epp.Delayed, epp.Running, epp.KVUsage} {
			load.Signals.Set(s, 0)
		}
		return epp.Candidate{Endpoint: e, Load: load, Trust: 1}
	}
	return &pair{t, &byCost{TTFTMs: 2000, TPOTMs: 50, model: latency.NewModel(epp.SystemClock)}, one(0, "decode"), one(1, "prefill"), http.Header{}}
}

// learn has requests of several lengths take so long for 1,000 tokens at each of the two, and for the hand-off besides 20 ms.
func (p *pair) learn(local, remote, handoff time.Duration) {
	seen := func(c *epp.Candidate) *epp.Seen { return &epp.Seen{Load: *c.Load} }
	for i := range 40 {
		tokens := 200 + 397*i%8000
		perK := func(d time.Duration) time.Duration { return 10*time.Millisecond + time.Duration(tokens)*d/1000 }
		for _, verdict := range []pd.Verdict{pd.Local, pd.Remote} {
			row, split, phases := epp.DecodeRow("decode"), epp.PrefillRow("prefill", 1), &pd.Phases{}
			d := &epp.Decision{Verdict: verdict, Tokens: tokens, Picks: []epp.StagePick{{Row: &row, Endpoints: []*epp.Endpoint{p.decode.Endpoint}, Seen: seen(&p.decode)}}}
			phases.Set(pd.PhaseFirst, perK(local))
			phases.Set(pd.PhaseDecode, 2*time.Second)
			if verdict == pd.Remote {
				d.Picks = append(d.Picks, epp.StagePick{Row: &split, Endpoints: []*epp.Endpoint{p.prefill.Endpoint}, Seen: seen(&p.prefill)})
				phases.Set(pd.PhasePrefill, perK(remote))
				phases.Set(pd.PhaseFirst, 10*time.Millisecond+perK(handoff))
			}
			sent := *d
			sent.Tokens = 0
			p.decider.model.Sent(&sent)
			p.decider.model.Observe(&epp.Outcome{Decision: d, Phases: phases, Result: &pd.AnswerSummary{End: pd.EndDone, Completion: 101}})
		}
	}
}

// busy has the decode endpoint generate answers, and compute prompts of so many tokens in a second.
func (p *pair) busy(answers, prompts int) {
	p.decode.Load.Signals.Set(epp.Running, float64(answers))
	row := epp.DecodeRow("decode")
	for range 10 {
		p.decider.model.Sent(&epp.Decision{Verdict: pd.Local, Tokens: prompts, Picks: []epp.StagePick{{Row: &row, Endpoints: []*epp.Endpoint{p.decode.Endpoint}}}})
	}
}

func (p *pair) decide(tokens, cached int) epp.Ruling {
	p.t.Helper()
	r := epp.Round{Request: &epp.Request{Headers: p.headers, Prompt: epp.Prompt{Tokens: tokens}}}
	ruling := p.decider.Decide(&epp.Alternatives{Round: &r, Tokens: tokens, Cached: cached, Local: []epp.Candidate{p.decode}, Remote: []epp.Candidate{p.prefill},
		Links: []epp.Link{{}}})
	if ruling.Reason != pd.LowerCost || len(ruling.Costs) != 2 || ruling.Costs[0].Endpoint != p.decode.Endpoint || ruling.Costs[1].Endpoint != p.prefill.Endpoint {
		p.t.Errorf("ruling %+v", ruling)
	}
	return ruling
}

func (p *pair) want(verdict pd.Verdict, what string, tokens, cached int) {
	p.t.Helper()
	if r := p.decide(tokens, cached); r.Verdict != verdict {
		p.t.Errorf("%s: %s, want %s; costs %+v", what, r.Verdict, verdict, r.Costs)
	}
}

const usual = 50 * time.Millisecond // for 1,000 tokens

func TestCostOfShortPrompts(t *testing.T) {
	p := newPair(t)
	p.learn(usual, usual, 5*time.Millisecond)
	p.want(pd.Local, "an idle pair, a long prompt: no hand-off", 4000, 0)
	p.busy(10, 8000)
	p.want(pd.Local, "beside ten answers, a short prompt", 30, 0)
	p.want(pd.Remote, "beside ten answers, a long prompt", 4000, 0)
}

// TestCostOfPrefillAmongAnswers: a prefill endpoint that generates answers has them pause while it computes a prompt, so that costs more than on one that
// only computes prompts.
func TestCostOfPrefillAmongAnswers(t *testing.T) {
	harm := func(role string) time.Duration {
		p := newPair(t)
		p.prefill.Endpoint = epp.NewEndpoint("default", "prefill", p.prefill.Addr, "", map[string]string{pd.RoleLabel: role})
		p.prefill.Slot = 1
		p.learn(usual, usual, 5*time.Millisecond)
		p.prefill.Load.Signals.Set(epp.Running, 20)
		return p.decide(4000, 0).Costs[1].Harm
	}
	if only, both := harm("prefill"), harm("both"); both < only+20*time.Millisecond {
		t.Errorf("a prompt of 4,000 tokens costs others %v on an endpoint that only prefills, %v beside 20 answers", only, both)
	}
}

// TestCostOfLoading: cached tokens that the decode pod must load cost time, but not as much as those that it computes, and they move in a hand-off.
func TestCostOfLoading(t *testing.T) {
	p := newPair(t)
	p.learn(usual, usual, 5*time.Millisecond)
	local := func(cached int, loads epp.Loads) (local, remote time.Duration) {
		r := epp.Round{Request: &epp.Request{Headers: p.headers, Prompt: epp.Prompt{Tokens: 8000}}}
		costs := p.decider.Decide(&epp.Alternatives{Round: &r, Tokens: 8000, Cached: cached, Loads: loads, Local: []epp.Candidate{p.decode},
			Remote: []epp.Candidate{p.prefill}, Links: []epp.Link{{}}}).Costs
		return costs[0].Time, costs[1].Time
	}
	free, without := local(7000, epp.Loads{})
	loaded, with := local(7000, epp.Loads{7000})
	computed, none := local(0, epp.Loads{})
	if loaded < free+20*time.Millisecond || loaded > computed-100*time.Millisecond {
		t.Errorf("cached in the accelerator's memory %v, to be loaded %v, to be computed %v", free, loaded, computed)
	}
	if same := with - none; with < without+20*time.Millisecond || same.Abs() > none/20 {
		t.Errorf("a hand-off costs %v if the accelerator's memory has 7,000 tokens, %v if slower memory has them, %v if nothing has", without, with, none)
	}
}

func TestCostOfWarmPrompts(t *testing.T) {
	p := newPair(t)
	p.learn(usual, usual, 5*time.Millisecond)
	p.busy(10, 8000)
	p.want(pd.Remote, "a first turn", 8000, 0)
	p.want(pd.Local, "a later turn, whose beginning decode has", 8000, 7970)
}

func TestCostOfQueues(t *testing.T) {
	p := newPair(t)
	p.learn(usual, usual, 5*time.Millisecond)
	p.busy(10, 5000)
	p.decode.InFlight.Tokens = 10_000
	p.want(pd.Remote, "prompts wait at decode", 4000, 0)
	p.prefill.InFlight = epp.InFlight{Requests: 10, Tokens: 100_000}
	p.want(pd.Local, "more prompts wait at prefill", 4000, 0)

	p = newPair(t)
	p.learn(usual, usual, 5*time.Millisecond)
	p.want(pd.Local, "nothing waits at decode", 4000, 0)
	p.decode.Load.Signals.Set(epp.Waiting, 5)
	p.want(pd.Remote, "requests wait at decode, which a prompt would delay", 4000, 0)
	p.decode.Load.Signals.Set(epp.Delayed, 5)
	p.want(pd.Local, "they wait only for their KV cache", 4000, 0)
}

func TestCostOfSlowLinks(t *testing.T) {
	for handoff, want := range map[time.Duration]pd.Verdict{5 * time.Millisecond: pd.Remote, 2 * time.Second: pd.Local} {
		p := newPair(t)
		p.learn(usual, usual, handoff)
		p.decode.InFlight.Tokens = 20_000
		p.want(want, fmt.Sprintf("a link that takes %v for 1,000 tokens, and a queue at decode", handoff), 4000, 0)
	}
}

func TestCostOfSlowEngines(t *testing.T) {
	p := newPair(t)
	p.learn(4*usual, usual, 5*time.Millisecond)
	p.want(pd.Remote, "prefill computes four times as fast", 4000, 0)
	p = newPair(t)
	p.learn(usual, 4*usual, 5*time.Millisecond)
	p.busy(4, 0)
	p.want(pd.Local, "decode computes four times as fast", 4000, 0)
}

// TestCostOfWhatClientsWant: the wanted time for each token says how much prefill decode endpoints bear.
func TestCostOfWhatClientsWant(t *testing.T) {
	p := newPair(t)
	p.learn(usual, usual, 5*time.Millisecond)
	p.busy(20, 2000)
	p.want(pd.Local, "tokens may take 50 ms", 1000, 0)
	p.headers.Set(epp.HeaderTPOT, "25")
	p.want(pd.Remote, "tokens are to take 25 ms", 1000, 0)
	p.headers = http.Header{}
	p.headers.Set(epp.HeaderTPOTOld, "25")
	p.want(pd.Remote, "likewise by the older header", 1000, 0)
	for _, bad := range []string{"", "0", "-1", "NaN", "Inf", "1e300", "soon"} {
		p.headers.Set(epp.HeaderTPOTOld, bad)
		p.want(pd.Local, fmt.Sprintf("%q wants nothing", bad), 1000, 0)
	}
}

// TestCostOfFreshPools: before there are outcomes, a pool is taken for a usual one.
func TestCostOfFreshPools(t *testing.T) {
	p := newPair(t)
	p.want(pd.Local, "an idle pair, a short prompt", 100, 0)
	p.busy(60, 10_000)
	p.want(pd.Remote, "a busy decode endpoint, a long prompt", 8000, 0)
}

func TestCostWithoutPrefill(t *testing.T) {
	p := newPair(t)
	p.learn(usual, usual, 5*time.Millisecond)
	ask := func() pd.Verdict {
		r := p.decider.Decide(&epp.Alternatives{Round: &epp.Round{Request: &epp.Request{}}, Tokens: 4000, Local: []epp.Candidate{p.decode}})
		if !r.Reason.Explains(r.Verdict) {
			t.Errorf("%q does not explain %s", r.Reason, r.Verdict)
		}
		return r.Verdict
	}
	if got := ask(); got != pd.Local {
		t.Errorf("decode is idle: %s", got)
	}
	p.decode.InFlight.Tokens = 200_000
	if got := ask(); got != pd.Remote {
		t.Errorf("decode would take too long, so that what is configured for such pools counts: %s", got)
	}
}

func BenchmarkDecideByCost(b *testing.B) {
	p := newPair(&testing.T{})
	p.learn(usual, usual, 5*time.Millisecond)
	r := epp.Round{Request: &epp.Request{Headers: p.headers, Prompt: epp.Prompt{Tokens: 4000}}}
	a := &epp.Alternatives{Round: &r, Tokens: 4000, Local: []epp.Candidate{p.decode}, Remote: []epp.Candidate{p.prefill}, Links: []epp.Link{{}}}
	b.ReportAllocs()
	for b.Loop() {
		p.decider.Decide(a)
	}
}

// choice is pods of which the decider chooses a pair. What each has cached is by its slot.
type choice struct {
	*pair
	local, remote []epp.Candidate
	cached        []int
}

func newChoice(t *testing.T, decodes, prefills int) *choice {
	c := &choice{pair: newPair(t), cached: make([]int, decodes+prefills)}
	c.learn(usual, usual, 5*time.Millisecond)
	more := func(n, slot int, like *epp.Candidate) (all []epp.Candidate) {
		for i := range n {
			one, load := *like, *like.Load
			one.Endpoint = epp.NewEndpoint("default", fmt.Sprintf("%s-%d", like.Endpoint.Name, i),
				netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(slot + i)}), 8000), "", like.Labels)
			one.Slot, one.Load = slot+i, &load
			all = append(all, one)
		}
		return all
	}
	c.local, c.remote = more(decodes, 0, &c.decode), more(prefills, decodes, &c.prefill)
	return c
}

func (c *choice) decide(tokens int) (decode, prefill string, ruling epp.Ruling) {
	for i := range c.local {
		c.local[i].Cached = c.cached[c.local[i].Slot]
	}
	for i := range c.remote {
		c.remote[i].Cached = c.cached[c.remote[i].Slot]
	}
	r := epp.Round{Request: &epp.Request{Headers: c.headers, Prompt: epp.Prompt{Tokens: tokens}}}
	ruling = c.decider.Decide(&epp.Alternatives{Round: &r, Tokens: tokens, Cached: c.local[0].Cached, Local: c.local, Remote: c.remote, Pairs: true})
	decode = c.local[ruling.Local].Name
	if ruling.Verdict == pd.Remote {
		prefill = c.remote[ruling.Remote].Name
	}
	return decode, prefill, ruling
}

// TestCostChoosesThePair: the scorers prefer the first of each role.
func TestCostChoosesThePair(t *testing.T) {
	answers := func(n int, of ...*epp.Candidate) {
		for _, c := range of {
			c.Load.Signals.Set(epp.Running, float64(n))
		}
	}
	for name, tc := range map[string]struct {
		set             func(c *choice)
		decode, prefill string
	}{
		"nothing speaks against the first":           {func(*choice) {}, "decode-0", ""},
		"another decode pod has the beginning":       {func(c *choice) { c.cached[1] = 3900 }, "decode-1", ""},
		"it has the beginning, and more to do":       {func(c *choice) { c.cached[1] = 3900; answers(1, &c.local[1]) }, "decode-0", ""},
		"it has less to do, and lacks the beginning": {func(c *choice) { c.cached[0] = 3900; answers(2, &c.local[0]) }, "decode-0", ""},
		"no decode pod can compute it in time": {func(c *choice) {
			for i := range c.local {
				c.local[i].InFlight.Tokens = 200_000
			}
		}, "decode-0", "prefill-0"},
		"the first prefill pod has a queue": {func(c *choice) {
			for i := range c.local {
				c.local[i].InFlight.Tokens = 200_000
			}
			c.remote[0].InFlight = epp.InFlight{Requests: 4, Tokens: 40_000}
		}, "decode-0", "prefill-1"},
		"a prefill pod has the beginning": {func(c *choice) {
			for i := range c.local {
				c.local[i].InFlight.Tokens = 200_000
			}
			c.cached[4] = 3900
		}, "decode-0", "prefill-2"},
		"the first decode pod is one of many answers": {func(c *choice) { answers(200, &c.local[0], &c.local[1]); answers(199, &c.local[1]) }, "decode-1", "prefill-0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChoice(t, 2, 3)
			tc.set(c)
			decode, prefill, ruling := c.decide(4000)
			if decode != tc.decode || prefill != tc.prefill {
				t.Errorf("%s and %q, want %s and %q; costs %+v", decode, prefill, tc.decode, tc.prefill, ruling.Costs)
			}
		})
	}
}

// BenchmarkDecide: of 100 pods of each role a decider gets the best of each, all of which are idle, so that none is left out.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1, 4, pd.MaxTargets} {
		b.Run(fmt.Sprintf("%dx%d", n, n), func(b *testing.B) {
			c := newChoice(new(testing.T), n, n)
			r := epp.Round{Request: &epp.Request{Headers: c.headers, Prompt: epp.Prompt{Tokens: 4000}}}
			a := &epp.Alternatives{Round: &r, Tokens: 4000, Local: c.local, Remote: c.remote, Pairs: true}
			b.ReportAllocs()
			for b.Loop() {
				c.decider.Decide(a)
			}
		})
	}
}

// TestExcess: what a client minds rises steeply where tokens take as long as it wants, and slowly where no decision can please it.
func TestExcess(t *testing.T) {
	const wanted = 100 * time.Millisecond
	at := func(share float64) float64 { return excess(time.Duration(share*float64(wanted)), wanted) }
	if at(0.5) > 0.01 || at(1) != 1 {
		t.Errorf("half of what is wanted: %v, all of it: %v", at(0.5), at(1))
	}
	for _, step := range []struct{ from, to, slope float64 }{{1, hopeless, steepness}, {hopeless, 5, 1}} {
		if slope := (at(step.to) - at(step.from)) / (step.to - step.from); math.Abs(slope-step.slope) > 1e-6 {
			t.Errorf("from %v to %v the slope is %v, want %v", step.from, step.to, slope, step.slope)
		}
	}
}
