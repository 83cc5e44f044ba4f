package server

import (
	"errors"
	"net"
	"net/http"

	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/trtllm"
	"github.com/tandem-serving/tandem/sim/trtllm/api"
)

// TRTLLM is an engine of TensorRT-LLM with its ports open.
type TRTLLM struct {
	// Engine answers the requests. Its methods may be called while it serves.
	Engine *trtllm.Engine
	// Faults hit the requests of the data port.
	Faults *fault.List
	// Handler is what the data port serves.
	Handler http.Handler
	// URL is http://host:port of the data port, Admin of the admin port.
	URL, Admin string

	ports *ports
}

// StartTRTLLM is ServeTRTLLM on free ports of the loopback interface.
func StartTRTLLM(cfg trtllm.Config) (*TRTLLM, error) {
	data, admin, err := freePorts()
	if err != nil {
		return nil, err
	}
	return ServeTRTLLM(cfg, data, admin)
}

// ServeTRTLLM starts an engine and serves it on the given listeners. It closes them when the engine ends, and when it returns an error.
func ServeTRTLLM(cfg trtllm.Config, data, admin net.Listener) (*TRTLLM, error) {
	e, err := trtllm.New(cfg)
	if err != nil {
		return nil, errors.Join(err, data.Close(), admin.Close())
	}
	faults := fault.NewList()
	s := &TRTLLM{Engine: e, Faults: faults, Handler: api.NewHandler(e, faults), URL: "http://" + data.Addr().String(), Admin: "http://" + admin.Addr().String()}
	cfg = e.Config()
	s.ports = open(e, s.Handler, Admin(faults, func() any { return e.State() }), data, admin, cfg.Times.KeepAlive, cfg.Logger)
	faults.WatchPort(s.ports.data.setClosed)
	go s.ports.run(faults)
	return s, nil
}

// Close ends the engine, and waits for everything. It may be called again.
func (s *TRTLLM) Close() {
	s.Engine.Close()
	<-s.ports.ended
}

// Wait returns when the engine has ended and its ports are closed: what it died of, or nil after Close.
func (s *TRTLLM) Wait() error {
	<-s.ports.ended
	return s.Engine.Err()
}

// EndpointAddr is where generation engines ask for KV.
func (s *TRTLLM) EndpointAddr() net.Addr { return hostPort(s.Engine.Endpoint()) }
