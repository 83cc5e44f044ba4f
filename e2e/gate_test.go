package e2e

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// gate is a TCP relay that can hold what one side sends, so that a test can act while a leg is on its way. It passes
// half-closed connections on as such.
type gate struct {
	addr    string
	refused atomic.Int32 // how many connections are still to be closed as they come

	mu     sync.Mutex // guards what follows
	open   chan struct{}
	held   chan struct{} // gets one for every read that meets a closed gate
	conns  map[net.Conn]struct{}
	closed bool
	record [2]bytes.Buffer // what went to the engine, and what came back
}

// exchanged gives the bytes of both ways so far.
func (g *gate) exchanged() (request, answer string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.record[0].String(), g.record[1].String()
}

func (g *gate) note(way direction, b []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if way == requests {
		g.record[0].Write(b)
	} else {
		g.record[1].Write(b)
	}
}

// direction says which way a gate can hold.
type direction bool

const (
	requests direction = true
	answers  direction = false
)

// newGate relays to addr and holds nothing until shut is called.
func newGate(t *testing.T, addr string, holds direction) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{addr: l.Addr().String(), open: make(chan struct{}), held: make(chan struct{}, 64), conns: map[net.Conn]struct{}{}}
	close(g.open)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			if g.refused.Add(-1) >= 0 {
				in.Close()
				continue
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				in.Close()
				continue
			}
			if !g.keep(in, out) {
				return
			}
			running.Go(func() { g.relay(out, in, requests, holds); g.drop(in, out) })
			running.Go(func() { g.relay(in, out, answers, holds) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		g.release()
		g.mu.Lock()
		g.closed = true
		for c := range g.conns {
			c.Close()
		}
		g.mu.Unlock()
		running.Wait()
	})
	return g
}

func (g *gate) keep(conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		g.conns[c] = struct{}{}
		if g.closed {
			c.Close()
		}
	}
	return !g.closed
}

// drop forgets a pair whose client has ended: both directions are over once the engine has answered or closed.
func (g *gate) drop(conns ...net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		delete(g.conns, c)
	}
}

func (g *gate) relay(to, from net.Conn, way, holds direction) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			g.note(way, buf[:n])
			if way == holds {
				g.wait()
			}
			if _, werr := to.Write(buf[:n]); werr != nil {
				from.Close()
				return
			}
		}
		if err != nil {
			if err == io.EOF {
				to.(*net.TCPConn).CloseWrite()
			} else {
				to.Close()
			}
			return
		}
	}
}

// wait blocks while the gate is shut.
func (g *gate) wait() {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
		return
	default:
	}
	select {
	case g.held <- struct{}{}:
	default:
	}
	<-open
}

// shut holds what comes from now on.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
	for {
		select {
		case <-g.held:
			continue
		default:
		}
		return
	}
}

// release lets everything pass.
func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}
