package keeper

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
)

// The test binary is the process as well, when it is started with one of these as its first argument.
const (
	asProcess  = "keeper-process"  // a TCP agent behind Serve
	asMute     = "keeper-mute"     // says nothing
	asBabbler  = "keeper-babbler"  // speaks nonsense
	asDecliner = "keeper-decliner" // says why it cannot
	asDead     = "keeper-dead"     // ends at once
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "keeper-") {
		os.Exit(be(os.Args[1]))
	}
	goleak.VerifyTestMain(m)
}

func be(what string) int {
	conn, err := Socket()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	switch what {
	case asDead:
		fmt.Fprintln(os.Stderr, "cannot go\non")
		return 3
	case asDecliner:
		err = Decline(conn, errors.New("there is no library"))
	case asBabbler:
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	case asMute:
	default:
		err = beProcess(conn)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = conn.Read(make([]byte, 1)) // until the other side hangs up
	return 0
}

func beProcess(conn net.Conn) error {
	agent, err := transport.NewTCP(transport.TCPConfig{Name: "keeper"})
	if err != nil {
		return err
	}
	return Serve(conn, fragile{agent}, base64.StdEncoding.EncodeToString(agent.Metadata()))
}

// fragile dies of, or hangs on, what it is told to.
type fragile struct{ transfer.Notifier }

var (
	deadly = []byte("deadly")
	sticky = []byte("sticky")
)

func (f fragile) Load(ctx context.Context, metadata []byte) (transfer.Peer, error) {
	switch {
	case bytes.Equal(metadata, deadly):
		os.Exit(139)
	case bytes.Equal(metadata, sticky):
		select {}
	}
	return f.Notifier.Load(ctx, metadata)
}

// slow is a peer that the agent takes longer to look up than any caller waits.
const slow = transfer.Peer("slow")

func (f fragile) Notify(ctx context.Context, to transfer.Peer, message []byte) error {
	if to == slow {
		<-time.After(300 * time.Millisecond)
	}
	return f.Notifier.Notify(ctx, to, message)
}

const patience = time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// start keeps a process of the given kind.
func start(t testing.TB, what string, change ...func(*Config)) *Keeper {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Path: self, Args: []string{what}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Pause: time.Millisecond}
	for _, f := range change {
		f(&c)
	}
	k := Start(c)
	t.Cleanup(func() { closeKeeper(t, k) })
	return k
}

func closeKeeper(t testing.TB, k *Keeper) {
	t.Helper()
	if err := k.Close(); err != nil {
		t.Error(err)
	}
}

// living is the process's life, nil between two.
func living(k *Keeper) *life {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.life
}

// await waits until the process is as it should be.
func await(t testing.TB, k *Keeper, ok func(State) bool) State {
	t.Helper()
	ctx := within(t)
	for {
		s, changed := k.State()
		if ok(s) {
			return s
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the process stays %+v", s)
		}
	}
}

// up waits until the process can be called, after so many starts.
func up(t testing.TB, k *Keeper, starts int) State {
	t.Helper()
	return await(t, k, func(s State) bool { return s.Up() && s.Starts >= starts })
}

func agent(t testing.TB, name string) *transport.TCP {
	t.Helper()
	a, err := transport.NewTCP(transport.TCPConfig{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func load(t testing.TB, n transfer.Notifier, metadata []byte) transfer.Peer {
	t.Helper()
	peer, err := n.Load(within(t), metadata)
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

func mustReceive(t testing.TB, n transfer.Notifier, from, message string) {
	t.Helper()
	select {
	case got := <-n.Notifications():
		if string(got.From) != from || string(got.Message) != message {
			t.Fatalf("got %q from %q, want %q from %q", got.Message, got.From, message, from)
		}
	case <-within(t).Done():
		t.Fatalf("%q from %q does not come", message, from)
	}
}

func wantErr(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got error %v, want %v", got, want)
	}
}
