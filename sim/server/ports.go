package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/sim/fault"
)

// ports are the open ports of an engine.
type ports struct {
	engine engine
	data   *port
	admin  *http.Server
	listen net.Listener // of admin
	log    *slog.Logger
	ended  chan struct{} // closed once everything has ended
}

// engine is what the ports need of an engine.
type engine interface {
	// Done is closed when the ports have to close, Finished when every goroutine of the engine has ended.
	Done() <-chan struct{}
	Finished() <-chan struct{}
}

// shutdownGrace is how long requests get to write their last error after the engine has ended.
const shutdownGrace = 2 * time.Second

// freePorts opens two ports of the loopback interface.
func freePorts() (data, admin net.Listener, err error) {
	if data, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, nil, fmt.Errorf("opening the data port: %w", err)
	}
	if admin, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("opening the admin port: %w", err), data.Close())
	}
	return data, admin, nil
}

// open begins to serve the data port. run has to follow.
func open(e engine, handler, adminHandler http.Handler, data, admin net.Listener, keepAlive time.Duration, log *slog.Logger) *ports {
	return &ports{
		engine: e, listen: admin, log: log, ended: make(chan struct{}),
		data:  newPort(data, &http.Server{Handler: handler, IdleTimeout: keepAlive, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}),
		admin: &http.Server{Handler: adminHandler, ReadHeaderTimeout: 5 * time.Second},
	}
}

// run serves the admin port until the engine has ended, and then waits until everything else has.
func (p *ports) run(faults *fault.List) {
	defer close(p.ended)
	var adminDone sync.WaitGroup
	adminDone.Go(func() {
		if err := p.admin.Serve(p.listen); !errors.Is(err, http.ErrServerClosed) {
			p.log.Error("serving the admin port", "error", err)
		}
	})
	<-p.engine.Done()
	faults.WatchPort(nil)
	p.data.end()
	if err := p.admin.Close(); err != nil {
		p.log.Error("closing the admin port", "error", err)
	}
	adminDone.Wait()
	<-p.engine.Finished()
}
