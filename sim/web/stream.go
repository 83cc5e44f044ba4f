package web

import (
	"errors"
	"io"
	"net/http"

	"github.com/tandem-serving/tandem/sim/pyjson"
)

// Stream writes server-sent events, one HTTP chunk each.
type Stream struct {
	w     http.ResponseWriter
	flush *http.ResponseController
}

// Stream begins an answer of events. The client gets the headers before there is an event.
func (c *Call) Stream() *Stream {
	c.W.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	c.W.WriteHeader(http.StatusOK)
	s := &Stream{w: c.W, flush: http.NewResponseController(c.W)}
	s.flushNow()
	return s
}

func (s *Stream) flushNow() {
	if err := s.flush.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return // the client has left; its context ends the request
	}
}

// Data writes an event without a name.
func (s *Stream) Data(v any) { s.Raw("data: " + string(pyjson.Encode(v)) + "\n\n") }

// Event writes an event with a name.
func (s *Stream) Event(name string, v any) {
	s.Raw("event: " + name + "\ndata: " + string(pyjson.Encode(v)) + "\n\n")
}

// Raw writes an event as it is.
func (s *Stream) Raw(event string) {
	if _, err := io.WriteString(s.w, event); err == nil {
		s.flushNow()
	}
}

// Done writes the last event of an OpenAI stream.
func (s *Stream) Done() { s.Raw("data: [DONE]\n\n") }
