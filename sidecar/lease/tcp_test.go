package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer/keeper"
)

// asKeeper makes the test binary the process of a keeper, whose agent is a TCP one.
const asKeeper = "lease-keeper"

func beKeeper() error {
	conn, err := keeper.Socket()
	if err != nil {
		return err
	}
	agent, err := transport.NewTCP(transport.TCPConfig{Name: fmt.Sprint("sidecar-", os.Getpid())})
	if err != nil {
		return keeper.Decline(conn, err)
	}
	return keeper.Serve(conn, agent, "tcp")
}

func tcpAgent(t testing.TB, c transport.TCPConfig) *transport.TCP {
	t.Helper()
	a, err := transport.NewTCP(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// serve listens on loopback and gives each connection to handle, until the test ends or stop is called.
func serve(t testing.TB, at string, handle func(net.Conn)) (host string, port int, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				handle(c)
			})
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		l.Close()
		serving.Wait()
	})
	t.Cleanup(stop)
	host, text, _ := net.SplitHostPort(l.Addr().String())
	port, _ = strconv.Atoi(text)
	return host, port, stop
}

// tcpEngine returns a prefill engine that is reached as in life; at may be ":0" behind an address.
func tcpEngine(t testing.TB, id, at string, ranks ...transport.TCPConfig) (p *prefill, stop func()) {
	t.Helper()
	p = &prefill{id: id, tensor: max(len(ranks), 1), pipeline: 1}
	if len(ranks) == 0 {
		ranks = []transport.TCPConfig{{}}
	}
	for i, c := range ranks {
		c.Name = fmt.Sprintf("%s-%d", id, i)
		p.ranks = append(p.ranks, tcpAgent(t, c))
	}
	var stopServing func()
	p.host, p.port, stopServing = serve(t, at, p.talk)
	return p, func() {
		stopServing()
		for _, r := range p.ranks {
			r.Close()
		}
	}
}

// mustGet waits for the next message to a rank.
func (p *prefill) mustGet(t testing.TB, rank int, want string) {
	t.Helper()
	select {
	case n := <-p.ranks[rank].Notifications():
		if string(n.Message) != want {
			t.Fatalf("rank %d of %s got %q, want %q", rank, p.id, n.Message, want)
		}
	case <-within(t).Done():
		t.Fatalf("rank %d of %s does not get %q", rank, p.id, want)
	}
}

const loopback = "127.0.0.1:0"

func TestOverTCP(t *testing.T) {
	p, stop := tcpEngine(t, "e", loopback, transport.TCPConfig{}, transport.TCPConfig{})
	b := New(Config{Noticer: vllm, Notifier: tcpAgent(t, transport.TCPConfig{Name: "sidecar"}), Lease: term})
	defer b.Close()
	h := b.Hold(p.handoff(t, "r1"), time.Now().Add(-third))
	for rank := range 2 {
		p.mustGet(t, rank, "HB:r1")
	}
	if err := h.Release(within(t)); err != nil {
		t.Fatal(err)
	}
	p.only(t, release(t, "r1"))

	// It is started again at the same place, as another.
	stop()
	wantUnsure(t, b.Hold(p.handoff(t, "r2"), time.Now()).Release(within(t)))
	next, _ := tcpEngine(t, "f", net.JoinHostPort(p.host, strconv.Itoa(p.port)))
	wantErr(t, b.Hold(p.handoff(t, "r3"), time.Now()).Release(within(t)), ErrNoWay)
	if err := b.Hold(next.handoff(t, "r4"), time.Now()).Release(within(t)); err != nil {
		t.Fatal(err)
	}
	next.only(t, release(t, "r4"))
}

// A rank that takes connections, and says nothing, holds up its own engine only.
func TestSilentRankOverTCP(t *testing.T) {
	const lease = 6 * time.Second
	host, port, _ := serve(t, loopback, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	mute, _ := tcpEngine(t, "mute", loopback, transport.TCPConfig{Advertise: net.JoinHostPort(host, strconv.Itoa(port))})
	well, _ := tcpEngine(t, "well", loopback)
	b := New(Config{Noticer: vllm, Notifier: tcpAgent(t, transport.TCPConfig{Name: "sidecar"}), Lease: lease})
	defer b.Close()
	due := time.Now().Add(-lease / 3)
	b.Hold(mute.handoff(t, "r1"), due)
	b.Hold(well.handoff(t, "r2"), due)
	well.mustGet(t, 0, "HB:r2")
	began := time.Now()
	wantUnsure(t, b.Hold(mute.handoff(t, "r3"), began).Release(within(t))) // timed out or closed: both come at the same moment
	if took := time.Since(began); took > patience/2 {
		t.Errorf("took %s", took)
	}
}

// The dialer has the last word on where side channels may be.
func TestDialerRefuses(t *testing.T) {
	p, _ := tcpEngine(t, "e", loopback)
	denied := errors.New("address is not allowed")
	d := &net.Dialer{Control: func(string, string, syscall.RawConn) error { return denied }}
	b := New(Config{Noticer: vllm, Notifier: tcpAgent(t, transport.TCPConfig{Name: "sidecar"}), Dialer: d})
	defer b.Close()
	err := b.Hold(p.handoff(t, "r"), time.Now()).Release(within(t))
	wantErr(t, err, ErrNoWay)
	wantErr(t, err, denied)
	_, err = b.Connect(within(t), p.host, p.port)
	wantErr(t, err, denied)
}

// The NIXL agent process dies: the next one knows no peers, and has to load them again.
func TestOverAKeeper(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	k := keeper.Start(keeper.Config{Path: self, Args: []string{asKeeper}, Pause: time.Millisecond})
	defer k.Close()
	upAfter := func(starts int) {
		t.Helper()
		for ctx := within(t); ; {
			s, changed := k.State()
			if s.Up() && s.Starts >= starts {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("the process stays %+v", s)
			}
		}
	}
	p, _ := tcpEngine(t, "e", loopback)
	b := New(Config{Noticer: vllm, Notifier: k, Lease: time.Minute})
	defer b.Close()
	upAfter(1)
	for i, id := range []string{"r1", "r2"} {
		if i > 0 {
			kill(t, k, p)
			upAfter(2)
		}
		if err := b.Hold(p.handoff(t, id), time.Now()).Release(within(t)); err != nil {
			t.Fatal(err)
		}
		p.mustGet(t, 0, release(t, id))
	}
	if c := b.Counts(); c.Connects != 2 || c.FailedConnects != 0 {
		t.Errorf("%+v", c)
	}
}

// kill ends the present process, whose id is in the name that its agent's peers know.
func kill(t *testing.T, k *keeper.Keeper, p *prefill) {
	t.Helper()
	peer, err := k.Load(within(t), p.ranks[0].Metadata())
	if err == nil {
		err = k.Notify(within(t), peer, []byte("who"))
	}
	if err != nil {
		t.Fatal(err)
	}
	n := <-p.ranks[0].Notifications()
	pid, err := strconv.Atoi(string(n.From)[len("sidecar-"):])
	if err != nil {
		t.Fatal(err)
	}
	_, changed := k.State()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-within(t).Done():
		t.Fatal("the process does not end")
	}
}
