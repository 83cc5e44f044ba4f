package handoff

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// localEngine knows whether the local engine accepts connections. The sidecar checks that before each prefill leg: blocks that
// a prefill pod computes for a decode engine that has ended stay pinned until the lease expires, since no engine releases them.
type localEngine struct {
	address string
	target  pd.Target
	seen    atomic.Pointer[time.Time] // when it accepted one; nil = its state is in doubt
	mode    atomic.Pointer[engineMode]
	changed func() // called when another engine may be at the address
}

// engineMode is whether an engine serves requests alone, and since when we know.
type engineMode struct {
	whole bool
	asked time.Time
}

// modeTrust is how long the mode of the local engine is believed, unless a leg fails meanwhile: it changes only when the engine is
// started anew.
const modeTrust = 10 * time.Second

// modeTimeout is how long the local engine has to tell its mode. It is asked for requests that would fail otherwise, and a server that
// is busy with others' bodies answers late.
const modeTimeout = 5 * time.Second

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
func (e *localEngine) doubt() {
	e.seen.Store(nil)
	e.mode.Store(nil)
	e.changed()
}

// whole reports whether the local engine serves requests alone, without a prefill engine, as one of another protocol than the dialect is
// taken to do. The error says why that is not known.
func (legs *Legs) whole(ctx context.Context) (bool, error) {
	wrong := legs.checkLocal(ctx)
	if legs.aloneBy() == dialect.NeverAlone {
		return false, nil
	}
	d, ok := legs.Dialect.(dialect.Moded)
	if !ok || wrong != nil {
		return true, nil
	}
	if mode := legs.localEngine.mode.Load(); mode != nil && legs.Now().Sub(mode.asked) < modeTrust {
		return mode.whole, nil
	}
	if d.ModePath() == "" {
		return d.Whole(nil)
	}
	answer, err := legs.Decode.Page(ctx, d.ModePath(), modeTimeout)
	if err != nil {
		return false, err
	}
	whole, err := d.Whole(answer)
	if err != nil {
		return false, err
	}
	legs.localEngine.mode.Store(&engineMode{whole, legs.Now()})
	return whole, nil
}

// alone refuses a request that the local engine would have to serve alone, and cannot.
func (x *Exchange) alone() error {
	switch whole, err := x.legs.whole(x.Context); {
	case whole:
		return nil
	case x.Context.Err() != nil:
		return x.contextError()
	case err != nil:
		return transport.Unreachable(err)
	}
	if x.Decision.Reason == pd.NotSplittable || !x.API.Splittable() {
		return pd.Refuse(pd.NotSplittable, "This request cannot be split between a prefill and a decode engine, and the engine of this pod serves no others.")
	}
	return pd.Refuse(pd.DecodeOnly, "The engine of this pod cannot compute prompts itself, and no prefill pod has computed this one (%s). Try again.",
		x.Decision.Reason)
}

// reachLocalEngine fails if the local engine cannot serve the request, or if the exchange's context has ended.
func (x *Exchange) reachLocalEngine() error {
	if err := x.legs.Hung(); err != nil {
		return transport.Unreachable(err)
	}
	err := x.legs.localEngine.reach(x.Context)
	switch {
	case err == nil:
		return nil
	case x.Context.Err() != nil:
		return x.contextError()
	}
	return transport.Unreachable(err)
}
