package client

import (
	"errors"
	"fmt"
	"sync"
)

// ErrSpurious marks an answer that Envoy refuses because of its position or form. The client then gets a 500.
var ErrSpurious = errors.New("spurious answer")

func spurious(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrSpurious, fmt.Sprintf(format, args...))
}

// order checks both directions of one stream. One goroutine sends and another receives.
type order struct {
	mu                sync.Mutex
	request, response side
}

// side is one direction: the frames that were sent, and the answers to them.
type side struct {
	duplex bool // bodies are sent and answered
	sent   sent
	got    got
}

type sent struct {
	headers, trailers bool
	end               bool // the last frame was sent
	bodyless          bool // the headers were the last frame
}

type got struct{ headers, end, trailers bool }

func (s *side) sendHeaders(end bool) error {
	if s.sent.headers {
		return errors.New("the headers were sent already")
	}
	s.sent = sent{headers: true, end: end, bodyless: end}
	return nil
}

func (s *side) sendBody(end bool) error {
	if !s.duplex || !s.sent.headers || s.sent.end {
		return errors.New("no body may be sent")
	}
	s.sent.end = end
	return nil
}

func (s *side) sendTrailers() error {
	if !s.sent.headers || s.sent.end {
		return errors.New("no trailers may be sent")
	}
	s.sent.trailers, s.sent.end = true, true
	return nil
}

func (s *side) takeHeaders() error {
	switch {
	case !s.sent.headers:
		return spurious("headers answered that were not sent")
	case s.got.headers:
		return spurious("headers answered twice")
	}
	s.got.headers = true
	return nil
}

func (s *side) takeBody(end bool) error {
	switch {
	case !s.duplex || s.sent.bodyless:
		return spurious("body answered where there is none")
	case !s.got.headers:
		return spurious("body answered before the headers")
	case s.got.end || s.got.trailers:
		return spurious("body answered after its end")
	}
	s.got.end = end
	return nil
}

// takeTrailers accepts trailers after an explicit end of the body, as Envoy does.
func (s *side) takeTrailers() error {
	switch {
	case !s.sent.trailers:
		return spurious("trailers answered that were not sent")
	case !s.got.headers:
		return spurious("trailers answered before the headers")
	case s.got.trailers:
		return spurious("trailers answered twice")
	}
	s.got.trailers = true
	return nil
}

// complete reports whether every frame was sent and answered. If the server ends the stream earlier, Envoy loses the frames that it
// has not answered.
func (s *side) complete() bool {
	switch {
	case !s.got.headers:
		return false
	case s.sent.trailers:
		return s.got.trailers
	case s.duplex:
		return s.sent.bodyless || s.got.end
	}
	return true
}
