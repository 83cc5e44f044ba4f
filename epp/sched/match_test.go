package sched_test

import (
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/producer"
	"github.com/tandem-serving/tandem/pd"
)

// cutter is a matcher with blocks of its own, that records the prompts that it is given.
type cutter struct {
	*caches
	spec   epp.PromptSpec
	blocks [][]uint64 // of each prompt that it matched or learned
}

func (c *cutter) Needs() epp.PromptSpec { return c.spec }

func (c *cutter) Match(r *epp.Request, p *epp.Prompt, all []epp.Candidate) int {
	c.blocks = append(c.blocks, slices.Clone(p.Blocks))
	return c.caches.Match(r, p, all)
}

func (c *cutter) Learn(r *epp.Request, p *epp.Prompt, e *epp.Endpoint, load *epp.Load) {
	c.blocks = append(c.blocks, slices.Clone(p.Blocks))
	c.caches.Learn(r, p, e, load)
}

// numbered is a request of 100 tokens, whose six blocks of 16 have the hashes 1 to 6.
func numbered() *epp.Request {
	r := splitRequest(100)
	for i := range r.Prompt.Blocks {
		r.Prompt.Blocks[i] = uint64(i + 1)
	}
	return r
}

// share rates endpoints by how much of the prompt they have cached, as one matcher knows it.
func share(m epp.Matcher) epp.NamedScorer {
	return epp.NamedScorer{Name: "share", Weight: 1, Scorer: by(func(r *epp.Round, c *epp.Candidate) float64 {
		found := r.Found(m)
		return float64(found.Of(c)) / float64(found.Whole)
	})}
}

// reading is a decider that wants to know what a matcher has found.
type reading struct {
	*says
	from epp.Matcher
}

func (d reading) Reads() epp.Matcher { return d.from }

func TestSeveralMatchers(t *testing.T) {
	fine := func() *caches { return &caches{cached: map[string]int{"decode-0": 48, "prefill-2": 16}} }
	coarse := func() *cutter {
		return &cutter{caches: &caches{cached: map[string]int{"decode-1": 32, "prefill-2": 32}}, spec: epp.PromptSpec{Tokens: 32, Max: 2}}
	}
	for _, tc := range []struct {
		name           string
		scores, decide int // 0: by default; 1, 2: by the first or the second matcher
		charges        int
		decode         string
		cached, tokens int // as the decision says, and as they are charged to the prefill endpoint
	}{
		{"no plugin names one", 0, 0, 0, "decode-0", 48, 84},
		{"the first is named", 1, 1, 1, "decode-0", 48, 84},
		{"the scorer names the second", 2, 0, 0, "decode-1", 0, 84},
		{"the decider, too", 2, 2, 0, "decode-1", 32, 84},
		{"the decider alone", 0, 2, 0, "decode-0", 0, 84},
		{"the charge", 0, 0, 2, "decode-0", 48, 68},
	} {
		t.Run(tc.name, func(t *testing.T) {
			one, two := fine(), coarse()
			by := []epp.Matcher{nil, one, two}
			decider := reading{&says{verdict: pd.Remote, reason: pd.Uncached}, by[tc.decide]}
			c := disagg()
			c.Matchers = []epp.Matcher{one, two}
			c.Profiles[0].Scorers = []epp.NamedScorer{share(by[tc.scores])}
			c.Stages[1].Decider.Decider = decider
			c.Charge.Matcher = by[tc.charges]
			p := fleet("decode", "decode", "prefill")
			d := mustPick(t, scheduler(t, p, c), numbered())
			if got := d.Picks[0].Endpoints[0].Name; got != tc.decode || d.Cached != tc.cached || decider.asked[0].Cached != tc.cached {
				t.Errorf("%s decodes, %d tokens are cached, the decider was told %v; want %s and %d", got, d.Cached, decider.asked, tc.decode, tc.cached)
			}
			if got := inFlight(p)["prefill-2"].Tokens; got != tc.tokens {
				t.Errorf("%d tokens are charged, want %d", got, tc.tokens)
			}
			if want := []string{tc.decode, "prefill-2"}; !slices.Equal(one.learnt, want) || !slices.Equal(two.learnt, want) {
				t.Errorf("learnt %v and %v, want %v", one.learnt, two.learnt, want)
			}
			if want := [][]uint64{{2, 4}, {2, 4}, {2, 4}}; !reflect.DeepEqual(two.blocks, want) {
				t.Errorf("the second matcher saw the blocks %v, want %v", two.blocks, want)
			}
		})
	}
}

// loader is a matcher that says of cached tokens that some are to be loaded.
type loader struct {
	*caches
	loads map[string]epp.Loads // by endpoint name
}

func (l *loader) Match(r *epp.Request, p *epp.Prompt, c []epp.Candidate) int {
	for i := range c {
		c[i].Loads = l.loads[c[i].Name]
	}
	return l.caches.Match(r, p, c)
}

// TestLoads: what a matcher says is to be loaded belongs to what it says is cached, and to that of no other matcher.
func TestLoads(t *testing.T) {
	for _, tc := range []struct {
		name    string
		decides int // the first or the second matcher
		want    epp.Loads
	}{{"by the first", 0, epp.Loads{}}, {"by the second", 1, epp.Loads{16, 0, 16}}} {
		t.Run(tc.name, func(t *testing.T) {
			matchers := []epp.Matcher{&caches{cached: map[string]int{"decode-0": 48}},
				&loader{&caches{cached: map[string]int{"decode-0": 64}}, map[string]epp.Loads{"decode-0": {16, 0, 16}}}}
			asked := &loadsAsked{}
			c := disagg()
			c.Matchers = matchers
			c.Stages[1].Decider.Decider = reads{asked, matchers[tc.decides]}
			d := mustPick(t, scheduler(t, fleet("decode", "prefill"), c), numbered())
			if d.Loads != tc.want || asked.loads != tc.want {
				t.Errorf("the decision says %v, the decider was told %v, want %v", d.Loads, asked.loads, tc.want)
			}
			if want := 100 - d.Cached + tc.want.Sum(); d.Moved() != want {
				t.Errorf("%d tokens would move, want %d", d.Moved(), want)
			}
		})
	}
}

// loadsAsked is a decider that notes what is to be loaded.
type loadsAsked struct{ loads epp.Loads }

func (d *loadsAsked) Decide(a *epp.Alternatives) epp.Ruling {
	d.loads = a.Loads
	return epp.Ruling{Verdict: pd.Local, Reason: pd.BelowThreshold}
}

type reads struct {
	*loadsAsked
	from epp.Matcher
}

func (d reads) Reads() epp.Matcher { return d.from }

// TestNeedsOfSeveralMatchers: prompts are cut so that the blocks of every matcher can be put together, and the most token ids are kept.
func TestNeedsOfSeveralMatchers(t *testing.T) {
	for _, tc := range []struct {
		name  string
		specs []epp.PromptSpec
		want  epp.PromptSpec
	}{
		{"one", []epp.PromptSpec{{Tokens: 64, Max: 100}}, epp.PromptSpec{Tokens: 64, Max: 100}},
		{"equal", []epp.PromptSpec{{Tokens: 16, Max: 10}, {Tokens: 16, Max: 20}}, epp.PromptSpec{Tokens: 16, Max: 20}},
		{"multiples", []epp.PromptSpec{{Tokens: 64, Max: 10}, {Tokens: 16, Max: 20}}, epp.PromptSpec{Tokens: 16, Max: 40}},
		{"neither divides the other", []epp.PromptSpec{{Tokens: 24, Max: 10}, {Tokens: 16, Max: 10}}, epp.PromptSpec{Tokens: 8, Max: 30}},
		{"one wants none", []epp.PromptSpec{{}, {Tokens: 16, Max: 10}}, epp.PromptSpec{Tokens: 16, Max: 10}},
		{"token ids", []epp.PromptSpec{{Tokens: 16, Max: 10}, {IDs: 100}, {IDs: 50}}, epp.PromptSpec{Tokens: 16, Max: 10, IDs: 100}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := disagg()
			for _, spec := range tc.specs {
				c.Matchers = append(c.Matchers, &cutter{caches: &caches{}, spec: spec})
			}
			if got := scheduler(t, fleet(), c).Needs(); got != tc.want {
				t.Errorf("needs %+v, want %+v", got, tc.want)
			}
		})
	}
}

// TestMatchersOverReloads: a prompt that was cut for the matchers of an earlier configuration matches where it can.
func TestMatchersOverReloads(t *testing.T) {
	for _, tc := range []struct {
		name     string
		cut      int // tokens in a block of the prompt
		one, two int // tokens that the matchers find at decode-0
	}{
		{"both can", 16, 48, 32},
		{"only the longer blocks can be made", 32, 0, 32},
		{"none can", 64, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			one := &caches{cached: map[string]int{"decode-0": 48}}
			two := &cutter{caches: &caches{cached: map[string]int{"decode-0": 32}}, spec: epp.PromptSpec{Tokens: 32, Max: 100}}
			c := disagg()
			c.Matchers = []epp.Matcher{one, two}
			var first, second int
			c.Profiles[0].Scorers = []epp.NamedScorer{{Name: "look", Weight: 1, Scorer: by(func(r *epp.Round, c *epp.Candidate) float64 {
				a, b := r.Found(one), r.Found(two)
				first, second = a.Of(c), b.Of(c)
				return 0
			})}}
			r := splitRequest(256)
			r.Prompt.BlockTokens = tc.cut
			mustPick(t, scheduler(t, fleet("decode"), c), r)
			if first != tc.one || second != tc.two {
				t.Errorf("%d and %d tokens are found, want %d and %d", first, second, tc.one, tc.two)
			}
		})
	}
}

// TestBurst: concurrent requests with the same prompt are placed together, as many at an endpoint as may be.
func TestBurst(t *testing.T) {
	const requests = 32
	for _, tc := range []struct{ most, endpoints int }{{-1, 1}, {16, 2}, {8, 4}} {
		parameters := producer.NewBurstPrefixCache().(*producer.BurstPrefixCache)
		parameters.MaxPerReplica, parameters.WindowDurationMs = tc.most, 60_000
		built, err := parameters.Build(&epp.Builder{})
		if err != nil {
			t.Fatal(err)
		}
		burst := built.(interface {
			epp.Matcher
			epp.Preparer
		})
		c := disagg()
		c.Matchers = []epp.Matcher{&caches{}, burst}
		c.Preparers = []epp.NamedPreparer{{Name: "burst", Preparer: burst}}
		c.Profiles[0].Scorers = append(c.Profiles[0].Scorers, share(burst))
		c.Profiles[0].Scorers[1].Weight = 10
		c.Profiles[0].Scorers = append(c.Profiles[0].Scorers, epp.NamedScorer{Name: "yields", Scorer: by(func(*epp.Round, *epp.Candidate) float64 {
			for range 20 { // so that picks overlap, unless they take turns
				runtime.Gosched()
			}
			return 0
		})})
		p := fleet(times(4, "decode")...)
		s := scheduler(t, p, c)
		var work sync.WaitGroup
		for range requests {
			work.Go(func() {
				if _, err := s.Pick(t.Context(), splitRequest(200)); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		got := inFlight(p)
		if len(got) != tc.endpoints {
			t.Errorf("at most %d at an endpoint: placed at %v", tc.most, got)
		}
		for name, f := range got {
			if f.Requests != requests/tc.endpoints {
				t.Errorf("at most %d at an endpoint: %s has %d", tc.most, name, f.Requests)
			}
		}
	}
}

// BenchmarkPickTwoMatchers is BenchmarkPick with a second prefix index, for 100 endpoints.
func BenchmarkPickTwoMatchers(b *testing.B) {
	c := production(b)
	c.Stale = time.Hour
	c.Matchers = append(c.Matchers, instance[epp.Matcher](b, "approx-prefix-cache-producer"))
	s := scheduler(b, half(100), c)
	requests := []*epp.Request{kilobyte(c, 0), kilobyte(c, 1)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		mustPick(b, s, requests[i%2]).Reservation.End()
	}
}
