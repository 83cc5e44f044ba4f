package sidecar

import (
	"context"
	"net"
	"net/http/httptrace"
	"sync"
	"time"
)

// hangup ends a prefill leg whose client has left without losing sight of a prefill that has just finished.
//
// Closing the connection aborts a running prefill and frees its blocks. If the answer is already on its way, closing loses
// it: the engine believes it delivered, and holds the blocks for the lease. So only our half is closed at first. An
// engine still at work takes that as a disconnect and aborts; from one that has finished the answer still comes, and the
// hand-off in it can be given back.
type hangup struct {
	cancel context.CancelFunc

	mu   sync.Mutex // guards conn and hung
	conn net.Conn
	hung bool
	stop *time.Timer
}

// hangupGrace is how long an answer may still be on its way after our half was closed: far more than a network takes.
const hangupGrace = time.Second

// trace makes a leg's connection known to the hangup.
func (h *hangup) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conn = info.Conn
		if h.hung {
			h.cancel()
		}
	}})
}

// up hangs up. A leg that has no connection yet is cancelled.
func (h *hangup) up() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hung = true
	half, ok := h.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		h.cancel()
		return
	}
	h.stop = time.AfterFunc(hangupGrace, h.cancel)
}

// done ends the hangup with its leg.
func (h *hangup) done() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stop != nil {
		h.stop.Stop()
	}
	h.cancel()
}
