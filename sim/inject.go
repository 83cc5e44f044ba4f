package sim

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// faulty applies the fault that hits a request, if any. False: the request is over.
func (e *Engine) faulty(c *call) bool {
	if e.faults.none() {
		return true
	}
	leg, model, _ := describeCall(c)
	f, cleared := e.faults.take(leg, c.r.Header.Get("X-Request-Id"), model)
	if f == nil {
		return true
	}
	c.fault = f
	if p, err := f.point(); err == nil && p != noPoint {
		c.w = &strikeWriter{ResponseWriter: c.w, at: p, strike: e.striker(c, f, cleared),
			bare: f.Fault == faultResetAfter && f.At == ""}
		return true
	}
	switch f.Fault {
	case faultSlow:
		return e.waitSlow(c.ctx(), f, cleared)
	case faultRefuse:
		cut(c.w, false)
		return false
	case faultResetBefore:
		cut(c.w, true)
		return false
	case faultStatus:
		e.answerStatus(c, f)
		return false
	case faultCrash:
		e.crash()
		c.fail(errEngineDead)
		return false
	}
	return true
}

// crash closes the port before any client can learn of the engine's death: a client that asks again must not get through.
func (e *Engine) crash() {
	e.faults.closePort()
	e.call(func() { e.die(errCrashed) })
}

// generatePaths are the paths whose requests have a leg.
var generatePaths = []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/invocations"}

// describeCall finds out what a fault can choose by, without judging the body.
func describeCall(c *call) (leg, model string, p transferParams) {
	if !slices.Contains(generatePaths, c.r.URL.Path) {
		return "", "", p
	}
	var b struct {
		Model  json.RawMessage `json:"model"`
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	leg = legDecode
	if json.Unmarshal(c.body, &b) == nil {
		p = parseTransferParams(b.Params)
	}
	if p.remoteDecode {
		leg = legPrefill
	}
	return leg, strings.Trim(string(b.Model), `"`), p
}

// answerStatus answers with a status the engine has not come to by itself.
func (e *Engine) answerStatus(c *call, f *Fault) {
	code, err := f.status()
	if err != nil {
		return
	}
	c.fail(statusError(code))
	if code == http.StatusServiceUnavailable {
		_, _, p := describeCall(c)
		e.post(func() { e.rejectLoad(p) })
	}
}

// waitSlow holds a request or its answer back. It goes on when its time is over, the faults are cleared or the engine has
// ended, unless the client has left.
func (e *Engine) waitSlow(ctx context.Context, f *Fault, cleared <-chan struct{}) bool {
	delay, err := f.delay()
	if err != nil {
		return false
	}
	e.post(func() { e.counts.held++ })
	defer e.post(func() { e.counts.held-- })
	if f.Arg == forever {
		select {
		case <-cleared:
		case <-e.stopped:
		case <-ctx.Done():
			return false
		}
		return true
	}
	return sleep(ctx, delay) == nil
}
