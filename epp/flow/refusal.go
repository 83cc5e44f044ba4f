package flow

import (
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// longestWait limits Retry-After: what the queue is like in a minute cannot be told by its pace now.
const longestWait = time.Minute

// full returns the refusal of a request that would exceed a limit. The caller holds mu.
func (c *Controller) full(what string, b *band) *pd.Refusal {
	return c.placed(pd.Refuse(pd.QueueFull, "As many %s wait for capacity as may. Try again later.", what), b, 0)
}

// expired returns the refusal of an item whose time to live has ended. The caller holds mu.
func (c *Controller) expired(it *item) *pd.Refusal {
	if c.current.Load().gate.Empty() {
		return pd.Refuse(pd.NoEndpoint, "The pool has had no endpoints for %v. Try again.", it.ttl)
	}
	return c.placed(pd.Refuse(pd.QueueTimeout, "The pool had no capacity for this request within %v. Try again later.", it.ttl),
		it.flow.band, 1)
}

// placed adds to a refusal where in the queue a new request of the band would be, and how long it would wait there. So many of
// those that wait leave now.
func (c *Controller) placed(r *pd.Refusal, b *band, leaving int) *pd.Refusal {
	position := 1 - leaving
	for _, other := range c.bands {
		if other.priority >= b.priority {
			position += other.requests
		}
	}
	wait := c.departed.wait(position, c.opt.Clock.Now())
	r.Queue = &pd.QueuePlace{Position: position, Wait: wait}
	r.After = min(wait, longestWait)
	return r
}

func evicted() *pd.Refusal {
	return pd.Refuse(pd.Evicted, "More important requests need this request's place in the queue. Try again later.")
}

func shuttingDown() *pd.Refusal {
	return pd.Refuse(pd.Draining, "The endpoint picker shuts down. Try again.")
}
