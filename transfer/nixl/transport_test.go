//go:build nixl && cgo && linux

package nixl

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/transfertest"
)

// envTransport makes the test binary a Transport of this name, which registers envMemory bytes of pattern, prints its
// metadata and then what it is told. envTLS says by which means it is reached.
const (
	envTransport = "TANDEM_NIXL_TEST_TRANSPORT"
	envMemory    = "TANDEM_NIXL_TEST_MEMORY"
	envTLS       = "TANDEM_NIXL_TEST_TLS"
	ownersSeed   = 5
)

// kinds are the means of transport that there are on every machine: with the first the reader copies out of the peer's
// memory while it posts, with the second the peer has to send.
var kinds = map[string]string{"all": "", "tcp": "tcp"}

func beTransport(name string) int {
	if err := serveTransport(name); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// envTCP makes the test binary the same over Go's own TCP, to be compared with.
const envTCP = "TANDEM_NIXL_TEST_TCP"

func beTCP(name string) int {
	t, err := transport.NewTCP(transport.TCPConfig{Name: name})
	if err == nil {
		err = serve(t, func(size int) ([]byte, error) { return make([]byte, size), nil })
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func serveTransport(name string) error {
	t, err := NewTransport(TransportConfig{Config: Config{Name: name, Library: os.Getenv(EnvLibrary), TLS: os.Getenv(envTLS)}})
	if err != nil {
		return err
	}
	return serve(t, func(size int) ([]byte, error) {
		mem, _, err := t.Alloc(size)
		return mem, err
	})
}

// serve registers memory and prints what comes.
func serve(t transfer.Transport, alloc func(size int) ([]byte, error)) error {
	var size int
	if _, err := fmt.Sscan(os.Getenv(envMemory), &size); err != nil {
		return err
	}
	mem, err := alloc(size)
	if err != nil {
		return err
	}
	transfertest.Fill(mem, ownersSeed)
	if _, err := t.Register(mem); err != nil {
		return err
	}
	fmt.Println(base64.StdEncoding.EncodeToString(t.Metadata()))
	for n := range t.Notifications() {
		fmt.Printf("%s %s\n", n.From, n.Message)
		if string(n.Message) == "close" {
			fmt.Println("closing:", t.Close())
		}
	}
	return nil
}

func pattern(size, seed int) []byte {
	mem := make([]byte, size)
	transfertest.Fill(mem, seed)
	return mem
}

func startTransportProcess(t testing.TB, library, tls, name string, size int) *peerProcess {
	t.Helper()
	return startProcess(t, library, envTransport+"="+name, envTLS+"="+tls, envMemory+"="+fmt.Sprint(size))
}

func startTransport(t testing.TB, c TransportConfig) *Transport {
	t.Helper()
	a, err := NewTransport(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeTransport(t, a) })
	return a
}

func realTransport(t testing.TB, name, tls string) *Transport {
	t.Helper()
	return startTransport(t, TransportConfig{Config: Config{Name: name, Library: transfertest.NIXLLibrary(t), TLS: tls}})
}

func closeTransport(t testing.TB, a *Transport) {
	t.Helper()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func loadPeer(t testing.TB, a *Transport, metadata []byte) transfer.Peer {
	t.Helper()
	peer, err := a.Load(within(t), metadata)
	if err != nil {
		t.Fatal(err)
	}
	return peer
}

// allocated returns memory that the transport can register. It is freed when the test ends.
func allocated(t testing.TB, a *Transport, size int) []byte {
	t.Helper()
	mem, free, err := a.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closeTransport(t, a)
		if err := free(); err != nil {
			t.Error(err)
		}
	})
	return mem
}

// registered registers memory that is filled with a pattern.
func registered(t testing.TB, a *Transport, size, seed int) (transfer.Region, []byte) {
	t.Helper()
	mem := allocated(t, a, size)
	transfertest.Fill(mem, seed)
	r, err := a.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	return r, mem
}

func buffers(spans []transfer.Span) [][]byte {
	into := make([][]byte, len(spans))
	for i, s := range spans {
		into[i] = make([]byte, s.Length)
	}
	return into
}

// scattered are count blocks of a region, of which every second is left out, the last first.
func scattered(region uint32, size, count int) []transfer.Span {
	spans := make([]transfer.Span, count)
	for i := range spans {
		spans[i] = transfer.Span{Region: region, Offset: uint64((count - 1 - i) * 2 * size), Length: uint64(size)}
	}
	return spans
}

func wantBytes(t testing.TB, into [][]byte, spans []transfer.Span, memory ...[]byte) {
	t.Helper()
	for i, s := range spans {
		if !bytes.Equal(into[i], memory[s.Region][s.Offset:][:s.Length]) {
			t.Fatalf("span %d (%+v) has wrong bytes", i, s)
		}
	}
}

func TestReadFromProcess(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	for name, tls := range kinds {
		t.Run(name, func(t *testing.T) {
			const size, count = 64 << 10, 1024
			owner := startTransportProcess(t, library, tls, "owner", 2*size*count)
			memory := pattern(2*size*count, ownersSeed)
			reader := realTransport(t, "reader", tls)
			from := loadPeer(t, reader, owner.metadata)
			if from != "owner" {
				t.Errorf("the peer is called %s", from)
			}
			for round := range 2 {
				spans := scattered(0, size, count)
				into := buffers(spans)
				message := fmt.Sprint("read-", round)
				if err := reader.Read(within(t), from, spans, into, []byte(message)); err != nil {
					t.Fatal(err)
				}
				wantBytes(t, into, spans, memory)
				if got := owner.line(t); got != "reader "+message {
					t.Errorf("the owner was told %q", got)
				}
			}
		})
	}
}

// longRead reads a peer's memory over and over into one buffer, a gigabyte in all: long enough for things to happen to it.
func longRead(t *testing.T, reader *Transport, from transfer.Peer, size int) <-chan error {
	t.Helper()
	buffer := make([]byte, size)
	var spans []transfer.Span
	var into [][]byte
	for range 1 << 30 / size {
		spans = append(spans, transfer.Span{Length: uint64(size)})
		into = append(into, buffer)
	}
	failed := make(chan error, 1)
	go func() { failed <- reader.Read(t.Context(), from, spans, into, []byte("read")) }()
	until(t, func() bool { return users(reader, from) > 0 }, func() string { return "the read does not begin" })
	return failed
}

// A peer that dies amid a read is gone, and is known again when it lives again under its name.
func TestPeerDiesAmidRead(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	for name, tls := range kinds {
		t.Run(name, func(t *testing.T) {
			const size = 8 << 20
			owner := startTransportProcess(t, library, tls, "owner", size)
			reader := realTransport(t, "reader", tls)
			from := loadPeer(t, reader, owner.metadata)
			spans := []transfer.Span{{Length: size}}
			mustRead(t, reader, from, spans, pattern(size, ownersSeed))
			failed := longRead(t, reader, from, size)
			owner.kill(t)
			wantErr(t, <-failed, transfer.ErrGone)
			wantErr(t, reader.Read(within(t), from, spans, buffers(spans), nil), transfer.ErrGone)
			wantErr(t, reader.Notify(within(t), from, nil), transfer.ErrGone)

			again := startTransportProcess(t, library, tls, "owner", size)
			if now := loadPeer(t, reader, again.metadata); now != from {
				t.Errorf("it is called %s now", now)
			}
			mustRead(t, reader, from, spans, pattern(size, ownersSeed))
			_, err := reader.Load(within(t), owner.metadata)
			wantErr(t, err, transfer.ErrRestarted)
		})
	}
}

// A peer that restarts during a read, before its end was noticed: running reads fail, later ones succeed.
func TestPeerRestartsAmidRead(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	const size = 8 << 20
	owner := startTransportProcess(t, library, "tcp", "owner", size)
	again := startTransportProcess(t, library, "tcp", "owner", size)
	reader := realTransport(t, "reader", "tcp")
	from := loadPeer(t, reader, owner.metadata)
	failed := longRead(t, reader, from, size)
	loadPeer(t, reader, again.metadata)
	wantErr(t, <-failed, transfer.ErrRestarted)
	mustRead(t, reader, from, []transfer.Span{{Length: size}}, pattern(size, ownersSeed))
}

// TestReadFromStoppedPeer: calls to a stopped peer run into their deadline, and calls to others are not delayed. What the
// peer sends after it continues reaches no caller's memory.
func TestReadFromStoppedPeer(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	const size = 16 << 20
	spans := []transfer.Span{{Length: size}}
	stopped := startTransportProcess(t, library, "tcp", "stopped", size)
	beside := startTransportProcess(t, library, "tcp", "beside", size)
	reader := realTransport(t, "reader", "tcp")
	from, other := loadPeer(t, reader, stopped.metadata), loadPeer(t, reader, beside.metadata)
	mustRead(t, reader, from, spans, pattern(size, ownersSeed))
	stopped.signal(t, syscall.SIGSTOP)

	into := buffers(spans)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantErr(t, reader.Read(ctx, from, spans, into, []byte("read")), context.DeadlineExceeded)
	mark := bytes.Repeat([]byte{0xee}, size)
	copy(into[0], mark)
	if reader.Memory().Quarantined == 0 {
		t.Error("nothing is in quarantine")
	}
	mustRead(t, reader, other, spans, pattern(size, ownersSeed))
	if err := reader.Notify(within(t), other, []byte("beside")); err != nil {
		t.Fatal(err)
	}
	if got := beside.line(t); got != "reader beside" {
		t.Errorf("the other peer got %q", got)
	}

	stopped.signal(t, syscall.SIGCONT)
	eventually(t, reader, MemoryUse{Mapped: reader.Memory().Mapped})
	if !bytes.Equal(into[0], mark) {
		t.Error("bytes landed after the read had returned")
	}
	mustRead(t, reader, from, spans, pattern(size, ownersSeed))
	if err := reader.Notify(within(t), from, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if got := stopped.line(t); got != "reader first" {
		t.Errorf("the peer was told %q of a read that had failed", got)
	}
}

// A reader that closes amid its reads leaves the owner well.
func TestReaderClosesAmidRead(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	for name, tls := range kinds {
		t.Run(name, func(t *testing.T) {
			const size = 8 << 20
			owner := startTransportProcess(t, library, tls, "owner", size)
			for range 3 {
				reader := realTransport(t, "reader", tls)
				failed := longRead(t, reader, loadPeer(t, reader, owner.metadata), size)
				closeTransport(t, reader)
				wantErr(t, <-failed, transfer.ErrClosed)
			}
			reader := realTransport(t, "last", tls)
			mustRead(t, reader, loadPeer(t, reader, owner.metadata), []transfer.Span{{Length: size}}, pattern(size, ownersSeed))
		})
	}
}

// An owner that closes amid reads leaves no reader without an answer, and itself well.
func TestOwnerClosesAmidRead(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	for name, tls := range kinds {
		t.Run(name, func(t *testing.T) {
			const size = 8 << 20
			owner := startTransportProcess(t, library, tls, "owner", size)
			reader := realTransport(t, "reader", tls)
			from := loadPeer(t, reader, owner.metadata)
			failed := longRead(t, reader, from, size)
			if err := reader.Notify(within(t), from, []byte("close")); err != nil {
				t.Fatal(err)
			}
			wantErr(t, <-failed, transfer.ErrGone)
			if got := owner.line(t); got != "reader close" {
				t.Errorf("got %q", got)
			}
			if got := owner.line(t); got != "closing: <nil>" {
				t.Errorf("got %q", got)
			}
		})
	}
}
