package sched

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// preparation is what one preparer returned.
type preparation struct {
	add  func(*epp.Request)
	took time.Duration
	err  error
}

// prepare runs all preparers of a pipeline at once, the first of them on the caller's goroutine, and then adds their results
// to the request. A preparer that failed adds nothing. The error is a *pd.Refusal, if ctx has ended.
func (s *Scheduler) prepare(ctx context.Context, p *Pipeline, r *epp.Request) ([]epp.PreparerTrace, error) {
	preparers := p.config.Preparers
	if len(preparers) == 0 {
		return nil, nil
	}
	found := make([]preparation, len(preparers))
	var others sync.WaitGroup
	for i := 1; i < len(preparers); i++ {
		others.Go(func() { found[i] = s.ask(ctx, preparers[i], r) })
	}
	found[0] = s.ask(ctx, preparers[0], r)
	others.Wait()
	if ctx.Err() != nil {
		return nil, left()
	}
	traces := make([]epp.PreparerTrace, len(preparers))
	for i := range found {
		f, name := &found[i], preparers[i].Name
		traces[i] = epp.PreparerTrace{Preparer: name, Seconds: f.took.Seconds()}
		switch {
		case f.err != nil:
			traces[i].Error = f.err.Error()
			p.config.Metrics.unprepared.WithLabelValues(name).Inc()
		case f.add != nil:
			f.add(r)
		}
	}
	return traces, nil
}

// ask runs one preparer until its timeout.
func (s *Scheduler) ask(ctx context.Context, p epp.NamedPreparer, r *epp.Request) (f preparation) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := s.clock.Now()
	timer := s.clock.AfterFunc(p.Timeout(), func() { cancel(errLate) })
	defer timer.Stop()
	f.add, f.err = p.Prepare(ctx, r)
	f.took = s.clock.Since(began)
	if f.err != nil && errors.Is(context.Cause(ctx), errLate) {
		f.err = errLate
	}
	return f
}

var errLate = errors.New("it did not return in time")

func left() *pd.Refusal {
	return pd.Refuse(pd.Deadline, "The request was given up before a model server was chosen for it.")
}
