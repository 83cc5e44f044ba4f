package sched_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// ratings is a scorer by the name of the endpoint. What it says may lie outside 0..1, or be no number; zeros it leaves as
// they are.
type ratings map[string]float64

func (s ratings) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	for i := range c {
		if score := s[c[i].Name]; score != 0 {
			scores[i] = score
		}
	}
}

// world is a random pool, configuration and request, and the total of every endpoint as plainly as it can be computed.
type world struct {
	pool    *pool
	config  sched.Config
	request *epp.Request
	subset  map[string]bool // allowed endpoints by name
	banned  map[string]bool // endpoints that a filter drops
	totals  map[string]float64
}

func newWorld(rnd *rand.Rand) *world {
	w := &world{request: splitRequest(rnd.IntN(1000)),
		subset: map[string]bool{}, banned: map[string]bool{}, totals: map[string]float64{}}
	var roles []string
	for range rnd.IntN(20) {
		roles = append(roles, []string{"decode", "prefill", "prefill-decode", "encode"}[rnd.IntN(4)])
	}
	w.pool, w.config = fleet(roles...), disagg()
	w.config.Seed = rnd.Uint64() | 1
	w.config.Stages[1].Endpoints = 1 + rnd.IntN(4)
	w.config.Profiles[0].Picker = highest(1 + rnd.IntN(3))

	var allowed []string
	var scorers []epp.NamedScorer
	for i := range rnd.IntN(4) {
		scorers = append(scorers, epp.NamedScorer{Name: fmt.Sprint("scorer-", i), Weight: float64(rnd.IntN(4)), Scorer: ratings{}})
	}
	for _, e := range w.pool.Snapshot().Endpoints {
		w.banned[e.Name] = rnd.IntN(4) == 0
		if rnd.IntN(3) > 0 {
			allowed = append(allowed, e.Address)
			w.subset[e.Name] = true
		}
		for _, s := range scorers {
			score := []float64{0, 0.25, 0.5, 1, 7, -3, math.NaN(), math.Inf(1), math.Inf(-1)}[rnd.IntN(9)]
			s.Scorer.(ratings)[e.Name] = score
			switch {
			case math.IsNaN(score) || score < 0:
			default:
				w.totals[e.Name] += s.Weight * math.Min(score, 1)
			}
		}
	}
	if rnd.IntN(2) == 0 {
		w.request.Subset = epp.NewSubset(allowed...)
	} else {
		w.subset = nil
	}
	ban := only(func(_ *epp.Round, c *epp.Candidate) bool { return !w.banned[c.Name] })
	for i := range w.config.Profiles {
		w.config.Profiles[i].Filters = append(w.config.Profiles[i].Filters, epp.NamedFilter{Name: "ban", Filter: ban})
		w.config.Profiles[i].Scorers = scorers
	}
	return w
}

// may returns the endpoints that may be chosen for a role.
func (w *world) may(serves pd.Role, not string) (names []string) {
	for _, e := range w.pool.Snapshot().Endpoints {
		if e.Role.Has(serves) && !w.banned[e.Name] && (w.subset == nil || w.subset[e.Name]) && e.Name != not {
			names = append(names, e.Name)
		}
	}
	return names
}

// check checks that as many as wanted were chosen, each once, from the allowed ones: those with the highest totals, in order.
func (w *world) check(stage string, chosen, may []string, wanted int) error {
	if len(chosen) != min(wanted, len(may)) {
		return fmt.Errorf("%s: %v were chosen, want %d of %v", stage, chosen, wanted, may)
	}
	totals := make([]float64, len(may))
	for i, name := range may {
		totals[i] = w.totals[name]
	}
	slices.SortFunc(totals, func(a, b float64) int { return cmp.Compare(b, a) })
	seen := map[string]bool{}
	for i, name := range chosen {
		if !slices.Contains(may, name) || seen[name] {
			return fmt.Errorf("%s: %s in %v is chosen twice, or may not be: %v", stage, name, chosen, may)
		}
		seen[name] = true
		if w.totals[name] != totals[i] {
			return fmt.Errorf("%s: choice %d of %v has total %v, want %v", stage, i, chosen, w.totals[name], totals[i])
		}
	}
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestChoices(t *testing.T) {
	served, refused, split := 0, 0, 0
	for seed := range uint64(3000) {
		w := newWorld(rand.New(rand.NewPCG(seed, 0)))
		mayDecode := w.may(pd.RoleDecode, "")
		d, err := scheduler(t, w.pool, w.config).Pick(t.Context(), w.request)
		if err != nil {
			refused++
			if len(mayDecode) > 0 {
				t.Fatalf("seed %d: refused by %v, though %v may decode", seed, err, mayDecode)
			}
			continue
		}
		served++
		if err := w.check("decode", names(d.Endpoints(epp.StageDecode)), mayDecode, w.config.Profiles[0].Picker.Endpoints()); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		mayPrefill := w.may(pd.RolePrefill, d.Endpoints(epp.StageDecode)[0].Name)
		if err := w.check("prefill", names(d.Endpoints(epp.StagePrefill)), mayPrefill, w.config.Stages[1].Endpoints); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if remote := d.Verdict == pd.Remote; remote != (len(mayPrefill) > 0) {
			t.Fatalf("seed %d: %s, though %v may prefill", seed, d.Verdict, mayPrefill)
		}
		split += btoi(len(d.Endpoints(epp.StagePrefill)) > 0)
	}
	if served < 500 || refused < 100 || split < 500 {
		t.Errorf("only %d served, %d refused, %d split: the worlds are too much alike", served, refused, split)
	}
}

// TestSeeds: the same seed gives the same picks in the same order, and another seed does not.
func TestSeeds(t *testing.T) {
	run := func(seed uint64) (picked []string) {
		c := disagg()
		c.Seed = seed
		s := scheduler(t, fleet(append(times(16, "decode"), times(16, "prefill")...)...), c)
		for range 20 {
			d := mustPick(t, s, splitRequest(100))
			picked = append(picked, fmt.Sprint(names(d.Endpoints(epp.StageDecode)), names(d.Endpoints(epp.StagePrefill))))
			d.Reservation.End()
		}
		return picked
	}
	if a, b := run(42), run(42); !slices.Equal(a, b) {
		t.Errorf("the same seed gave %v and %v", a, b)
	}
	if a, b := run(42), run(43); slices.Equal(a, b) {
		t.Errorf("two seeds both gave %v", a)
	}
	if a, b := run(0), run(0); slices.Equal(a, b) {
		t.Errorf("two pipelines without a seed both gave %v", a)
	}
}

// TestDrawIsFair counts, under a fixed seed, whom chance prefers among equals.
func TestDrawIsFair(t *testing.T) {
	const endpoints, each = 8, 1000
	c := disagg()
	c.Profiles[0].Scorers = nil
	s := scheduler(t, fleet(times(endpoints, "decode")...), c)
	drawn := map[string]int{}
	follows := map[[2]string]int{} // pairs of one draw and the next
	last := ""
	for range endpoints * each {
		d := mustPick(t, s, splitRequest(10))
		drawn[d.Endpoints(epp.StageDecode)[0].Name]++
		follows[[2]string{last, d.Endpoints(epp.StageDecode)[0].Name}]++
		last = d.Endpoints(epp.StageDecode)[0].Name
	}
	// 1000 ± 5 standard deviations of 30, and 125 ± 5 of 11.
	for name, n := range drawn {
		if n < each-150 || n > each+150 {
			t.Errorf("%s was drawn %d times, want about %d", name, n, each)
		}
	}
	delete(follows, [2]string{"", ""})
	for pair, n := range follows {
		if pair[0] != "" && (n < each/endpoints-55 || n > each/endpoints+55) {
			t.Errorf("%v was drawn %d times, want about %d", pair, n, each/endpoints)
		}
	}
	if len(drawn) != endpoints || len(follows) < endpoints*endpoints {
		t.Errorf("%d endpoints and %d pairs were drawn, want all", len(drawn), len(follows))
	}
}

// TestUnreachableComesLast: an unreachable endpoint looks idle. It is still a candidate, the last one, because it may be
// reachable again by now. If all prefill endpoints are unreachable, decode computes the prompt, unless the client does not allow it.
func TestUnreachableComesLast(t *testing.T) {
	for name, c := range map[string]struct {
		mode         pd.Mode
		absent, want []string
	}{
		"one":                   {pd.ModeAuto, []string{"decode-0", "prefill-2"}, []string{"decode-1", "decode-0", "prefill-3", "prefill-2"}},
		"all decode":            {pd.ModeAuto, []string{"decode-0", "decode-1"}, []string{"decode-0", "decode-1", "prefill-2", "prefill-3"}},
		"all prefill":           {pd.ModeAuto, []string{"prefill-2", "prefill-3"}, []string{"decode-0", "decode-1"}},
		"all prefill, fallback": {pd.ModeForceFallback, []string{"prefill-2", "prefill-3"}, []string{"decode-0", "decode-1"}},
		"all prefill, forced":   {pd.ModeForce, []string{"prefill-2", "prefill-3"}, []string{"decode-0", "decode-1", "prefill-2", "prefill-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := fleet("decode", "decode", "prefill", "prefill")
			snapshot := p.Snapshot()
			for i, e := range snapshot.Endpoints {
				snapshot.Loads[i].Unreachable = slices.Contains(c.absent, e.Name)
			}
			cfg := disagg()
			for i := range cfg.Profiles {
				cfg.Profiles[i].Picker = highest(2)
				cfg.Profiles[i].Scorers = []epp.NamedScorer{{Name: "first", Weight: 1, Scorer: by(func(_ *epp.Round, c *epp.Candidate) float64 {
					return 1 - float64(c.Slot)/10
				})}}
			}
			s := scheduler(t, p, cfg)
			r := splitRequest(1000)
			r.Mode = c.mode
			d := mustPick(t, s, r)
			if got := names(slices.Concat(d.Endpoints(epp.StageDecode), d.Endpoints(epp.StagePrefill))); !slices.Equal(got, c.want) {
				t.Errorf("chose %v, want %v", got, c.want)
			}
		})
	}
}

func TestSubsetGoesByPort(t *testing.T) {
	p := fleet("decode", "decode", "prefill", "prefill")
	r := splitRequest(100)
	r.Subset = epp.NewSubset("10.0.0.1:8000", "10.0.0.0:9999", "10.0.0.3")
	s := scheduler(t, p, disagg())
	for range 20 {
		d := mustPick(t, s, r)
		if got := names(append(d.Endpoints(epp.StageDecode), d.Endpoints(epp.StagePrefill)...)); !slices.Equal(got, []string{"decode-1", "prefill-3"}) {
			t.Fatalf("picked %v, want decode-1 and prefill-3", got)
		}
	}
}

// TestRound: what plugins find in a Round.
func TestRound(t *testing.T) {
	p, c, r := fleet("prefill-decode", "prefill-decode", "prefill-decode"), disagg(), splitRequest(100)
	var rounds []epp.Round
	note := by(func(round *epp.Round, c *epp.Candidate) float64 {
		if c.Load == nil || c.Trust != 1 || round.Rand == nil || round.Request != r || round.Now.IsZero() {
			t.Errorf("round %+v, candidate %+v", round, c)
		}
		if round.Chosen(epp.StageDecode) == c.Endpoint {
			t.Errorf("the decode endpoint is a candidate for prefill")
		}
		rounds = append(rounds, *round)
		return 0
	})
	for i := range c.Profiles {
		c.Profiles[i].Scorers = []epp.NamedScorer{{Name: "note", Weight: 1, Scorer: note}}
	}
	d := mustPick(t, scheduler(t, p, c), r)
	if len(rounds) != 3+2 || len(d.Endpoints(epp.StagePrefill)) != 2 {
		t.Fatalf("%d candidates were rated, want 3 for decode and 2 for prefill; chosen: %v", len(rounds), names(d.Endpoints(epp.StagePrefill)))
	}
	for i, round := range rounds {
		stage, decode := epp.StageDecode, (*epp.Endpoint)(nil)
		if i >= 3 {
			stage, decode = epp.StagePrefill, d.Endpoints(epp.StageDecode)[0]
		}
		if round.Stage != stage || round.Chosen(epp.StageDecode) != decode || !round.Now.Equal(rounds[0].Now) {
			t.Errorf("candidate %d was rated in round %+v", i, round)
		}
	}
}

// TestSwapUnderLoad: every pick is made with one pipeline as a whole, whichever is replaced meanwhile.
func TestSwapUnderLoad(t *testing.T) {
	p := fleet("decode", "decode", "prefill", "prefill")
	pipelines := make([]*sched.Pipeline, 2)
	for i, decider := range []epp.Decider{always{}, never{}} {
		c := disagg()
		c.Stages[1].Decider.Decider = decider
		c.Stages[1].Endpoints = 1 + i
		// The first pipeline decodes on decode-0 only, the second on decode-1.
		mine := only(func(_ *epp.Round, c *epp.Candidate) bool { return c.Name == fmt.Sprint("decode-", i) })
		c.Profiles[0].Filters = append(c.Profiles[0].Filters, epp.NamedFilter{Name: "mine", Filter: mine})
		pipeline, err := sched.NewPipeline(c)
		if err != nil {
			t.Fatal(err)
		}
		pipelines[i] = pipeline
	}
	s := sched.New(p, epp.SystemClock)
	s.Swap(pipelines[0])
	var seen sync.Map
	var load sync.WaitGroup
	for range 8 {
		load.Go(func() {
			for range 300 {
				d, err := s.Pick(t.Context(), splitRequest(100))
				if err != nil {
					t.Error(err)
					return
				}
				seen.Store(fmt.Sprint(d.Endpoints(epp.StageDecode)[0].Name, " ", d.Verdict, " ", len(d.Endpoints(epp.StagePrefill))), true)
				d.Reservation.End()
				if _, err := s.Explain(t.Context(), splitRequest(100)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 300 {
		if old := s.Swap(pipelines[(i+1)%2]); old != pipelines[i%2] {
			t.Errorf("swap %d gave another pipeline than the one in use", i)
		}
	}
	load.Wait()
	whole := map[any]bool{"decode-0 remote 1": true, "decode-1 local 0": true}
	seen.Range(func(got, _ any) bool {
		if !whole[got] {
			t.Errorf("a pick was made with parts of two pipelines: %v", got)
		}
		return true
	})
	if left := inFlight(p); len(left) > 0 {
		t.Errorf("after all ends %v is charged", left)
	}
}

// TestPickAllocates bounds what a pick that finds its memory in the pool allocates; the race detector and the garbage
// collector empty the pool now and then, hence the least of many.
func TestPickAllocates(t *testing.T) {
	c := production(t)
	s, r := scheduler(t, half(100), c), kilobyte(c, 1)
	least := math.Inf(1)
	for range 50 {
		least = min(least, testing.AllocsPerRun(1, func() { mustPick(t, s, r).Reservation.End() }))
	}
	if least > 5 {
		t.Errorf("a pick allocates %v times, want 5 at most", least)
	}
}

// TestExplainIsTheNextPick: an explanation decides as the next pick does, and leaves nothing behind.
func TestExplainIsTheNextPick(t *testing.T) {
	for seed := range uint64(300) {
		w := newWorld(rand.New(rand.NewPCG(seed, 1)))
		s := scheduler(t, w.pool, w.config)
		explained, err := s.Explain(t.Context(), w.request)
		again, errAgain := s.Explain(t.Context(), w.request)
		if !reflect.DeepEqual(explained.Endpoints(epp.StageDecode), again.Endpoints(epp.StageDecode)) || fmt.Sprint(err) != fmt.Sprint(errAgain) {
			t.Fatalf("seed %d: explained twice: %v and %v", seed, names(explained.Endpoints(epp.StageDecode)), names(again.Endpoints(epp.StageDecode)))
		}
		if left := inFlight(w.pool); len(left) > 0 || explained.Reservation != nil {
			t.Fatalf("seed %d: an explanation charges %v", seed, left)
		}
		d, errPick := s.Pick(t.Context(), w.request)
		if fmt.Sprint(err) != fmt.Sprint(errPick) {
			t.Fatalf("seed %d: explained %v, picked %v", seed, err, errPick)
		}
		if d == nil {
			continue
		}
		d.Reservation, explained.Trace = nil, nil
		if !reflect.DeepEqual(d, explained) {
			t.Fatalf("seed %d: explained %+v, picked %+v", seed, explained, d)
		}
	}
}
