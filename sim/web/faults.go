package web

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/sim/fault"
)

// Engine is what faults do to an engine.
type Engine interface {
	// HoldRequest counts a request as held back until the caller calls end.
	HoldRequest() (end func())
	// Done is closed when the engine has ended.
	Done() <-chan struct{}
	// Kill makes the engine die of a cause.
	Kill(cause error)
}

// Injector applies the faults of a list to the requests of an engine.
type Injector struct {
	Engine Engine
	Faults *fault.List
	// Fail answers with the status of a fault, Dead as an engine that has died of a request.
	Fail func(c *Call, status int)
	Dead func(c *Call)
}

// Target is what a fault chooses requests by.
type Target struct{ Leg, RequestID, Model string }

// Inject applies the fault that hits a request, if any. target is called only if there are faults. Inject returns false if the
// request has ended.
func (i *Injector) Inject(c *Call, target func() Target) bool {
	if i.Faults.Empty() {
		return true
	}
	t := target()
	f, cleared := i.Faults.Take(t.Leg, t.RequestID, t.Model)
	if f == nil {
		return true
	}
	c.Fault = f
	if w := f.NewWriter(c.W, i.strike(c, f, cleared)); w != nil {
		c.W = w
		return true
	}
	switch f.Fault {
	case fault.Slow:
		return i.holdBack(c.Ctx(), f, cleared)
	case fault.Refuse:
		fault.Cut(c.W, false)
		return false
	case fault.ResetBefore:
		fault.Cut(c.W, true)
		return false
	case fault.Status:
		if code, err := f.Status(); err == nil {
			i.Fail(c, code)
		}
		return false
	case fault.Crash:
		i.crash()
		i.Dead(c)
		return false
	}
	return true
}

// strike returns what a fault does at its point of the answer. The function reports whether the answer goes on.
func (i *Injector) strike(c *Call, f *fault.Fault, cleared <-chan struct{}) func(http.ResponseWriter) bool {
	return func(w http.ResponseWriter) bool {
		switch f.Fault {
		case fault.Slow:
			return i.holdBack(c.Ctx(), f, cleared)
		case fault.Crash:
			i.crash()
			fault.Cut(w, true)
		default:
			fault.Cut(w, f.Fault == fault.ResetAfter)
		}
		return false
	}
}

// ErrCrashed is what an engine died of that a crash fault hit.
var ErrCrashed = errors.New("crash fault")

// crash closes the port before any client can learn of the engine's death, so that a client that retries cannot connect.
func (i *Injector) crash() {
	i.Faults.ClosePort()
	i.Engine.Kill(ErrCrashed)
}

// holdBack holds a request or its answer back until its time is over, the faults are cleared or the engine has ended. It
// returns false if the client has left.
func (i *Injector) holdBack(ctx context.Context, f *fault.Fault, cleared <-chan struct{}) bool {
	delay, err := f.Delay()
	if err != nil {
		return false
	}
	defer i.Engine.HoldRequest()()
	if f.Arg == fault.Forever {
		select {
		case <-cleared:
		case <-i.Engine.Done():
		case <-ctx.Done():
			return false
		}
		return true
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
