package web

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
)

// Call is one HTTP request with its body read.
type Call struct {
	W     http.ResponseWriter
	R     *http.Request
	Body  []byte
	Fault *fault.Fault // nil: none hits the request
}

// NewCall begins an answer with the headers that uvicorn and FastAPI's middleware add to all of them.
func NewCall(w http.ResponseWriter, r *http.Request) *Call {
	h := w.Header()
	h.Set("Server", "uvicorn")
	h.Set("Vary", "Origin")
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	return &Call{W: w, R: r}
}

// Ctx ends when the client leaves.
func (c *Call) Ctx() context.Context { return c.R.Context() }

// ReadBody reads the body, or answers and returns false if it is not valid HTTP. If the client has left instead, the answer is not
// read.
func (c *Call) ReadBody() bool {
	var err error
	if c.Body, err = io.ReadAll(c.R.Body); err == nil {
		return true
	}
	c.W.Header().Set("Connection", "close")
	c.Text(http.StatusBadRequest, "Invalid HTTP request received.")
	return false
}

// JSON answers with a whole body.
func (c *Call) JSON(status int, body any) {
	c.W.Header().Set("Content-Type", "application/json")
	c.Write(status, pyjson.Encode(body))
}

// Text answers with plain text.
func (c *Call) Text(status int, body string) {
	c.W.Header().Set("Content-Type", "text/plain; charset=utf-8")
	c.Write(status, []byte(body))
}

// Write answers with a body of the type that the headers say.
func (c *Call) Write(status int, body []byte) {
	c.W.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.W.WriteHeader(status)
	if _, err := c.W.Write(body); err != nil {
		return // the client has left, and reads no answer
	}
}

// Detail answers with FastAPI's own error body, as to requests that reach no handler of the engine.
func (c *Call) Detail(status int, text string) {
	c.JSON(status, struct {
		Detail string `json:"detail"`
	}{text})
}
