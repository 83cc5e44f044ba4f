package sched_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// found is what a lookup attaches to a request.
type found struct{ text string }

// lookup is a preparer that takes some time to find something.
type lookup struct {
	takes, timeout time.Duration
	add            func(*epp.Request)
	err            error
}

func (l lookup) Timeout() time.Duration { return l.timeout }

func (l lookup) Prepare(ctx context.Context, _ *epp.Request) (func(*epp.Request), error) {
	done := time.NewTimer(l.takes)
	defer done.Stop()
	select {
	case <-done.C:
		return l.add, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestPreparers(t *testing.T) {
	tokens := func(r *epp.Request) { r.Prompt.Tokens = 7 }
	attach := func(text string) func(*epp.Request) { return func(r *epp.Request) { epp.Attach(r, found{text}) } }
	for name, tc := range map[string]struct {
		preparers []lookup
		tokens    int
		attached  string
		takes     time.Duration
		failed    map[string]float64
	}{
		"none":           {nil, 100, "", 0, nil},
		"one":            {[]lookup{{time.Second, time.Minute, tokens, nil}}, 7, "", time.Second, nil},
		"all at once":    {[]lookup{{time.Second, time.Minute, tokens, nil}, {2 * time.Second, time.Minute, attach("x"), nil}}, 7, "x", 2 * time.Second, nil},
		"in their order": {[]lookup{{2 * time.Second, time.Minute, attach("x"), nil}, {time.Second, time.Minute, attach("y"), nil}}, 100, "y", 2 * time.Second, nil},
		"nothing found":  {[]lookup{{time.Second, time.Minute, nil, nil}}, 100, "", time.Second, nil},
		"one fails": {[]lookup{{time.Second, time.Minute, tokens, errors.New("broken")}, {0, time.Minute, attach("x"), nil}}, 100, "x", time.Second,
			map[string]float64{"a": 1}},
		"one is late": {[]lookup{{0, time.Minute, attach("x"), nil}, {time.Hour, 3 * time.Second, tokens, nil}}, 100, "x", 3 * time.Second,
			map[string]float64{"b": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry := prometheus.NewRegistry()
				c := disagg()
				c.Metrics = sched.NewMetrics(registry)
				for i, l := range tc.preparers {
					c.Preparers = append(c.Preparers, epp.NamedPreparer{Name: string(rune('a' + i)), Preparer: l})
				}
				s, r, began := scheduler(t, fleet("decode", "prefill"), c), splitRequest(100), time.Now()
				d := mustPick(t, s, r)
				if took := time.Since(began); took != tc.takes {
					t.Errorf("the pick took %v, want %v", took, tc.takes)
				}
				if got, _ := epp.Attached[found](r); d.Tokens != tc.tokens || got.text != tc.attached {
					t.Errorf("%d tokens and %q, want %d and %q", d.Tokens, got.text, tc.tokens, tc.attached)
				}
				for plugin, want := range tc.failed {
					if got := counted(t, registry, "tandem_preparer_failures_total", plugin); got != want {
						t.Errorf("%s failed %v times, want %v", plugin, got, want)
					}
				}
				explained, err := s.Explain(t.Context(), splitRequest(100))
				if err != nil || len(explained.Trace.Preparers) != len(tc.preparers) {
					t.Fatalf("the trace tells of %+v, %v", explained.Trace, err)
				}
				for _, p := range explained.Trace.Preparers {
					if (p.Error != "") != (tc.failed[p.Preparer] > 0) {
						t.Errorf("%s: error %q", p.Preparer, p.Error)
					}
				}
			})
		})
	}
}

// gate is an admission that waits for a word, and may refuse.
type gate struct {
	words  chan error
	picked []epp.InFlight // load of the first endpoint whenever a pick had ended
	pool   *pool
}

// passed is what the admission notes.
var passed = epp.Pass{Note: 7, Waited: time.Second}

func (g *gate) Admit(ctx context.Context, _ *epp.Request) (epp.Pass, error) {
	select {
	case err := <-g.words:
		return passed, err
	case <-ctx.Done():
		return epp.Pass{}, pd.Refuse(pd.Deadline, "Too late.")
	}
}

func (g *gate) Settled(_ *epp.Request, p epp.Pass) {
	if p == passed {
		g.picked = append(g.picked, g.pool.Snapshot().Endpoints[0].InFlight())
	}
}

// TestChoose: a caller that has admitted a request itself is neither let wait by preparers nor by the admission.
func TestChoose(t *testing.T) {
	c, p := disagg(), fleet("decode", "prefill")
	c.Admission = &gate{words: make(chan error), pool: p} // would wait for ever
	c.Preparers = []epp.NamedPreparer{{Name: "a", Preparer: lookup{time.Hour, time.Hour, nil, nil}}}
	d, err := scheduler(t, p, c).Choose(splitRequest(100), epp.Pass{Waited: time.Second})
	if err != nil || d.Pass.Waited != time.Second || len(d.First()) == 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := sched.New(p, epp.SystemClock).Choose(splitRequest(100), epp.Pass{}); pd.AsRefusal(err).Reason != pd.NoEndpoint {
		t.Errorf("without a pipeline: %v", err)
	}
}

// user names the flow of a request by a header.
type user string

func (u user) Identify(r *epp.Request) string { return r.Header(string(u)) }
func (user) NamesFlows()                      {}

// flows is an admission that notes the fairness ids of requests.
type flows []string

func (f *flows) Admit(_ context.Context, r *epp.Request) (epp.Pass, error) {
	*f = append(*f, r.Origin().Flow)
	return epp.Pass{}, nil
}
func (*flows) Settled(*epp.Request, epp.Pass) {}

// TestPluginsNameFlows: the flow of a request is what its client says, or else the first plugin that knows it.
func TestPluginsNameFlows(t *testing.T) {
	for name, tc := range map[string]struct {
		headers http.Header
		want    string
	}{
		"not known":         {nil, epp.DefaultFlow},
		"the second plugin": {http.Header{"B": {"of b"}}, "of b"},
		"both":              {http.Header{"A": {"of a"}, "B": {"of b"}}, "of a"},
		"the client":        {http.Header{"A": {"of a"}, "X-Llm-D-Inference-Fairness-Id": {"own"}}, "own"},
	} {
		t.Run(name, func(t *testing.T) {
			c, asked := disagg(), &flows{}
			c.Admission, c.Flows = asked, []epp.FlowNamer{user("a"), user("b")}
			r := splitRequest(100)
			r.Headers = tc.headers
			s := scheduler(t, fleet("decode", "prefill"), c)
			d, err := s.Pick(t.Context(), r)
			if err != nil || d.Origin.Flow != tc.want || len(*asked) != 1 || (*asked)[0] != tc.want {
				t.Errorf("the decision says %q, the admission %v, want %q (%v)", d.Origin.Flow, *asked, tc.want, err)
			}
		})
	}
}

func TestAdmission(t *testing.T) {
	for name, tc := range map[string]struct {
		word   error
		leaves bool
		want   pd.Reason
	}{
		"admitted":          {nil, false, ""},
		"refused":           {pd.Refuse(pd.Saturated, "Full."), false, pd.Saturated},
		"the client leaves": {nil, true, pd.Deadline},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := disagg(), fleet("decode", "prefill")
				g := &gate{words: make(chan error), pool: p}
				c.Admission = g
				s := scheduler(t, p, c)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				var d *epp.Decision
				var err error
				var pick sync.WaitGroup
				pick.Go(func() { d, err = s.Pick(ctx, splitRequest(100)) })
				synctest.Wait()
				checkLoad(t, p, "while it waits", map[string]epp.InFlight{})
				if tc.leaves {
					leave()
				} else {
					g.words <- tc.word
				}
				pick.Wait()
				if tc.want == "" && (err != nil || d.Reservation == nil || d.Pass != passed || d.Origin != splitRequest(100).Origin()) || tc.want != "" && pd.AsRefusal(err).Reason != tc.want {
					t.Errorf("got %+v, %v", d, err)
				}
				if told := len(g.picked) == 1 && g.picked[0].Requests == 1; told != (tc.want == "") || len(g.picked) > 1 {
					t.Errorf("the admission was told of picks, with this load: %v", g.picked)
				}
			})
		})
	}
}

func TestALeavingClientEndsPreparers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := disagg(), fleet("decode", "prefill")
		for _, name := range []string{"a", "b"} {
			c.Preparers = append(c.Preparers, epp.NamedPreparer{Name: name, Preparer: lookup{takes: time.Hour, timeout: time.Hour}})
		}
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		began := time.Now()
		_, err := scheduler(t, p, c).Pick(ctx, splitRequest(100))
		if err == nil || pd.AsRefusal(err).Reason != pd.Deadline || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		checkLoad(t, p, "after it left", map[string]epp.InFlight{})
	})
}

// journal is an observer that notes ids, and waits for a word before each if it has a channel.
type journal struct {
	mu   sync.Mutex
	ids  []string
	wait chan struct{}
}

func (j *journal) Observe(o *epp.Outcome) {
	if j.wait != nil {
		<-j.wait
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ids = append(j.ids, o.Request)
}

func (j *journal) noted() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.ids)
}

func TestObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &journal{}, &journal{}
		with := func(observers ...epp.Observer) *sched.Pipeline {
			c := disagg()
			c.Observers = observers
			p, err := sched.NewPipeline(c)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		s := sched.New(fleet("decode"), epp.SystemClock)
		s.Observe(&epp.Outcome{Request: "before there is a configuration"})
		s.Swap(with())
		s.Observe(&epp.Outcome{Request: "without observers"})
		s.Swap(with(first, second))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		s.Observe(&epp.Outcome{Request: "1"})
		synctest.Wait()
		s.Swap(with(second))
		s.Observe(&epp.Outcome{Request: "2"})
		stop()
		running.Wait()
		if first.noted() != 1 || second.noted() != 2 || second.ids[1] != "2" {
			t.Errorf("the observers were told %v and %v", first.ids, second.ids)
		}
	})
}

// counting is a source of token ids that notes what it is told.
type counting struct{ made, reported int }

func (c *counting) Counted(made, reported int) { c.made, c.reported = c.made+made, c.reported+reported }

// TestTokenSources: what made a prompt's token ids is told once how many tokens its engine counts, without observers too.
func TestTokenSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fleet("decode")
		s := scheduler(t, p, disagg())
		var source counting
		r := splitRequest(100)
		r.Prompt.SetIDs(make([]uint32, 70), &source)
		d := mustPick(t, s, r)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		for _, o := range []epp.Outcome{
			{Decision: d},
			{Decision: d, Result: &pd.AnswerSummary{Prompt: -1}},
			{Decision: d, Result: &pd.AnswerSummary{Prompt: 71}},
			{Decision: mustPick(t, s, splitRequest(100)), Result: &pd.AnswerSummary{Prompt: 100}},
			{Result: &pd.AnswerSummary{Prompt: 100}},
		} {
			s.Observe(&o)
		}
		stop()
		running.Wait()
		if source != (counting{made: 70, reported: 71}) {
			t.Errorf("the source was told %+v", source)
		}
	})
}

func TestDecisionsGiveObserversSignals(t *testing.T) {
	for _, observed := range []bool{false, true} {
		c, p := disagg(), fleet("decode", "prefill")
		c.Matchers = []epp.Matcher{&caches{cached: map[string]int{"decode-0": 16}}}
		c.Producers = []epp.Producer{perToken{"decode-0": 0.5}}
		if observed {
			c.Observers = []epp.Observer{&journal{}}
		}
		p.Snapshot().Loads[0].Signals = epp.Values{}.With(epp.Waiting, 3)
		before := epp.ReserveAnyway(epp.Claim{Endpoint: p.Snapshot().Endpoints[0], Add: epp.InFlight{Requests: 2}})
		d := mustPick(t, scheduler(t, p, c), splitRequest(100))
		if !observed {
			if d.Picks[0].Seen != nil {
				t.Errorf("seen %+v without an observer", d.Picks[0].Seen)
			}
			continue
		}
		seen := d.Picks[0].Seen
		waiting, _ := seen.Load.Signals.Value(epp.Waiting)
		_, computed := seen.Load.Signals.Value(predicted)
		if waiting != 3 || seen.InFlight.Requests != 2 || seen.Cached != 16 || !computed {
			t.Errorf("seen %+v", seen)
		}
		before.End()
	}
}

func TestSlowObserversHoldNoStreamUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		slow := &journal{wait: make(chan struct{})}
		c := disagg()
		c.Observers, c.Metrics = []epp.Observer{slow}, sched.NewMetrics(registry)
		s := scheduler(t, fleet("decode"), c)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		const most = 10_000
		for range most {
			s.Observe(&epp.Outcome{})
		}
		dropped := counted(t, registry, "tandem_outcomes_dropped_total")
		if dropped == 0 {
			t.Error("nothing was dropped")
		}
		close(slow.wait)
		stop()
		running.Wait()
		if told := slow.noted(); float64(told)+dropped != most {
			t.Errorf("%d told and %v dropped of %d", told, dropped, most)
		}
	})
}

func TestPreparersNeedATimeout(t *testing.T) {
	c := disagg()
	c.Preparers = []epp.NamedPreparer{{Name: "a", Preparer: lookup{}}}
	if _, err := sched.NewPipeline(c); err == nil || err.Error() != `preparer "a" has no positive timeout` {
		t.Errorf("got %v", err)
	}
}
