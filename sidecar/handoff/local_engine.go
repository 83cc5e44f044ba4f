package handoff

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/sidecar/transport"
)

// localEngine knows whether the local engine accepts connections. The sidecar checks that before each prefill leg: blocks that
// a prefill pod computes for a decode engine that has ended stay pinned until the lease expires, since no engine releases them.
type localEngine struct {
	address string
	seen    atomic.Pointer[time.Time] // when it accepted one; nil = its state is in doubt
}

// reachableFor is how long after an accepted connection the engine is taken to accept others: short for a request, and long
// enough to add few connections to those of requests. A leg that fails ends that time.
const reachableFor = 100 * time.Millisecond

// reach fails if the engine does not accept a connection.
func (e *localEngine) reach(ctx context.Context) error {
	if seen := e.seen.Load(); seen != nil && time.Since(*seen) < reachableFor {
		return nil
	}
	dialer := net.Dialer{Timeout: transport.DialTimeout}
	c, err := dialer.DialContext(ctx, "tcp", e.address)
	if err != nil {
		e.doubt()
		return err
	}
	now := time.Now()
	e.seen.Store(&now)
	return c.Close()
}

// doubt notes that a leg failed: the next reach opens a connection.
func (e *localEngine) doubt() { e.seen.Store(nil) }

// reachLocalEngine fails if the local engine cannot serve the request, or if the exchange's context has ended.
func (x *Exchange) reachLocalEngine() error {
	err := x.legs.localEngine.reach(x.Context)
	switch {
	case err == nil:
		return nil
	case x.Context.Err() != nil:
		return x.contextError()
	}
	return transport.Unreachable(err)
}
