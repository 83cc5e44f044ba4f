package sidecar

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/sidecar/transport"
)

// beside knows whether the engine beside takes connections. It is asked before each prefill leg: what a prefill pod computes
// for a decode engine that is gone stays held for the lease, and nobody is there to give it back.
type beside struct {
	address string
	seen    atomic.Pointer[time.Time] // when it took one; nil = there is doubt
}

// besideTrust is how long one connection says that others will be taken: a moment for requests, and next to no
// connections beside theirs. A leg that fails ends it.
const besideTrust = 100 * time.Millisecond

// reach fails if the engine does not take a connection.
func (b *beside) reach(ctx context.Context) error {
	if seen := b.seen.Load(); seen != nil && time.Since(*seen) < besideTrust {
		return nil
	}
	dialer := net.Dialer{Timeout: transport.DialTimeout}
	c, err := dialer.DialContext(ctx, "tcp", b.address)
	if err != nil {
		b.doubt()
		return err
	}
	now := time.Now()
	b.seen.Store(&now)
	return c.Close()
}

// doubt is told of a leg that got no answer.
func (b *beside) doubt() { b.seen.Store(nil) }

// reachBeside fails if the engine beside cannot serve the request, or nobody waits for it any more.
func (x *exchange) reachBeside() error {
	err := x.s.beside.reach(x.ctx)
	switch {
	case err == nil:
		return nil
	case x.ctx.Err() != nil:
		return x.gone()
	}
	return transport.Unreachable(err)
}
