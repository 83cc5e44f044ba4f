package server

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// port is the data port, which a fault can close and open again.
type port struct {
	address string
	server  *http.Server

	mu       sync.Mutex
	listener net.Listener // nil while closed
	ended    bool
	serving  sync.WaitGroup
	conns    busyConns
}

func newPort(l net.Listener, server *http.Server) *port {
	p := &port{address: l.Addr().String(), server: server, conns: busyConns{busy: make(map[net.Conn]struct{})}}
	server.ConnState = p.conns.changed
	p.serve(l)
	return p
}

// serve serves a listener. mu is held, or no client knows the port yet.
func (p *port) serve(l net.Listener) {
	p.listener = l
	p.serving.Go(func() {
		// Serve always returns an error: the listener was closed, by end or by setClosed.
		_ = p.server.Serve(l)
	})
}

// setClosed closes the port, or opens it again.
func (p *port) setClosed(closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended || closed == (p.listener == nil):
	case closed:
		p.closeListener()
	default:
		// If another process has taken the port meanwhile, it stays closed, and the test that closed it notices.
		if l, err := net.Listen("tcp", p.address); err == nil {
			p.serve(l)
		}
	}
}

func (p *port) closeListener() {
	_ = p.listener.Close() // the only error is that it is closed
	p.listener = nil
}

// end closes the port after running requests have written their answers, or after shutdownGrace. It does not use Shutdown,
// which would add a header to the answers.
func (p *port) end() {
	p.mu.Lock()
	p.ended = true
	if p.listener != nil {
		p.closeListener()
	}
	p.mu.Unlock()
	grace := time.NewTimer(shutdownGrace)
	defer grace.Stop()
	select {
	case <-p.conns.drained():
	case <-grace.C:
	}
	_ = p.server.Close() // its errors are those of listeners, and there are none any more
	p.serving.Wait()
}

// busyConns are the connections on which a request is being answered. A connection is busy until the last byte of its answer has
// been written, which is later than the end of the handler.
type busyConns struct {
	mu   sync.Mutex
	busy map[net.Conn]struct{}
	idle chan struct{} // closed when the last one stops being busy, if a caller waits
}

// changed is an http.Server's ConnState.
func (c *busyConns) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateActive {
		c.busy[conn] = struct{}{}
		return
	}
	delete(c.busy, conn)
	if len(c.busy) == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// drained returns a channel that is closed as soon as no connection is busy. It is for one caller.
func (c *busyConns) drained() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := make(chan struct{})
	if len(c.busy) == 0 {
		close(idle)
	} else {
		c.idle = idle
	}
	return idle
}
