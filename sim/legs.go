package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/transfer"
)

// leg is what vLLM's engine knows of a sequence, beside its core.
type leg struct {
	params   TransferParams
	stale    bool
	stuck    bool // holds blocks for ever: the hand-off lacks members that the load needs to start
	external int  // tokens of the prompt whose KV came from another engine
}

func legOf(s *core.Sequence) *leg { return s.Leg.(*leg) }

// Queued implements core.Protocol.
func (c *connector) Queued(s *core.Sequence) {
	if p := legOf(s).params; p.RemotePrefill || c.readsBack(p) {
		s.KV = core.Wanted
		if p.RemotePrefill && c.core.Waits() > 0 {
			c.renewRemote([]*core.Sequence{s}) // it will wait, and its lease must not end before the next heartbeat
		}
	}
	c.core.Wait(s)
}

// Aborted implements core.Protocol.
func (c *connector) Aborted(s *core.Sequence) {
	l := legOf(s)
	switch {
	case l.stuck:
		c.core.Die(fmt.Errorf("aborting %s: its hand-off lacks remote_* members", s.ID))
		return
	case s.KV == core.Arriving: // the transfer still writes to the blocks; loadEnded frees them
		return
	case s.KV == core.Wanted:
		c.releaseUnread(l.params)
	}
	c.core.Free(s)
}

// Finished implements core.Protocol. The blocks of a prefill leg stay, for the decode engine to read.
func (c *connector) Finished(s *core.Sequence, last core.Output) {
	c.countFinished(s, last.Finish, time.Now())
	if !legOf(s).params.RemoteDecode {
		c.core.End(s, last)
		c.core.Free(s)
		return
	}
	last.Result = c.handOff(s)
	c.core.End(s, last)
}

// Preempted implements core.Protocol.
func (c *connector) Preempted(*core.Sequence) { c.metrics.Add(metrics.Preemptions, 1) }

// Stepped implements core.Protocol.
func (c *connector) Stepped(tokens int) {
	c.metrics.Observe(metrics.IterationTokens, float64(tokens))
	if c.events != nil {
		c.events.flush(time.Now())
	}
}

// Notified implements core.Protocol.
func (c *connector) Notified(n transfer.Notification) { c.notified(string(n.Message)) }

// Deadline implements core.Protocol.
func (c *connector) Deadline() (next time.Time, ok, changed bool) { return c.leases.nextExpiry() }

// Expired implements core.Protocol.
func (c *connector) Expired(now time.Time) { c.expireLeases(now) }

// Refused releases the hand-off of a request that was refused before it was submitted, as the real engine does.
func (e *Engine) Refused(p TransferParams) {
	e.core.Post(func() {
		if m := e.connector.moriio; m != nil {
			m.releaseUnscheduled(p, "a request that was refused")
			return
		}
		e.connector.releaseUnread(p)
	})
}

// releaseUnread tells the owner of KV that this engine will not read it. Params that name no owner kill the engine, because
// the real one looks their members up unchecked.
func (c *connector) releaseUnread(p TransferParams) {
	if !p.RemotePrefill || c.cfg.KV.Push { // prefill that pushes hears only of requests that have blocks
		return
	}
	from, ok := p.source()
	if !ok {
		c.core.Die(errors.New("releasing a hand-off that lacks remote_* members"))
		return
	}
	c.notify(from, from.requestID+":1", func() {})
}
