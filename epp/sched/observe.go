package sched

import (
	"context"

	"github.com/tandem-serving/tandem/epp"
)

// outcomesKept is the most outcomes that wait for observers: a second of a busy picker.
const outcomesKept = 4096

// Observe implements epp.Observer: it queues an outcome for the observers of the configuration in use, and does not wait for
// them.
func (s *Scheduler) Observe(o *epp.Outcome) {
	p := s.pipeline.Load()
	if p == nil || len(p.config.Observers) == 0 && s.shadow.Load() == nil && !counts(o) {
		return
	}
	select {
	case s.outcomes <- *o:
	default:
		p.config.Metrics.dropped.Inc()
	}
}

// Run calls the observers until ctx has ended and all outcomes queued before have been reported.
func (s *Scheduler) Run(ctx context.Context) {
	for {
		select {
		case o := <-s.outcomes:
			s.tell(&o)
			continue
		default:
		}
		select {
		case o := <-s.outcomes:
			s.tell(&o)
		case <-ctx.Done():
			return
		}
	}
}

// counts reports whether the outcome tells the source of the prompt's token ids how many tokens the engine counts.
func counts(o *epp.Outcome) bool {
	return o.Decision != nil && o.Decision.TokenSource != nil && o.Result != nil && o.Result.Prompt > 0
}

// tell calls the source of the prompt's token ids, the observers of the configuration in use, and those of its shadow.
func (s *Scheduler) tell(o *epp.Outcome) {
	if counts(o) {
		o.Decision.TokenSource.Counted(o.Decision.Tokens, int(o.Result.Prompt))
	}
	s.telling.Lock()
	defer s.telling.Unlock()
	for _, observer := range s.pipeline.Load().config.Observers {
		observer.Observe(o)
	}
	if shadow := s.shadow.Load(); shadow != nil {
		for _, observer := range shadow.Pipeline.config.Observers {
			observer.Observe(o)
		}
		shadow.Watcher.Observe(o)
	}
}
