package server

import (
	"errors"
	"net"
	"net/http"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/api"
	"github.com/tandem-serving/tandem/sim/fault"
)

// Server is a vLLM engine with its ports open.
type Server struct {
	// Engine answers the requests. Its methods may be called while it serves.
	Engine *sim.Engine
	// Faults hit the requests of the data port.
	Faults *fault.List
	// Handler is what the data port serves.
	Handler http.Handler
	// URL is http://host:port of the data port, Admin of the admin port, SideChannel the host:port that hand-offs name.
	URL, Admin, SideChannel string

	ports *ports
}

// Front stands before an engine on its data port, to translate for clients that speak another protocol.
type Front func(engine http.Handler) http.Handler

// Start is Serve on two free ports of the loopback interface.
func Start(cfg sim.Config, fronts ...Front) (*Server, error) {
	data, admin, err := freePorts()
	if err != nil {
		return nil, err
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
	}
	cfg = e.Config()
	s.ports = open(e, handler, Admin(faults, func() any { return e.State() }), data, admin, cfg.KeepAlive, cfg.Logger)
	faults.WatchPort(s.ports.data.setClosed)
	go s.ports.run(faults)
	return s, nil
}

// Close ends the engine as SIGTERM ends the real one, and waits for everything. It may be called again.
func (s *Server) Close() {
	s.Engine.Close()
	<-s.ports.ended
}

// Wait returns when the engine has ended and its ports are closed: what it died of, or nil after Close.
func (s *Server) Wait() error {
	<-s.ports.ended
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
