package sim

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
)

// faulty applies the fault that hits a request, if any. False: the request is over.
func (e *Engine) faulty(c *call) bool {
	if e.faults.none() {
		return true
	}
	leg, model := describeCall(c)
	f, cleared := e.faults.take(leg, c.r.Header.Get("X-Request-Id"), model)
	if f == nil {
		return true
	}
	c.fault = f
	switch f.Fault {
	case faultRefuse:
		cut(c.w, false)
		return false
	case faultResetBefore:
		cut(c.w, true)
		return false
	case faultResetAfter, faultTruncate:
		c.w = &cutWriter{ResponseWriter: c.w, reset: f.Fault == faultResetAfter}
	case faultSlow:
		return e.waitSlow(c, f, cleared)
	case faultStatus:
		if code, err := f.status(); err == nil {
			c.fail(statusError(code))
		}
		return false
	case faultCrash:
		e.call(func() { e.die(errCrashed) })
		c.fail(errEngineDead)
		return false
	}
	return true
}

// generatePaths are the paths whose requests have a leg.
var generatePaths = []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/invocations"}

// describeCall finds out what a fault can choose by, without judging the body.
func describeCall(c *call) (leg, model string) {
	if !slices.Contains(generatePaths, c.r.URL.Path) {
		return "", ""
	}
	var b struct {
		Model  json.RawMessage `json:"model"`
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	leg = legDecode
	if json.Unmarshal(c.body, &b) == nil && parseTransferParams(b.Params).remoteDecode {
		leg = legPrefill
	}
	return leg, strings.Trim(string(b.Model), `"`)
}

// waitSlow holds a request back. It goes on when its time is over, the faults are cleared or the engine has ended, unless
// the client has left.
func (e *Engine) waitSlow(c *call, f *Fault, cleared <-chan struct{}) bool {
	delay, err := f.delay()
	if err != nil {
		return false
	}
	if f.Arg == forever {
		select {
		case <-cleared:
		case <-e.stopped:
		case <-c.ctx().Done():
			return false
		}
		return true
	}
	return sleep(c.ctx(), delay) == nil
}

// cut ends the connection of an answer without further bytes: by RST, or by FIN.
func cut(w http.ResponseWriter, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		// Not a connection (a test's recorder): the closest to it is to end the handler without an answer.
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		// Without lingering, closing sends RST and throws away what the client has not taken yet.
		if err := tcp.SetLinger(0); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if err := conn.Close(); err != nil {
		return // it was gone already, which is what was wanted
	}
}

// cutWriter lets an answer begin and then cuts it: after the first event of a stream, or inside of a whole body.
type cutWriter struct {
	http.ResponseWriter
	reset bool // by RST, else by FIN
	cut   bool
}

// Unwrap lets http.ResponseController reach the connection.
func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *cutWriter) Write(p []byte) (int, error) {
	if w.cut {
		return len(p), nil
	}
	w.cut = true
	whole := w.Header().Get("Content-Length") != ""
	keep := p
	if whole {
		keep = p[:len(p)/2]
		if w.reset {
			keep = nil
		}
	}
	if _, err := w.ResponseWriter.Write(keep); err != nil {
		return 0, err
	}
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		return 0, err
	}
	cut(w.ResponseWriter, w.reset)
	return len(p), nil
}

// Flush is what the stream calls after each event.
func (w *cutWriter) Flush() {
	if w.cut {
		return
	}
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		w.cut = true
	}
}
