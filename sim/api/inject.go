package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
)

// injectFault applies the fault that hits a request, if any. It returns false if the request has ended.
func (h *handler) injectFault(c *call) bool {
	if h.faults.Empty() {
		return true
	}
	leg, model, _ := describeCall(c)
	f, cleared := h.faults.Take(leg, c.r.Header.Get("X-Request-Id"), model)
	if f == nil {
		return true
	}
	c.fault = f
	if w := f.NewWriter(c.w, h.strike(c, f, cleared)); w != nil {
		c.w = w
		return true
	}
	switch f.Fault {
	case fault.Slow:
		return h.holdBack(c.ctx(), f, cleared)
	case fault.Refuse:
		fault.Cut(c.w, false)
		return false
	case fault.ResetBefore:
		fault.Cut(c.w, true)
		return false
	case fault.Status:
		h.answerStatus(c, f)
		return false
	case fault.Crash:
		h.crash()
		c.fail(errEngineDead)
		return false
	}
	return true
}

// strike returns what a fault does at its point of the answer. The function reports whether the answer goes on.
func (h *handler) strike(c *call, f *fault.Fault, cleared <-chan struct{}) func(http.ResponseWriter) bool {
	return func(w http.ResponseWriter) bool {
		switch f.Fault {
		case fault.Slow:
			return h.holdBack(c.ctx(), f, cleared)
		case fault.Crash:
			h.crash()
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
func (h *handler) crash() {
	h.faults.ClosePort()
	h.engine.Kill(ErrCrashed)
}

// generatePaths are the paths whose requests have a leg.
var generatePaths = []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/invocations", "/inference/v1/generate"}

// describeCall returns what a fault chooses requests by. It accepts invalid bodies.
func describeCall(c *call) (leg, model string, p sim.TransferParams) {
	if !slices.Contains(generatePaths, c.r.URL.Path) {
		return "", "", p
	}
	var b struct {
		Model  json.RawMessage `json:"model"`
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	leg = fault.LegDecode
	if json.Unmarshal(c.body, &b) == nil {
		p = sim.ParseTransferParams(b.Params)
	}
	if p.RemoteDecode {
		leg = fault.LegPrefill
	}
	return leg, strings.Trim(string(b.Model), `"`), p
}

// answerStatus answers with the status of a fault.
func (h *handler) answerStatus(c *call, f *fault.Fault) {
	code, err := f.Status()
	if err != nil {
		return
	}
	c.fail(statusError(code))
	if code == http.StatusServiceUnavailable {
		_, _, p := describeCall(c)
		h.engine.Refused(p)
	}
}

// holdBack holds a request or its answer back until its time is over, the faults are cleared or the engine has ended. It
// returns false if the client has left.
func (h *handler) holdBack(ctx context.Context, f *fault.Fault, cleared <-chan struct{}) bool {
	delay, err := f.Delay()
	if err != nil {
		return false
	}
	defer h.engine.HoldRequest()()
	if f.Arg == fault.Forever {
		select {
		case <-cleared:
		case <-h.engine.Done():
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
