package handoff

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// hangup ends a prefill leg whose client has left, without losing the hand-off of a prefill that is about to finish.
//
// Closing the connection aborts a running prefill and frees its blocks. But an engine that has just finished drops the
// answer when it sees the connection close, and with it the only copy of the hand-off: its blocks then stay pinned until the
// lease expires, because they cannot be released. So hangup waits first: a short prefill ends by itself, and its
// hand-off is released. A longer one is aborted by closing our half of the connection, which leaves an answer that is already
// on its way readable. Only a prefill that ends within the milliseconds in which it is aborted still loses its hand-off.
//
// An engine that closes the connection then, without an answer, looks to net/http like one that has closed an idle connection, at which a leg is
// sent again. hangup prevents that. A nil hangup is of a leg that is never hung up on.
type hangup struct {
	cancel context.CancelFunc

	mu    sync.Mutex // guards what follows
	conn  net.Conn
	timer *time.Timer
	hung  bool // the leg was hung up on
	over  bool
}

const (
	// hangupDelay is how long a prefill may go on for a client that has left. The blocks must be free 2 s after it left.
	hangupDelay = time.Second
	// hangupGrace is how long an answer may still be on its way after our half was closed: far more than a network takes.
	hangupGrace = 500 * time.Millisecond
)

// trace makes a leg's connection known to the hangup.
func (h *hangup) trace(ctx context.Context) context.Context {
	if h == nil {
		return ctx
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conn = info.Conn
	}})
}

// errHungUp is the error of a leg that would be sent again.
var errHungUp = errors.New("the leg was ended, and its engine has closed the connection")

// onlyOnce has net/http not send a leg again once it was hung up on.
func (h *hangup) onlyOnce(leg *http.Request) {
	open := leg.GetBody
	if h == nil || open == nil {
		return
	}
	leg.GetBody = func() (io.ReadCloser, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.hung {
			return nil, errHungUp
		}
		return open()
	}
}

// schedule hangs up after hangupDelay.
func (h *hangup) schedule() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over {
		h.timer = time.AfterFunc(hangupDelay, h.hangUp)
	}
}

// hangUp closes our half of the connection, and cancels the leg after hangupGrace; at once if the leg has no connection yet.
func (h *hangup) hangUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	half, ok := h.conn.(interface{ CloseWrite() error })
	h.hung = true
	if h.over || !ok || half.CloseWrite() != nil {
		h.cancel()
		return
	}
	h.timer = time.AfterFunc(hangupGrace, h.cancel)
}

// done says that the leg has ended: nothing is hung up on any more.
func (h *hangup) done() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if h.timer != nil {
		h.timer.Stop()
	}
	h.cancel()
}
