//go:build nixl && cgo && linux

package nixl

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/transfer"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(envPeer); name != "" {
		os.Exit(bePeer(name))
	}
	if name := os.Getenv(envTransport); name != "" {
		os.Exit(beTransport(name))
	}
	if name := os.Getenv(envTCP); name != "" {
		os.Exit(beTCP(name))
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what is promised without a figure.
const patience = time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func startAgent(t testing.TB, library, name string) *Agent {
	t.Helper()
	a, err := New(Config{Name: name, Library: library})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAgent(t, a) })
	return a
}

func closeAgent(t testing.TB, a *Agent) {
	t.Helper()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func load(t testing.TB, a *Agent, metadata []byte) transfer.Peer {
	t.Helper()
	peer, err := a.Load(within(t), metadata)
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

func mustNotify(t testing.TB, a *Agent, to transfer.Peer, message string) {
	t.Helper()
	if err := a.Notify(within(t), to, []byte(message)); err != nil {
		t.Fatal(err)
	}
}

// receive takes the next message of an agent.
func receive(t testing.TB, a *Agent) transfer.Notification {
	t.Helper()
	select {
	case n, ok := <-a.Notifications():
		if !ok {
			t.Fatal("the agent was closed")
		}
		return n
	case <-within(t).Done():
		t.Fatal("no message came")
		return transfer.Notification{}
	}
}

func mustReceive(t testing.TB, a *Agent, from *Agent, message string) {
	t.Helper()
	n := receive(t, a)
	if string(n.From) != from.Name() || string(n.Message) != message {
		t.Fatalf("got %q from %s, want %q from %s", n.Message, n.From, message, from.Name())
	}
}

func wantErr(t testing.TB, got error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(got, w) {
			t.Fatalf("got error %v, want %v", got, w)
		}
	}
}

// fakeLibrary compiles testdata/fake.c.
func fakeLibrary(t testing.TB, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), soname)
	compile := exec.Command("cc", append([]string{"-shared", "-fPIC", "-Wall", "-o", path, "testdata/fake.c"}, flags...)...)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compiling the fake library: %v\n%s", err, out)
	}
	return path
}
