package setup

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/epp/sched"
)

// Pages says what is known of the endpoints, and how late.
type Pages struct {
	Pool     interface{ Snapshot() *epp.Snapshot }
	Clock    epp.Clock
	Interval time.Duration // between two readings of a metrics page
	Stale    time.Duration // age from which loads are trusted less
	Others   func() int    // returns how many other replicas tell their loads; nil: none do
}

// Queues returns how requests wait by a configuration, and what says that they may pass. Without queues every request passes.
func Queues(b *config.Built, p Pages) (flow.Settings, flow.Gate) {
	if b.Queues == nil {
		return flow.Settings{}, flow.OpenGate{}
	}
	s := *b.Queues
	s.Eviction.Grace = p.grace(b.Detector)
	return s, flow.NewPoolGate(flow.GateOptions{Pool: p.Pool, Detector: b.Detector, Stages: b.Stages, Clock: p.Clock, Stale: p.Stale, Others: p.Others})
}

const (
	// settled is how long a detector that counts requests in flight takes to show the end of one.
	settled = 10 * time.Millisecond
	// aborted is how long an engine takes to free the KV blocks of a request whose client has left.
	aborted = 250 * time.Millisecond
)

// grace returns how long after the end of a request a detector may still count it: until a metrics page shows the engine without
// it.
func (p *Pages) grace(d epp.Detector) time.Duration {
	if _, immediate := d.(epp.ImmediateDetector); immediate {
		return settled
	}
	return p.Interval + p.Stale + aborted
}

// Queue is what requests wait in.
type Queue interface {
	epp.Admission
	epp.Observer
	epp.Backlog
}

// Queueing has requests wait in q, if the configuration has queues, which take the place of shedding by priority. Plugins are told of q that
// count what waits.
func Queueing(c *sched.Config, b *config.Built, q Queue) {
	if b.Queues == nil {
		return
	}
	c.Admission, c.Detector, c.Wait = q, nil, b.Queues.LongestWait()
	for _, f := range config.Of[epp.BacklogFollower](b) {
		f.FollowBacklog(q)
	}
	if b.Queues.Charges() {
		c.Observers = append(c.Observers, q)
	}
}
