package sched

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Shadow is a second pipeline that decides about the requests that a scheduler picks for, with the same view of the pool, and without
// effect. The load in flight is what its Watcher says it would be by the shadow's decisions; metrics pages are those of the pool as it is. What it learns is what really happens: its matchers, observers of picks, and observers of outcomes are told of the decisions of the
// pipeline in use. Its preparers, its admission and its queues are not called: requests come to it as the pipeline in use prepared them, and when
// that lets them pass. A pick takes about twice as long with it.
type Shadow struct {
	Pipeline *Pipeline
	Watcher  Watcher
}

// Watcher gets what a shadow decides, and what is done. It must be safe for concurrent use.
type Watcher interface {
	epp.Observer // of the outcomes of what was done
	// Imagine is called before the shadow decides, on the same goroutine. It makes the load in flight of all candidates what it would be if the
	// shadow's decisions had been carried out.
	Imagine(now time.Time, all []epp.Candidate)
	// Compared is called after every pick, on the goroutine of the request, which waits for it. It must not keep the request.
	Compared(c *Comparison)
}

// Comparison is what was decided about a request. A refused decision is nil.
type Comparison struct {
	Request      *epp.Request
	Now          time.Time     // of the picks
	Live, Shadow *epp.Decision // the picks of both have what was seen of their endpoints; nothing is reserved for Shadow
}

// SetShadow replaces the shadow, and returns the old one; nil: there is none. When it has returned, the old one's observers are not called any
// more; picks that still use it must be able to finish.
func (s *Scheduler) SetShadow(shadow *Shadow) (old *Shadow) {
	s.telling.Lock()
	defer s.telling.Unlock()
	return s.shadow.Swap(shadow)
}

// foresee has the shadow decide. It must be called before the load of the pipeline in use is reserved. The caller calls done.
func (s *Shadow) foresee(r *epp.Request, now time.Time, snapshot *epp.Snapshot) (k *pick, refused error) {
	p, err := s.Pipeline.of(r)
	if err != nil {
		return nil, err
	}
	k = begin(p, r, now, p.picks.Add(1))
	k.noting = true
	k.watcher = s.Watcher
	k.gather(snapshot)
	if refused = k.shed(); refused == nil {
		refused = k.run()
	}
	k.earn(refused)
	return k, refused
}

// done tells the shadow's plugins what is done, and its watcher of both. live is nil if the request was refused; by is the pick that made it.
func (s *Shadow) done(k *pick, refused error, by *pick, live *epp.Decision) {
	c := Comparison{Request: by.round.Request, Now: by.round.Now, Live: live}
	if k != nil {
		defer k.end()
		if refused == nil {
			c.Shadow = k.write(new(made))
		}
		if live != nil {
			k.learn(by)
			told := *live // plugins note in it what they expect
			for _, o := range k.pipeline.config.Picked {
				o.Picked(&k.round, k.all, &told)
			}
		}
	}
	s.Watcher.Compared(&c)
}
