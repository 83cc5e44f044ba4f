package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/api"
	"github.com/tandem-serving/tandem/sim/fault"
)

// Server is an engine with its ports open.
type Server struct {
	// Engine answers the requests. Its methods may be called while it serves.
	Engine *sim.Engine
	// Faults hit the requests of the data port.
	Faults *fault.List
	// Handler is what the data port serves.
	Handler http.Handler
	// URL is http://host:port of the data port, Admin of the admin port, SideChannel the host:port that hand-offs name.
	URL, Admin, SideChannel string

	port  *port
	admin *http.Server
	ended chan struct{}
}

// shutdownGrace is how long requests get to write their last error after the engine has ended.
const shutdownGrace = 2 * time.Second

// Front stands before an engine on its data port, to translate for clients that speak another protocol.
type Front func(engine http.Handler) http.Handler

// Start is Serve on two free ports of the loopback interface.
func Start(cfg sim.Config, fronts ...Front) (*Server, error) {
	data, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("opening the data port: %w", err)
	}
	admin, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the admin port: %w", err), data.Close())
	}
	return Serve(cfg, data, admin, fronts...)
}

// Serve starts an engine and serves it on the given listeners. It closes them when the engine ends, by Close or by a request
// that kills it, and when it returns an error. The last of the fronts is the first to get a request.
func Serve(cfg sim.Config, data, admin net.Listener, fronts ...Front) (*Server, error) {
	e, err := sim.New(cfg)
	if err != nil {
		return nil, errors.Join(err, data.Close(), admin.Close())
	}
	faults := fault.NewList()
	handler := api.NewHandler(e, faults)
	for _, front := range fronts {
		handler = front(handler)
	}
	s := &Server{
		Engine: e, Faults: faults, Handler: handler,
		URL: "http://" + data.Addr().String(), Admin: "http://" + admin.Addr().String(), SideChannel: e.SideChannelAddress(),
		ended: make(chan struct{}),
	}
	cfg = e.Config()
	s.port = newPort(data, &http.Server{Handler: s.Handler, IdleTimeout: cfg.KeepAlive, ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug)})
	s.admin = &http.Server{Handler: Admin(e, faults), ReadHeaderTimeout: 5 * time.Second}
	faults.WatchPort(s.port.setClosed)
	go s.run(admin, cfg.Logger)
	return s, nil
}

// run serves the admin port until the engine has ended, and then waits until everything else has.
func (s *Server) run(admin net.Listener, log *slog.Logger) {
	defer close(s.ended)
	var adminDone sync.WaitGroup
	adminDone.Go(func() {
		if err := s.admin.Serve(admin); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serving the admin port", "error", err)
		}
	})
	<-s.Engine.Done()
	s.Faults.WatchPort(nil)
	s.port.end()
	if err := s.admin.Close(); err != nil {
		log.Error("closing the admin port", "error", err)
	}
	adminDone.Wait()
	<-s.Engine.Finished()
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

// SideChannelAddr is SideChannel as a net.Addr.
func (s *Server) SideChannelAddr() net.Addr { return hostPort(s.SideChannel) }

// hostPort is an address that may have a name for a host.
type hostPort string

// Network implements net.Addr.
func (hostPort) Network() string { return "tcp" }

// String implements net.Addr.
func (a hostPort) String() string { return string(a) }
