package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Server is an engine with its ports open.
type Server struct {
	// Engine is what serves; its Go calls may be used beside the ports.
	Engine *Engine
	// URL is http://host:port of the data port, Admin of the admin port, SideChannel the host:port that hand-offs name.
	URL, Admin, SideChannel string

	port  *port
	admin *http.Server
	ended chan struct{}
}

// shutdownGrace is how long requests get to write their last error once the engine is gone.
const shutdownGrace = 2 * time.Second

// Start is Serve on two free ports of the loopback interface.
func Start(cfg Config) (*Server, error) {
	data, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("opening the data port: %w", err)
	}
	admin, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the admin port: %w", err), data.Close())
	}
	return Serve(cfg, data, admin)
}

// Serve makes an engine and serves it on the given listeners, which it closes when the engine ends: by Close, or by a
// request it dies of. They are closed after an error, too.
func Serve(cfg Config, data, admin net.Listener) (*Server, error) {
	e, err := New(cfg)
	if err != nil {
		return nil, errors.Join(err, data.Close(), admin.Close())
	}
	s := &Server{
		Engine: e,
		URL:    "http://" + data.Addr().String(), Admin: "http://" + admin.Addr().String(), SideChannel: e.SideChannelAddress(),
		port:  newPort(data, &http.Server{Handler: e.Handler(), IdleTimeout: e.cfg.KeepAlive, ErrorLog: slog.NewLogLogger(e.log.Handler(), slog.LevelDebug)}),
		admin: &http.Server{Handler: e.Admin(), ReadHeaderTimeout: 5 * time.Second},
		ended: make(chan struct{}),
	}
	e.faults.onPort(s.port.setClosed)
	go s.run(admin)
	return s, nil
}

// run serves the admin port until the engine has ended and everything else has.
func (s *Server) run(admin net.Listener) {
	defer close(s.ended)
	var adminDone sync.WaitGroup
	adminDone.Go(func() {
		if err := s.admin.Serve(admin); !errors.Is(err, http.ErrServerClosed) {
			s.Engine.log.Error("serving the admin port", "error", err)
		}
	})
	<-s.Engine.Done()
	s.Engine.faults.onPort(nil)
	s.port.end()
	if err := s.admin.Close(); err != nil {
		s.Engine.log.Error("closing the admin port", "error", err)
	}
	adminDone.Wait()
	<-s.Engine.finished
}

// Close ends the engine as SIGTERM ends the real one, and waits for everything. It may be called again.
func (s *Server) Close() {
	s.Engine.Close()
	<-s.ended
}

// Wait returns when the engine has ended and its ports are closed: what it died of, or nil after Close.
func (s *Server) Wait() error {
	<-s.ended
	return s.Engine.Err()
}

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

// serve is called with mu held, or before any client knows the port.
func (p *port) serve(l net.Listener) {
	p.listener = l
	p.serving.Go(func() {
		// Serve always returns an error: the listener was closed, by end or by setClosed.
		_ = p.server.Serve(l)
	})
}

func (p *port) setClosed(closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended || closed == (p.listener == nil):
	case closed:
		p.closeListener()
	default:
		// The port was ours a moment ago; if another process has taken it meanwhile, it stays closed, which the test that
		// asked for it notices.
		if l, err := net.Listen("tcp", p.address); err == nil {
			p.serve(l)
		}
	}
}

func (p *port) closeListener() {
	_ = p.listener.Close() // the only error is that it is closed
	p.listener = nil
}

// end lets running requests write what they have, for a moment. It does not use Shutdown, which would announce itself in
// their headers.
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
	_ = p.server.Close() // no more listeners, so no error either
	p.serving.Wait()
}

// busyConns are the connections on which a request is being answered. A connection stops being busy once the last byte of
// its answer has been written, which is later than the end of the handler.
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

// SideChannelAddress is the host:port that hand-offs name.
func (e *Engine) SideChannelAddress() string {
	return net.JoinHostPort(e.identity.host, strconv.Itoa(e.identity.port))
}

// ID is the engine id that hand-offs name; it is new for every start.
func (e *Engine) ID() string { return e.identity.engineID }

// SideChannelAddr is SideChannel as a net.Addr.
func (s *Server) SideChannelAddr() net.Addr { return hostPort(s.SideChannel) }

// hostPort is an address that may have a name for a host.
type hostPort string

// Network implements net.Addr.
func (hostPort) Network() string { return "tcp" }

// String implements net.Addr.
func (a hostPort) String() string { return string(a) }
