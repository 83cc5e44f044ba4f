package simtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/sglang/api"
	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
)

// SGLangNetwork connects SGLang engines in memory, for tests in a synctest bubble.
type SGLangNetwork struct {
	agents *transport.MemNetwork

	mu        sync.Mutex
	listeners map[string]*pipeListener // by address
	ports     int                      // handed out so far
}

// NewSGLangNetwork makes a network without engines.
func NewSGLangNetwork() *SGLangNetwork {
	return &SGLangNetwork{agents: transport.NewMemNetwork(), listeners: make(map[string]*pipeListener)}
}

// SGLangEngine is an engine without sockets.
type SGLangEngine struct {
	*sglang.Engine
	// Faults hit its requests.
	Faults *fault.List
	// Bootstrap is the address of its bootstrap server.
	Bootstrap string

	handler http.Handler
}

// Start runs an engine for the length of the test, at the model's own speed.
func (n *SGLangNetwork) Start(t *testing.T, mode sglang.Mode, change ...func(*sglang.Config)) *SGLangEngine {
	t.Helper()
	cfg := sglang.Config{Mode: mode, TimeScale: 1, Network: n, Bootstrap: "memory:0", Open: func(name string) (transfer.Transport, error) {
		return transport.NewMem(n.agents, name)
	}}
	for _, f := range change {
		f(&cfg)
	}
	e, err := sglang.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	faults := fault.NewList()
	return &SGLangEngine{Engine: e, Faults: faults, Bootstrap: e.Bootstrap(), handler: api.NewHandler(e, faults)}
}

// Meet returns the members that a body needs for a hand-off from this engine.
func (e *SGLangEngine) Meet(room uint64) map[string]any {
	host, port, _ := net.SplitHostPort(e.Bootstrap)
	n, _ := strconv.Atoi(port)
	return map[string]any{"bootstrap_host": host, "bootstrap_port": n, "bootstrap_room": room}
}

// Post sends a body as JSON. The status is 0 if there was no answer.
func (e *SGLangEngine) Post(ctx context.Context, path string, body any) (r Reply) {
	return e.do(ctx, http.MethodPost, path, string(pyjson.Encode(body)))
}

// Get reads a page.
func (e *SGLangEngine) Get(ctx context.Context, path string) Reply {
	return e.do(ctx, http.MethodGet, path, "")
}

func (e *SGLangEngine) do(ctx context.Context, method, path, body string) (r Reply) {
	req := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	defer func() {
		if broken := recover(); broken != nil && broken != http.ErrAbortHandler {
			panic(broken)
		}
	}()
	e.handler.ServeHTTP(w, req)
	if ctx.Err() != nil {
		return Reply{}
	}
	return Reply{w.Code, w.Header(), w.Body.Bytes()}
}

// Listen implements sglang.Network.
func (n *SGLangNetwork) Listen(address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if port == "0" {
		n.ports++
		address = net.JoinHostPort(host, strconv.Itoa(n.ports))
	}
	if n.listeners[address] != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, syscall.EADDRINUSE)
	}
	l := &pipeListener{network: n, address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[address] = l
	return l, nil
}

// DialContext implements sglang.Network. A port where no engine listens refuses connections.
func (n *SGLangNetwork) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("connecting to %s: %w", address, syscall.ECONNREFUSED)
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return newBuffered(ours), nil
	case <-l.closed:
		return nil, fmt.Errorf("connecting to %s: %w", address, syscall.ECONNREFUSED)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Silence has a port accept connections, as long as the test runs, and answer nothing.
func (n *SGLangNetwork) Silence(t *testing.T, address string) {
	t.Helper()
	l, err := n.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go func() { // takes what is written, as a socket's buffer does
				b := make([]byte, 4096)
				for {
					if _, err := conn.Read(b); err != nil {
						return
					}
				}
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
}

// buffered is a pipe that takes what is written before the other side reads, as a socket does.
type buffered struct {
	net.Conn
	mu      sync.Mutex
	pending []byte
	closed  bool
	wake    chan struct{}
}

func newBuffered(pipe net.Conn) *buffered {
	b := &buffered{Conn: pipe, wake: make(chan struct{}, 1)}
	go b.pump()
	return b
}

// Write implements net.Conn.
func (b *buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, net.ErrClosed
	}
	b.pending = append(b.pending, p...)
	b.signal()
	return len(p), nil
}

// Close implements net.Conn. The other side still gets what was written.
func (b *buffered) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.signal()
	return nil
}

func (b *buffered) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// pump writes to the pipe until it is closed.
func (b *buffered) pump() {
	for range b.wake {
		b.mu.Lock()
		p, closed := b.pending, b.closed
		b.pending = nil
		b.mu.Unlock()
		if closed {
			go func() { _, _ = io.Copy(io.Discard, b.Conn) }() // or the other side could not close, either
		}
		var err error
		if len(p) > 0 {
			_, err = b.Conn.Write(p)
		}
		if err != nil || closed {
			_ = b.Conn.Close()
			return
		}
	}
}

// pipeListener is one address of an SGLangNetwork.
type pipeListener struct {
	network *SGLangNetwork
	address string
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return newBuffered(conn), nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *pipeListener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		err = nil
		close(l.closed)
		l.network.mu.Lock()
		defer l.network.mu.Unlock()
		delete(l.network.listeners, l.address)
	})
	return err
}

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return pipeAddr(l.address) }

// pipeAddr is an address of an SGLangNetwork.
type pipeAddr string

// Network implements net.Addr.
func (pipeAddr) Network() string { return "memory" }

// String implements net.Addr.
func (a pipeAddr) String() string { return string(a) }
