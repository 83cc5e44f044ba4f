package lease

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asKeeper {
		if err := beKeeper(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const (
	patience = time.Minute
	term     = 30 * time.Second // the lease
)

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// world is a set of engines and an in-memory network between them and a registry, so that synctest's clock applies.
type world struct {
	t     testing.TB
	net   *transport.MemNetwork
	self  *recorder
	talks sync.WaitGroup

	mu       sync.Mutex
	handlers map[string]func(net.Conn) // what answers at an address
	dials    []string
	open     int
	opened   int // most at once
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, net: transport.NewMemNetwork(), handlers: make(map[string]func(net.Conn))}
	w.self = &recorder{Notifier: w.agent("sidecar")}
	t.Cleanup(w.talks.Wait)
	return w
}

func (w *world) agent(name string) *transport.Mem {
	w.t.Helper()
	a, err := transport.NewMem(w.net, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func (w *world) registry(change ...func(*Config)) *Registry {
	w.t.Helper()
	c := Config{Noticer: vllm, Notifier: w.self, Dialer: w, Lease: term, Log: slog.New(slog.NewTextHandler(w.t.Output(), nil))}
	for _, f := range change {
		f(&c)
	}
	b := New(c)
	w.t.Cleanup(b.Close)
	return b
}

var errRefused = errors.New("connection refused")

// DialContext connects the registry to a side channel.
func (w *world) DialContext(_ context.Context, _, address string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dials = append(w.dials, address)
	handle := w.handlers[address]
	if handle == nil {
		return nil, errRefused
	}
	w.open++
	w.opened = max(w.opened, w.open)
	ours, theirs := net.Pipe()
	w.talks.Go(func() {
		handle(theirs)
		theirs.Close()
	})
	return &client{Conn: ours, closed: func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open--
	}}, nil
}

// client is the registry's end of a connection.
type client struct {
	net.Conn
	once   sync.Once
	closed func()
}

func (c *client) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}

func (w *world) dialled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.dials)
}

func (w *world) mostOpen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened
}

func (w *world) openNow() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open
}

func (w *world) put(address string, handle func(net.Conn)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handlers[address] = handle
}

// prefill is an engine of some ranks.
type prefill struct {
	id               string
	host             string
	port             int
	tensor, pipeline int
	ranks            []transfer.Transport // pipeline by pipeline
	asked            chan int             // which rank, if not nil
}

// engine starts a prefill engine that is found at host, port 5600.
func (w *world) engine(id, host string, layout ...int) *prefill {
	w.t.Helper()
	p := &prefill{id: id, host: host, port: 5600, tensor: 1, pipeline: 1}
	if len(layout) == 2 {
		p.tensor, p.pipeline = layout[0], layout[1]
	}
	for rank := range p.tensor * p.pipeline {
		p.ranks = append(p.ranks, w.agent(fmt.Sprintf("%s-%d", id, rank)))
	}
	w.put(address(host, p.port), p.talk)
	return p
}

// vllm is vLLM's dialect.
var vllm = func() dialect.Noticer {
	d, _ := dialect.New("nixlv2", dialect.Options{})
	return d.(dialect.Noticer)
}()

// handoff returns a hand-off of the engine.
func (p *prefill) handoff(t testing.TB, id string) dialect.Pin {
	t.Helper()
	return dialect.Pin{EngineID: p.id, RequestID: id, Host: p.host, Port: p.port, Tensor: p.tensor, Pipeline: p.pipeline}
}

// got returns the messages to a rank that the test has not checked yet.
func (p *prefill) got(rank int) (messages []string) {
	for {
		select {
		case n := <-p.ranks[rank].Notifications():
			messages = append(messages, string(n.Message))
		default:
			return messages
		}
	}
}

// only checks that every rank was sent exactly these messages, in order, since the last check.
func (p *prefill) only(t testing.TB, want ...string) {
	t.Helper()
	for rank := range p.ranks {
		if got := p.got(rank); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("rank %d of %s got %q, want %q", rank, p.id, got, want)
		}
	}
}

var (
	routerGreeting = append([]byte{0: 0xff, 8: 1, 9: 0x7f, 10: 3, 12: 'N', 13: 'U', 14: 'L', 15: 'L'}, make([]byte, 48)...)
	routerReady    = "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
)

// listen reads a question, as a side channel does, and returns the ranks in it.
func listen(conn net.Conn) (pipeline, tensor int, err error) {
	if _, err := io.ReadFull(conn, make([]byte, 64)); err != nil {
		return 0, 0, err
	}
	if _, err := conn.Write(routerGreeting); err != nil {
		return 0, 0, err
	}
	r := bufio.NewReader(conn)
	for {
		var head [2]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return 0, 0, err
		}
		body := make([]byte, head[1])
		if _, err := io.ReadFull(r, body); err != nil {
			return 0, 0, err
		}
		if head[0] == 0 { // the last part
			return int(body[len(body)-2]), int(body[len(body)-1]), nil
		}
	}
}

// talk serves the engine's side channel.
func (p *prefill) talk(conn net.Conn) {
	pipeline, tensor, err := listen(conn)
	rank := pipeline*p.tensor + tensor
	if err != nil || tensor >= p.tensor || rank >= len(p.ranks) {
		return
	}
	if p.asked != nil {
		p.asked <- rank
	}
	_, _ = conn.Write([]byte(answerOf(p.id, p.ranks[rank].Metadata())))
}

// answerOf returns a side channel's answer about a rank: two msgpack maps, one inside the other, after a delimiter.
func answerOf(id string, agent []byte) string {
	inner := "\x82\xa9engine_id" + binOf(id) + "\xaeagent_metadata" + binOf(string(agent))
	return routerReady + "\x01\x00" + frameOf("\x81\xb4agent_metadata_bytes"+binOf(inner))
}

func binOf(s string) string {
	return "\xc6" + string(binary.BigEndian.AppendUint32(nil, uint32(len(s)))) + s
}

func frameOf(s string) string {
	return "\x02" + string(binary.BigEndian.AppendUint64(nil, uint64(len(s)))) + s
}

// recorder is a Notifier that records the calls of a registry, and passes them on.
type recorder struct {
	transfer.Notifier

	mu        sync.Mutex
	before    func(ctx context.Context, to transfer.Peer, message string) error // an error of it is the call's
	loads     int
	forgotten []transfer.Peer
}

func (p *recorder) onNotify(f func(ctx context.Context, to transfer.Peer, message string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = f
}

func (p *recorder) Notify(ctx context.Context, to transfer.Peer, message []byte) error {
	p.mu.Lock()
	before := p.before
	p.mu.Unlock()
	if before != nil {
		if err := before(ctx, to, string(message)); err != nil {
			return err
		}
	}
	return p.Notifier.Notify(ctx, to, message)
}

func (p *recorder) Load(ctx context.Context, metadata []byte) (transfer.Peer, error) {
	p.mu.Lock()
	p.loads++
	p.mu.Unlock()
	return p.Notifier.Load(ctx, metadata)
}

func (p *recorder) Forget(peer transfer.Peer) {
	p.Notifier.Forget(peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgotten = append(p.forgotten, peer)
}

func (p *recorder) forgottenPeers() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprint(p.forgotten)
}

// connect has the registry connect to an engine, by a hand-off that ends at once.
func connect(t testing.TB, b *Registry, p *prefill) {
	t.Helper()
	h := b.Hold(p.handoff(t, "first"), time.Now())
	defer h.End()
	if _, err := b.connectedRanks(within(t), h.engine); err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got error %v, want %v", got, want)
	}
}

// wantUnsure checks that the error says that a message may have been sent.
func wantUnsure(t testing.TB, got error) {
	t.Helper()
	if got == nil || errors.Is(got, ErrNoWay) || errors.Is(got, ErrReleased) {
		t.Fatalf("got error %v, want one that says that something may have been sent", got)
	}
}

func release(t testing.TB, id string) string {
	t.Helper()
	notice, ok := dialect.ReleaseNotice(id)
	if !ok {
		t.Fatalf("%q cannot be named", id)
	}
	return string(notice)
}
