package harness

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Gate is a TCP relay that can hold what one side sends, so that a test can act while a leg is in progress. It also relays
// half-closed connections. It holds nothing of a request for a page: those are what the sidecar asks to know an engine.
type Gate struct {
	Addr    string
	Refused atomic.Int32 // how many further connections are closed when they are accepted

	mu     sync.Mutex // guards the fields below
	open   chan struct{}
	Held   chan struct{} // gets one for every read that a closed gate holds
	conns  map[net.Conn]struct{}
	closed bool
	record []*exchange // one for each connection
}

// exchange is the bytes to the engine, and from it, of one connection.
type exchange [2]bytes.Buffer

// asks reports whether the sidecar asks on this connection what the engine is.
func (e *exchange) asks() bool { return bytes.HasPrefix(e[0].Bytes(), []byte("GET ")) }

// Exchanged returns the bytes of both directions so far, without connections on which the sidecar asks what the engine is.
func (g *Gate) Exchanged() (request, answer string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.record {
		if !e.asks() {
			request += e[0].String()
			answer += e[1].String()
		}
	}
	return request, answer
}

// note records b, and reports whether it belongs to a leg.
func (g *Gate) note(e *exchange, way direction, b []byte) (leg bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if way == Requests {
		e[0].Write(b)
	} else {
		e[1].Write(b)
	}
	return !e.asks()
}

// begin makes the record of another connection.
func (g *Gate) begin() *exchange {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := new(exchange)
	g.record = append(g.record, e)
	return e
}

// direction is the direction that a gate holds.
type direction bool

const (
	Requests direction = true
	Answers  direction = false
)

// NewGate relays to addr, and holds nothing until Shut is called.
func NewGate(t *testing.T, addr string, holds direction) *Gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{Addr: l.Addr().String(), open: make(chan struct{}), Held: make(chan struct{}, 64), conns: map[net.Conn]struct{}{}}
	close(g.open)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			if g.Refused.Add(-1) >= 0 {
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
			e := g.begin()
			running.Go(func() { g.relay(e, out, in, Requests, holds); g.drop(in, out) })
			running.Go(func() { g.relay(e, in, out, Answers, holds) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		g.Release()
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

func (g *Gate) keep(conns ...net.Conn) bool {
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

// drop removes a pair whose client has ended: both directions end when the engine has answered or closed.
func (g *Gate) drop(conns ...net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		delete(g.conns, c)
	}
}

func (g *Gate) relay(e *exchange, to, from net.Conn, way, holds direction) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if leg := g.note(e, way, buf[:n]); leg && way == holds {
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
func (g *Gate) wait() {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
		return
	default:
	}
	select {
	case g.Held <- struct{}{}:
	default:
	}
	<-open
}

// Shut holds all bytes from now on.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
	for {
		select {
		case <-g.Held:
			continue
		default:
		}
		return
	}
}

// Release relays the held bytes and all later ones.
func (g *Gate) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}
