package sched

import (
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Scheduler picks for requests, with the pipeline it was given last. It is safe for concurrent use.
type Scheduler struct {
	pool     interface{ Snapshot() *epp.Snapshot }
	pipeline atomic.Pointer[Pipeline]
}

// New makes a scheduler over a pool, whose snapshot is never nil. It refuses everything until Swap gave it a pipeline.
func New(pool interface{ Snapshot() *epp.Snapshot }) *Scheduler {
	return &Scheduler{pool: pool}
}

// Swap replaces the pipeline and gives the one before, nil at first. Picks that are being made end with the old one, so its
// plugins must stay callable for some microseconds more.
func (s *Scheduler) Swap(p *Pipeline) (old *Pipeline) { return s.pipeline.Swap(p) }

// Blocks says how prompts are to be cut for the pipeline of this moment.
func (s *Scheduler) Blocks() epp.BlockSpec {
	if p := s.pipeline.Load(); p != nil && p.config.Matcher != nil {
		return p.config.Matcher.Blocks()
	}
	return epp.BlockSpec{}
}

// Pick decides where a request goes, charges the endpoints, and lets the matcher learn it. The error is a *pd.Refusal;
// then nothing is charged.
func (s *Scheduler) Pick(r *epp.Request) (*epp.Decision, error) {
	p := s.pipeline.Load()
	if p == nil {
		return nil, unconfigured()
	}
	now := time.Now()
	k := begin(p, r, now, p.picks.Add(1))
	defer k.end()
	k.gather(s.pool.Snapshot())
	reservation, err := k.commit()
	p.config.Metrics.picked(time.Since(now), k, err)
	k.earn(err)
	if err != nil {
		return nil, err
	}
	k.learn()
	d := k.decision()
	d.Reservation = reservation
	return d, nil
}

// Explain tells what Pick would decide now, and how: the Decision has a Trace. It reserves, learns and counts nothing; what
// chance decides it decides as the next Pick will. Beside a *pd.Refusal comes a Decision with what was known by then.
func (s *Scheduler) Explain(r *epp.Request) (*epp.Decision, error) {
	p := s.pipeline.Load()
	if p == nil {
		return nil, unconfigured()
	}
	now := time.Now()
	k := begin(p, r, now, p.picks.Load()+1)
	defer k.end()
	snapshot := s.pool.Snapshot()
	k.trace = newTracer(snapshot, r.Subset, now)
	k.gather(snapshot)
	err := k.admit()
	if err == nil {
		err = k.run()
	}
	d := k.decision()
	d.Trace = &k.trace.Trace
	if err != nil {
		d.Verdict, d.Reason = pd.Refused, pd.AsRefusal(err).Reason
	}
	return d, err
}

func unconfigured() error {
	return pd.Refuse(pd.NoEndpoint, "The endpoint picker has no configuration yet. Try again.")
}
