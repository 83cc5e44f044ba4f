package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

const (
	// maxSessions bounds accepted connections, each of which takes about 100 KiB of buffers at most. It is enough for 1,300
	// peers with three connections each.
	maxSessions = 4096
	// acceptPause is the pause after a failed accept, which would otherwise fail again at once and use a whole core.
	acceptPause = 100 * time.Millisecond
)

// TCPConfig configures a TCP agent. Zero values mean the defaults named here.
type TCPConfig struct {
	// Name is the name that peers have for this agent. It is required, and unique among agents that know each other.
	Name string
	// Listen is host:port to accept peers on. Default 127.0.0.1:0: loopback, because there is no authentication.
	Listen string
	// Advertise is the host:port in the metadata, which peers dial. Default: the address of the listener, which must then be a
	// single address.
	Advertise string
	// Connections is how many connections to one peer are opened for data, each when it is first needed. Default 2: one stream
	// does not fill a fast link. Notifications have one more, so that they do not wait for data.
	Connections int
	// DialTimeout bounds connecting and the exchange of hellos, on both sides. Default 5 s.
	DialTimeout time.Duration
	// StallTimeout is how long a peer may make no progress, with an answer or with reading requests, before its connection is
	// closed. Default 30 s; contexts bound calls more tightly.
	StallTimeout time.Duration
	// IdleTimeout is how long an unused connection stays open. Default 60 s. An accepted one stays open four times as long, so
	// that usually the side that sends requests closes it.
	IdleTimeout time.Duration
	// Logger gets protocol errors of peers at Debug level, and failures to accept at Warn. Default: none.
	Logger *slog.Logger
}

func (c *TCPConfig) setDefaults() {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Connections == 0 {
		c.Connections = 2
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 30 * time.Second
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func (c *TCPConfig) validate() error {
	if err := checkName(c.Name); err != nil {
		return err
	}
	if c.Connections < 0 || c.DialTimeout < 0 || c.StallTimeout < 0 || c.IdleTimeout < 0 {
		return fmt.Errorf("%w: negative number of connections or timeout", transfer.ErrInvalid)
	}
	if c.Advertise == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Advertise); err != nil || len(c.Advertise) > maxAddress {
		return fmt.Errorf("%w: address to advertise %q: want host:port of at most %d bytes", transfer.ErrInvalid, c.Advertise, maxAddress)
	}
	return nil
}

// TCP is an agent that peers reach over the network: a Transport in pure Go. Use NewTCP.
type TCP struct {
	config   TCPConfig
	self     identity
	listener net.Listener
	memory   regions
	inbox    *inbox
	done     chan struct{}  // closed by Close
	work     sync.WaitGroup // every goroutine this agent started

	mu       sync.Mutex
	closed   bool
	peers    map[transfer.Peer]*remote
	sessions map[*session]struct{}
}

var _ transfer.Transport = (*TCP)(nil)

// NewTCP starts an agent that listens until Close. Errors: ErrInvalid for the configuration, or the listener's.
func NewTCP(config TCPConfig) (*TCP, error) {
	config.setDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("starting TCP agent: %w", err)
	}
	listener, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return nil, fmt.Errorf("starting TCP agent: %w", err)
	}
	if config.Advertise == "" {
		addr := listener.Addr().(*net.TCPAddr)
		if addr.IP.IsUnspecified() {
			_ = listener.Close() // the configuration is wrong, whatever closing returns
			return nil, fmt.Errorf("starting TCP agent: %w: listening on all addresses needs one to advertise", transfer.ErrInvalid)
		}
		config.Advertise = addr.String()
	}
	t := &TCP{
		config:   config,
		self:     identity{name: config.Name, generation: rand.Uint64()},
		listener: listener,
		inbox:    newInbox(),
		done:     make(chan struct{}),
		peers:    make(map[transfer.Peer]*remote),
		sessions: make(map[*session]struct{}),
	}
	t.work.Go(t.accept)
	return t, nil
}

// Addr returns the host:port that peers dial.
func (t *TCP) Addr() string { return t.config.Advertise }

// Metadata implements Transport.
func (t *TCP) Metadata() []byte {
	return metadata{identity: t.self, kind: kindTCP, address: t.config.Advertise, regions: t.memory.lengths()}.append(nil)
}

// Register implements Transport.
func (t *TCP) Register(mem []byte) (transfer.Region, error) {
	r, err := t.memory.register(mem)
	if err != nil {
		return nil, err // not r: a nil *region in an interface is not nil
	}
	return r, nil
}

// Load implements Notifier. It contacts no peer: the first read or notification does.
func (t *TCP) Load(ctx context.Context, blob []byte) (transfer.Peer, error) {
	md, err := loadable(ctx, blob, kindTCP, t.self)
	if err != nil {
		return "", fmt.Errorf("loading metadata: %w", err)
	}
	peer := transfer.Peer(md.name)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return "", fmt.Errorf("loading metadata: %w", transfer.ErrClosed)
	}
	if old := t.peers[peer]; old != nil {
		if old.refresh(md) {
			return peer, nil
		}
		old.close(transfer.ErrRestarted)
	}
	t.peers[peer] = newRemote(t, md)
	return peer, nil
}

// Forget implements Notifier. Calls under way to the peer fail with ErrUnknownPeer.
func (t *TCP) Forget(peer transfer.Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.peers[peer]; r != nil {
		r.close(transfer.ErrUnknownPeer)
		delete(t.peers, peer)
	}
}

// Notify implements Notifier. Nil means that the message is in the peer's queue.
func (t *TCP) Notify(ctx context.Context, to transfer.Peer, message []byte) error {
	r, err := t.loaded(ctx, to, message)
	if err == nil {
		err = r.notify(ctx, message)
	}
	if err != nil {
		return fmt.Errorf("notifying %s: %w", to, err)
	}
	return nil
}

// Notifications implements Notifier.
func (t *TCP) Notifications() <-chan transfer.Notification { return t.inbox.queue }

// Read implements Transport. Many spans, or many bytes, are read in parts over several connections at once.
func (t *TCP) Read(ctx context.Context, from transfer.Peer, spans []transfer.Span, into [][]byte, notify []byte) error {
	r, err := t.loaded(ctx, from, notify)
	if err == nil {
		err = r.read(ctx, spans, into)
	}
	if err == nil && notify != nil {
		err = r.notify(ctx, notify)
	}
	if err != nil {
		return fmt.Errorf("reading from %s: %w", from, err)
	}
	return nil
}

func (t *TCP) loaded(ctx context.Context, peer transfer.Peer, message []byte) (*remote, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkMessage(message); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, transfer.ErrClosed
	}
	r := t.peers[peer]
	if r == nil {
		return nil, transfer.ErrUnknownPeer
	}
	return r, nil
}

// Close implements Transport. Calls under way fail with ErrClosed.
func (t *TCP) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		t.work.Wait()
		return nil
	}
	t.closed = true
	close(t.done)
	err := t.listener.Close()
	for _, r := range t.peers {
		r.close(transfer.ErrClosed)
	}
	t.peers = nil
	for s := range t.sessions {
		s.cut()
	}
	t.mu.Unlock()

	t.memory.closeAll()
	t.work.Wait()
	t.inbox.close()
	if err != nil {
		return fmt.Errorf("closing TCP agent: %w", err)
	}
	return nil
}

// accept accepts peers until the listener is closed.
func (t *TCP) accept() {
	for {
		conn, err := t.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			// Most likely there are too many open files. The next peer waits in the kernel until this loop accepts again.
			t.config.Logger.Warn("accepting a KV peer failed", "error", err)
			select {
			case <-time.After(acceptPause):
			case <-t.done:
				return
			}
		default:
			t.admit(conn.(*net.TCPConn))
		}
	}
}

// admit serves a connection in a goroutine of its own, unless there are too many or the agent is closing.
func (t *TCP) admit(conn *net.TCPConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.sessions) >= maxSessions {
		t.config.Logger.Debug("turned a KV peer away", "peer", conn.RemoteAddr(), "sessions", len(t.sessions))
		_ = conn.Close() // the peer has got no hello
		return
	}
	s := &session{agent: t, conn: conn}
	t.sessions[s] = struct{}{}
	t.work.Go(func() {
		err := s.serve()
		s.cut()
		t.mu.Lock()
		delete(t.sessions, s)
		t.mu.Unlock()
		t.config.Logger.Debug("a KV peer's connection ended", "peer", conn.RemoteAddr(), "cause", err)
	})
}
