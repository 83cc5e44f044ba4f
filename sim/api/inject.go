package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/web"
)

// generatePaths are the paths whose requests have a leg.
var generatePaths = []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/invocations", "/inference/v1/generate"}

// describeCall returns what a fault chooses requests by. It accepts invalid bodies.
func describeCall(c *call) (leg, model string, p sim.TransferParams) {
	if !slices.Contains(generatePaths, c.R.URL.Path) {
		return "", "", p
	}
	var b struct {
		Model  json.RawMessage `json:"model"`
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	leg = fault.LegDecode
	if json.Unmarshal(c.Body, &b) == nil {
		p = sim.ParseTransferParams(b.Params)
	}
	if p.RemoteDecode {
		leg = fault.LegPrefill
	}
	return leg, strings.Trim(string(b.Model), `"`), p
}

// target returns what a fault chooses a call by.
func (c *call) target() web.Target {
	leg, model, _ := describeCall(c)
	return web.Target{Leg: leg, RequestID: c.R.Header.Get("X-Request-Id"), Model: model}
}

// answerStatus answers with the status of a fault.
func (h *handler) answerStatus(inner *web.Call, code int) {
	c := &call{inner}
	c.fail(statusError(code))
	if code == http.StatusServiceUnavailable {
		_, _, p := describeCall(c)
		h.engine.Refused(p)
	}
}
