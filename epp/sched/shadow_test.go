package sched_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// compared records what a shadow's watcher is told.
type compared struct {
	mu       sync.Mutex
	all      []sched.Comparison
	outcomes int
	imagine  epp.InFlight // more on each candidate
}

func (c *compared) Imagine(_ time.Time, all []epp.Candidate) {
	for i := range all {
		all[i].InFlight.Requests += c.imagine.Requests
		all[i].InFlight.Tokens += c.imagine.Tokens
	}
}

func (c *compared) Compared(one *sched.Comparison) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, *one)
}

func (c *compared) Observe(*epp.Outcome) { c.outcomes++ }

// watches records picks and outcomes.
type watches struct {
	picked   []*epp.Decision
	outcomes int
}

func (w *watches) Picked(_ *epp.Round, _ []epp.Candidate, d *epp.Decision) {
	w.picked = append(w.picked, d)
}
func (w *watches) Observe(*epp.Outcome) { w.outcomes++ }

// shadowed makes a scheduler that sends everything to prefill, beside which a configuration decides.
func shadowed(t testing.TB, p *pool, live, shadow sched.Config) (*sched.Scheduler, *compared) {
	t.Helper()
	s, told := scheduler(t, p, live), &compared{}
	pipeline, err := sched.NewPipeline(shadow)
	if err != nil {
		t.Fatal(err)
	}
	s.SetShadow(&sched.Shadow{Pipeline: pipeline, Watcher: told})
	return s, told
}

// locally is the usual configuration, but nothing is remote.
func locally() sched.Config {
	c := disagg()
	c.Stages[1].Decider = epp.NamedDecider{Name: "never", Decider: never{}}
	return c
}

// TestShadowHasNoEffect: with a shadow, picks and the load in flight are those without, whatever the shadow decides.
func TestShadowHasNoEffect(t *testing.T) {
	picks := func(with bool) (all []string, load map[string]epp.InFlight) {
		p := fleet(append(times(4, "decode"), times(3, "prefill")...)...)
		s := scheduler(t, p, disagg())
		if with {
			s, _ = shadowed(t, p, disagg(), locally())
		}
		for range 50 {
			d := mustPick(t, s, splitRequest(1000))
			all = append(all, d.Verdict.String(), names(d.First())[0], names(d.Endpoints(epp.StagePrefill))[0])
		}
		return all, inFlight(p)
	}
	without, load := picks(false)
	with, also := picks(true)
	if !slices.Equal(without, with) {
		t.Error("a shadow changes picks")
	}
	if !maps.Equal(load, also) {
		t.Errorf("a shadow changes the load in flight: %v, without %v", also, load)
	}
}

// TestShadowSeesWhatIsSeen: the shadow decides by the load that the pick sees, before that charges it.
func TestShadowSeesWhatIsSeen(t *testing.T) {
	p := fleet("decode", "decode", "prefill")
	s, told := shadowed(t, p, disagg(), locally())
	mustPick(t, s, splitRequest(1000))
	mustPick(t, s, splitRequest(1000))
	if len(told.all) != 2 {
		t.Fatalf("%d comparisons of 2 picks", len(told.all))
	}
	for i, c := range told.all {
		if c.Live.Verdict != pd.Remote || c.Shadow.Verdict != pd.Local || c.Shadow.Reservation != nil {
			t.Errorf("pick %d: live %s, shadow %s", i, c.Live.Verdict, c.Shadow.Verdict)
		}
		if a, b := names(c.Live.First()), names(c.Shadow.First()); i == 1 && !slices.Equal(a, b) { // one of both is idle then
			t.Errorf("the live pick is %v, the shadow's %v: it does not see the same load", a, b)
		}
		if c.Live.Picks[0].Seen == nil || c.Shadow.Picks[0].Seen == nil {
			t.Errorf("pick %d: it is not noted what was seen", i)
		}
	}
}

// TestShadowImaginesLoad: the shadow decides by the load in flight that its watcher imagines, and the configuration in use by what there is.
func TestShadowImaginesLoad(t *testing.T) {
	p := fleet("decode", "prefill")
	s, told := shadowed(t, p, disagg(), disagg())
	told.imagine = epp.InFlight{Requests: 3, Tokens: 700}
	mustPick(t, s, splitRequest(1000))
	c := told.all[0]
	if got := c.Shadow.Picks[0].Seen.InFlight; got != told.imagine {
		t.Errorf("the shadow saw %+v, want %+v", got, told.imagine)
	}
	if got := c.Live.Picks[0].Seen.InFlight; got != (epp.InFlight{}) {
		t.Errorf("the configuration in use saw %+v", got)
	}
}

// TestShadowLearnsWhatHappens: matchers and observers of the shadow are told of the live decisions, and not of its own.
func TestShadowLearnsWhatHappens(t *testing.T) {
	p := fleet("decode", "prefill")
	known, seen := &caches{}, &watches{}
	shadow := locally()
	shadow.Matchers, shadow.Picked, shadow.Observers = []epp.Matcher{known}, []epp.PickObserver{seen}, []epp.Observer{seen}
	s, told := shadowed(t, p, disagg(), shadow)
	if got, want := s.Needs(), known.Needs(); got != want {
		t.Errorf("prompts are cut by %+v, want %+v", got, want)
	}
	d := mustPick(t, s, splitRequest(1000))
	if want := []string{"decode-0", "prefill-1"}; !slices.Equal(known.learnt, want) {
		t.Errorf("the shadow's matcher learnt %v, want %v", known.learnt, want)
	}
	if len(seen.picked) != 1 || seen.picked[0].Verdict != pd.Remote || seen.picked[0] == d {
		t.Errorf("its observer was told of %v, want a copy of the live decision", seen.picked)
	}
	s.Observe(&epp.Outcome{Request: "1", Decision: d})
	runUntilTold(t, s)
	if seen.outcomes != 1 || told.outcomes != 1 {
		t.Errorf("%d and %d outcomes were told, want 1 each", seen.outcomes, told.outcomes)
	}
	s.SetShadow(nil)
	mustPick(t, s, splitRequest(1000))
	if len(told.all) != 1 || len(seen.picked) != 1 {
		t.Error("a shadow that was removed is still told")
	}
}

// TestShadowOfRefusals: a request that one of the two refuses is compared too.
func TestShadowOfRefusals(t *testing.T) {
	p := fleet("decode", "prefill")
	refusing := disagg()
	refusing.Profiles[0].Filters = append(refusing.Profiles[0].Filters, epp.NamedFilter{Name: "none", Filter: only(func(*epp.Round, *epp.Candidate) bool { return false })})
	s, told := shadowed(t, p, disagg(), refusing)
	mustPick(t, s, splitRequest(1000))
	if c := told.all[0]; c.Live == nil || c.Shadow != nil {
		t.Errorf("the shadow refuses: %+v", c)
	}
	s, told = shadowed(t, p, refusing, disagg())
	if _, err := s.Pick(t.Context(), splitRequest(1000)); err == nil {
		t.Fatal("the live configuration does not refuse")
	}
	if c := told.all[0]; c.Live != nil || c.Shadow == nil {
		t.Errorf("the live configuration refuses: %+v", c)
	}
}

func BenchmarkPickWithShadow(b *testing.B) {
	p := fleet(append(times(50, "decode"), times(50, "prefill")...)...)
	s, _ := shadowed(b, p, disagg(), locally())
	s.SetShadow(&sched.Shadow{Pipeline: pipelineOf(b, locally()), Watcher: discards{}})
	r := splitRequest(4000)
	b.ReportAllocs()
	for b.Loop() {
		mustPick(b, s, r).Reservation.End()
	}
}

// discards is a watcher that does nothing.
type discards struct{}

func (discards) Compared(*sched.Comparison)         {}
func (discards) Observe(*epp.Outcome)               {}
func (discards) Imagine(time.Time, []epp.Candidate) {}

func pipelineOf(t testing.TB, c sched.Config) *sched.Pipeline {
	t.Helper()
	p, err := sched.NewPipeline(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// runUntilTold has the observers be told all outcomes.
func runUntilTold(t *testing.T, s *sched.Scheduler) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	s.Run(ctx) // it ends when all that came before are told
}
