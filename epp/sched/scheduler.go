package sched

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Scheduler picks with its latest pipeline. It is safe for concurrent use.
type Scheduler struct {
	pool     interface{ Snapshot() *epp.Snapshot }
	clock    epp.Clock
	pipeline atomic.Pointer[Pipeline]
	shadow   atomic.Pointer[Shadow]

	outcomes chan epp.Outcome // for the observers
	telling  sync.Mutex       // held while observers are called, and while the pipeline is replaced
}

// New makes a scheduler over a pool, whose snapshot is never nil. It refuses every request until Swap sets a pipeline.
func New(pool interface{ Snapshot() *epp.Snapshot }, clock epp.Clock) *Scheduler {
	return &Scheduler{pool: pool, clock: clock, outcomes: make(chan epp.Outcome, outcomesKept)}
}

// Swap replaces the pipeline and returns the old one, nil at first. Running picks end with the old one, so its plugins must
// stay callable for some microseconds, or for as long as its preparers and its admission let requests wait. When Swap has
// returned, its observers are not called any more.
func (s *Scheduler) Swap(p *Pipeline) (old *Pipeline) {
	s.telling.Lock()
	defer s.telling.Unlock()
	return s.pipeline.Swap(p)
}

// Needs returns what the current pipeline, and its shadow, need of prompts.
func (s *Scheduler) Needs() epp.PromptSpec {
	p := s.pipeline.Load()
	if p == nil {
		return epp.PromptSpec{}
	}
	if shadow := s.shadow.Load(); shadow != nil {
		return union(p.needs, shadow.Pipeline.needs)
	}
	return p.needs
}

// Reads returns the APIs whose requests the current configuration has read.
func (s *Scheduler) Reads() epp.APISet {
	if p := s.pipeline.Load(); p != nil {
		return p.config.Reads
	}
	return 0
}

// Wait returns for how long the current configuration may let a request wait before it is picked for.
func (s *Scheduler) Wait() time.Duration {
	if p := s.pipeline.Load(); p != nil {
		return p.config.Wait
	}
	return 0
}

// Stages returns the stages of the configuration in use, nil if there is none. They do not change.
func (s *Scheduler) Stages() epp.Stages {
	if p := s.pipeline.Load(); p != nil {
		return p.config.Stages
	}
	return nil
}

// Pick decides where a request goes, charges the endpoints, and lets the matcher learn it. Preparers may add to the
// request. The error is a *pd.Refusal; then nothing is charged. It stops waiting when ctx ends.
func (s *Scheduler) Pick(ctx context.Context, r *epp.Request) (*epp.Decision, error) {
	p := s.pipeline.Load()
	if p == nil {
		return nil, unconfigured()
	}
	p.nameFlow(r)
	if len(p.config.Preparers) > 0 {
		if _, err := s.prepare(ctx, p, r); err != nil {
			return nil, err
		}
	}
	var pass epp.Pass
	if a := p.config.Admission; a != nil {
		var err error
		if pass, err = a.Admit(ctx, r); err != nil {
			return nil, err
		}
		defer a.Settled(r, pass)
	}
	return s.choose(p, r, pass)
}

// nameFlow has the plugins name the flow of a request whose client did not.
func (p *Pipeline) nameFlow(r *epp.Request) {
	for _, n := range p.config.Flows {
		if r.FairnessID() == "" {
			r.Flow = n.Identify(r)
		}
	}
}

// Choose is what Pick does after the preparers and the admission, which are the caller's: for one that has no goroutine to wait on, such as
// a replay in virtual time.
func (s *Scheduler) Choose(r *epp.Request, pass epp.Pass) (*epp.Decision, error) {
	p := s.pipeline.Load()
	if p == nil {
		return nil, unconfigured()
	}
	return s.choose(p, r, pass)
}

func (s *Scheduler) choose(p *Pipeline, r *epp.Request, pass epp.Pass) (*epp.Decision, error) {
	p, err := p.of(r)
	if err != nil {
		return nil, err
	}
	now := s.clock.Now()
	k := begin(p, r, now, p.picks.Add(1))
	defer k.end()
	snapshot, shadow := s.pool.Snapshot(), s.shadow.Load()
	k.noting = shadow != nil || len(p.config.Observers) > 0
	k.gather(snapshot)
	var other *pick
	var refused error
	if shadow != nil {
		other, refused = shadow.foresee(r, now, snapshot)
	}
	err = k.commit()
	p.config.Metrics.picked(s.clock.Since(now), k, err)
	k.earn(err)
	var d *epp.Decision
	if err == nil {
		d = k.decided(pass)
	}
	if shadow != nil {
		shadow.done(other, refused, k, d)
	}
	return d, err
}

// decided returns the decision that was committed, and tells the plugins of it.
func (k *pick) decided(pass epp.Pass) *epp.Decision {
	k.learn(k)
	d := k.write(k.made)
	d.Reservation, d.Pass = &k.made.reservation, pass
	k.findSource(d)
	for _, o := range k.pipeline.config.Picked {
		o.Picked(&k.round, k.all, d)
	}
	return d
}

// Explain returns what Pick would decide now, with a Trace. It prepares the request as Pick does, and does not call the
// admission. It reserves, learns and counts nothing; its random choices are those of the next Pick. With a *pd.Refusal it
// returns a Decision with what was known by then, unless ctx has ended.
func (s *Scheduler) Explain(ctx context.Context, r *epp.Request) (*epp.Decision, error) {
	p := s.pipeline.Load()
	if p == nil {
		return nil, unconfigured()
	}
	p.nameFlow(r)
	prepared, err := s.prepare(ctx, p, r)
	if err != nil {
		return nil, err
	}
	now, snapshot := s.clock.Now(), s.pool.Snapshot()
	trace := newTracer(snapshot, r.Subset, now)
	trace.Preparers = prepared
	if p, err = p.of(r); err != nil {
		return &epp.Decision{Verdict: pd.Refused, Reason: pd.AsRefusal(err).Reason, Trace: &trace.Trace}, err
	}
	k := begin(p, r, now, p.picks.Load()+1)
	defer k.end()
	k.trace = trace
	if matchers := p.config.Matchers; len(matchers) > 0 { // the first one's results are those of the trace
		if knower, ok := matchers[0].(epp.Knower); ok {
			trace.how = func(c *epp.Candidate) string { return knower.How(r, c.Endpoint) }
		}
		trace.valuer, _ = matchers[0].(epp.Valuer)
	}
	k.gather(snapshot)
	if err = k.shed(); err == nil {
		err = k.run()
	}
	d := k.write(new(made))
	d.Trace = &k.trace.Trace
	if err != nil {
		d.Verdict, d.Reason = pd.Refused, pd.AsRefusal(err).Reason
		return d, err
	}
	k.findSource(d)
	return d, nil
}

// findSource finds where the engine that computes the prompt may fetch blocks of it.
func (k *pick) findSource(d *epp.Decision) {
	for _, f := range k.pipeline.config.Sources {
		if d.PullFrom == nil {
			d.PullFrom, d.PullTokens = f.Source(&k.round, k.all, d)
		}
	}
}

func unconfigured() error {
	return pd.Refuse(pd.NoEndpoint, "The endpoint picker has no configuration yet. Try again.")
}
