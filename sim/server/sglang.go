package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/sglang/api"
)

// SGLang is an SGLang engine with its ports open.
type SGLang struct {
	// Engine answers the requests. Its methods may be called while it serves.
	Engine *sglang.Engine
	// Faults hit the requests of the data port.
	Faults *fault.List
	// Handler is what the data port serves.
	Handler http.Handler
	// URL is http://host:port of the data port, Admin of the admin port, Bootstrap the host:port of a prefill engine's bootstrap
	// server.
	URL, Admin, Bootstrap string

	ports *ports
}

// StartSGLang is ServeSGLang on free ports of the loopback interface, unless the configuration has one for the bootstrap server.
func StartSGLang(cfg sglang.Config) (*SGLang, error) {
	data, admin, err := freePorts()
	if err != nil {
		return nil, err
	}
	if cfg.Bootstrap == "" && cfg.Mode == sglang.Prefill {
		cfg.Bootstrap = "127.0.0.1:0"
	}
	return ServeSGLang(cfg, data, admin)
}

// ServeSGLang starts an engine and serves it on the given listeners. It closes them when the engine ends, and when it returns an
// error.
func ServeSGLang(cfg sglang.Config, data, admin net.Listener) (*SGLang, error) {
	if cfg.Port == 0 {
		_, port, _ := net.SplitHostPort(data.Addr().String())
		cfg.Port, _ = strconv.Atoi(port)
	}
	e, err := sglang.New(cfg)
	if err != nil {
		return nil, errors.Join(err, data.Close(), admin.Close())
	}
	faults := fault.NewList()
	s := &SGLang{
		Engine: e, Faults: faults, Handler: api.NewHandler(e, faults),
		URL: "http://" + data.Addr().String(), Admin: "http://" + admin.Addr().String(), Bootstrap: e.Bootstrap(),
	}
	cfg = e.Config()
	s.ports = open(e, s.Handler, Admin(faults, func() any { return e.State() }), data, admin, cfg.Times.KeepAlive, cfg.Logger)
	faults.WatchPort(s.ports.data.setClosed)
	go s.ports.run(faults)
	return s, nil
}

// Close ends the engine at once, and waits for everything. It may be called again.
func (s *SGLang) Close() {
	s.Engine.Close()
	<-s.ports.ended
}

// Drain ends the engine as SIGTERM does: when no request is left, or ctx ends. It waits for everything in the first case.
func (s *SGLang) Drain(ctx context.Context) {
	s.Engine.Drain(ctx)
	if ctx.Err() == nil {
		<-s.ports.ended
	}
}

// Wait returns when the engine has ended and its ports are closed: what it died of, or nil after Close.
func (s *SGLang) Wait() error {
	<-s.ports.ended
	return s.Engine.Err()
}

// BootstrapAddr is Bootstrap as a net.Addr.
func (s *SGLang) BootstrapAddr() net.Addr { return hostPort(s.Bootstrap) }
