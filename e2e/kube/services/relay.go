package services

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// dialTimeout bounds the wait for an endpoint that does not answer. Clients that give up earlier are waited with in vain, so
// it is not the two minutes of Linux.
const dialTimeout = 30 * time.Second

// relay has a listener for each port of a Service with endpoints.
type relay struct {
	ctx      context.Context // ends all connections
	troubles *troubles
	fronts   map[netip.AddrPort]*front
	running  sync.WaitGroup // connections
}

// front is where a Service is reached.
type front struct {
	listener *net.TCPListener
	to       atomic.Pointer[[]netip.AddrPort]
	turn     atomic.Uint64
	done     chan struct{} // closed when nothing is taken any more
}

func newRelay(ctx context.Context, t *troubles) *relay {
	return &relay{ctx: ctx, troubles: t, fronts: map[netip.AddrPort]*front{}}
}

// apply makes the listeners those of a table. It is called by one goroutine at a time. A listener that cannot be had is
// tried again with the next table.
func (r *relay) apply(fronts map[netip.AddrPort][]netip.AddrPort) {
	for at, f := range r.fronts {
		if _, stays := fronts[at]; !stays {
			f.close()
			delete(r.fronts, at)
		}
	}
	for at, to := range fronts {
		if f := r.fronts[at]; f != nil {
			f.to.Store(&to)
			continue
		}
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
		if err != nil {
			r.troubles.add(fmt.Errorf("listening for a Service: %w", err))
			continue
		}
		f := &front{listener: l, done: make(chan struct{})}
		f.to.Store(&to)
		r.fronts[at] = f
		go r.accept(f)
	}
}

// close ends the listener; what it has taken goes on.
func (f *front) close() {
	_ = f.listener.Close()
	<-f.done
}

// stop ends everything. The context has ended before.
func (r *relay) stop() {
	for _, f := range r.fronts {
		f.close()
	}
	r.running.Wait()
}

func (r *relay) accept(f *front) {
	defer close(f.done)
	for {
		client, err := f.listener.AcceptTCP()
		if err != nil {
			r.troubles.add(err)
			return
		}
		to := *f.to.Load()
		endpoint := to[f.turn.Add(1)%uint64(len(to))]
		r.running.Go(func() { r.serve(client, endpoint) })
	}
}

// serve connects a client with an endpoint until both are done. What breaks on one side breaks on the other.
func (r *relay) serve(client *net.TCPConn, endpoint netip.AddrPort) {
	defer client.Close()
	dialer := net.Dialer{Timeout: dialTimeout}
	made, err := dialer.DialContext(r.ctx, "tcp4", endpoint.String())
	if err != nil {
		reset(client)
		return
	}
	server := made.(*net.TCPConn)
	defer server.Close()
	defer context.AfterFunc(r.ctx, func() { reset(client, server) })()
	var back sync.WaitGroup
	back.Go(func() { pass(client, server) })
	pass(server, client)
	back.Wait()
}

// pass takes what one side sends, and its end, to the other.
func pass(to, from *net.TCPConn) {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		reset(to, from)
	}
}

// reset ends connections so that the other sides see that they broke.
func reset(connections ...*net.TCPConn) {
	for _, c := range connections {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}
