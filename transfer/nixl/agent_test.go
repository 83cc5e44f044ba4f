//go:build nixl && cgo && linux

package nixl

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/transfertest"
)

// envPeer makes the test binary an agent of this name, which prints its metadata and then what it is told.
const envPeer = "TANDEM_NIXL_TEST_PEER"

func bePeer(name string) int {
	a, err := New(Config{Name: name, Library: os.Getenv(EnvLibrary)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(base64.StdEncoding.EncodeToString(a.Metadata()))
	for n := range a.Notifications() {
		fmt.Printf("%s %s\n", n.From, n.Message)
	}
	return 0
}

// peerProcess is an agent in a process of its own.
type peerProcess struct {
	metadata []byte
	lines    *bufio.Scanner
	process  *os.Process
}

func startPeer(t *testing.T, library, name string) *peerProcess {
	t.Helper()
	return startProcess(t, library, envPeer+"="+name)
}

// startProcess runs the test binary as what the environment says, and reads its metadata.
func startProcess(t testing.TB, library string, environment ...string) *peerProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(append(os.Environ(), EnvLibrary+"="+library), environment...)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p := &peerProcess{lines: bufio.NewScanner(out), process: c.Process}
	t.Cleanup(func() {
		p.kill(t)
		_, _ = io.Copy(io.Discard, out)
		_ = c.Wait() // it was killed
	})
	if p.metadata, err = base64.StdEncoding.DecodeString(p.line(t)); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *peerProcess) line(t testing.TB) string {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("the peer ended: %v", p.lines.Err())
	}
	return p.lines.Text()
}

func (p *peerProcess) kill(t testing.TB) {
	t.Helper()
	if err := p.process.Kill(); err != nil && err != os.ErrProcessDone {
		t.Fatal(err)
	}
}

func (p *peerProcess) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func TestNotify(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	toB := load(t, a, b.Metadata())
	if string(toB) != b.Name() || !strings.HasPrefix(b.Name(), "b-") {
		t.Fatalf("the peer is called %s, its agent %s", toB, b.Name())
	}
	if err := a.Connect(within(t), toB); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", transfer.MaxMessage)
	for _, message := range []string{"", "HB:one,two", "a\x00b", long} {
		mustNotify(t, a, toB, message)
		mustReceive(t, b, a, message)
	}
	// Being loaded is no condition for sending, only for being sent to.
	wantErr(t, b.Notify(within(t), transfer.Peer(a.Name()), nil), transfer.ErrUnknownPeer)
	toA := load(t, b, a.Metadata())
	mustNotify(t, b, toA, "back")
	mustReceive(t, a, b, "back")
	if len(a.Metadata()) > 1000 {
		t.Errorf("metadata of an agent without memory has %d bytes", len(a.Metadata()))
	}
}

func TestRefusals(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	ended, end := context.WithCancel(t.Context())
	end()
	toB := load(t, a, b.Metadata())
	for name, c := range map[string]struct {
		err  func() error
		want error
	}{
		"unknown peer":               {func() error { return a.Notify(within(t), "unloaded", nil) }, transfer.ErrUnknownPeer},
		"unknown peer to connect to": {func() error { return a.Connect(within(t), "unloaded") }, transfer.ErrUnknownPeer},
		"too long":                   {func() error { return a.Notify(within(t), toB, make([]byte, transfer.MaxMessage+1)) }, transfer.ErrInvalid},
		"ended context":              {func() error { return a.Notify(ended, toB, nil) }, context.Canceled},
		"own metadata":               {func() error { return loadErr(t, a, a.Metadata()) }, transfer.ErrInvalid},
		"no metadata":                {func() error { return loadErr(t, a, nil) }, transfer.ErrInvalid},
		"garbage":                    {func() error { return loadErr(t, a, []byte("nixlSerDes|AgentAgentAgentAgent")) }, transfer.ErrInvalid},
		"cut off":                    {func() error { return loadErr(t, a, b.Metadata()[:60]) }, transfer.ErrInvalid},
		"too much":                   {func() error { return loadErr(t, a, make([]byte, MaxMetadata+1)) }, transfer.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) { wantErr(t, c.err(), c.want) })
	}
	mustNotify(t, a, load(t, a, b.Metadata()), "still there")
	mustReceive(t, b, a, "still there")
}

func loadErr(t *testing.T, a *Agent, metadata []byte) error {
	t.Helper()
	_, err := a.Load(within(t), metadata)
	return err
}

func TestForget(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	toB := load(t, a, b.Metadata())
	a.Forget(toB)
	a.Forget(toB)
	a.Forget("unloaded")
	wantErr(t, a.Notify(within(t), toB, nil), transfer.ErrUnknownPeer)
	for range 2 { // loading what is loaded is no error
		toB = load(t, a, b.Metadata())
	}
	mustNotify(t, a, toB, "again")
	mustReceive(t, b, a, "again")
}

func TestClose(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	toB := load(t, a, b.Metadata())
	for range 2 {
		closeAgent(t, a)
	}
	wantErr(t, a.Notify(within(t), toB, nil), transfer.ErrClosed)
	wantErr(t, loadErr(t, a, b.Metadata()), transfer.ErrClosed)
	a.Forget(toB)
	if _, open := <-a.Notifications(); open {
		t.Error("a closed agent got a message")
	}
}

// A peer that was killed is told apart from one that is not known, and can be loaded again when it lives again: under the
// name it had, and under a new one.
func TestPeerIsKilled(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	a := startAgent(t, library, "a")
	p := startPeer(t, library, "peer")
	to := load(t, a, p.metadata)
	mustNotify(t, a, to, "one")
	if got := p.line(t); got != a.Name()+" one" {
		t.Fatalf("the peer got %q", got)
	}
	p.kill(t)
	for ctx := within(t); ; {
		err := a.Notify(ctx, to, []byte("two"))
		if err == nil {
			continue // it takes the kernel a moment to say so
		}
		wantErr(t, err, transfer.ErrGone, StatusBackend)
		break
	}
	for _, metadata := range [][]byte{startPeer(t, library, "peer").metadata, renamed(t, startPeer(t, library, "peer").metadata, to)} {
		again := load(t, a, metadata)
		if err := a.Notify(within(t), again, nil); err != nil {
			t.Fatalf("notifying %s, which lives again: %v", again, err)
		}
	}
}

// renamed is metadata under another name of the same length.
func renamed(t *testing.T, metadata []byte, to transfer.Peer) []byte {
	t.Helper()
	name, err := agentName(metadata)
	if err != nil || len(name) != len(to) {
		t.Fatalf("renaming %q to %q: %v", name, to, err)
	}
	return bytes.Replace(metadata, []byte(name), []byte(to), 1)
}

// A stopped peer never answers. A caller waits until its own deadline, and calls for other peers are served.
func TestPeerIsStopped(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	p := startPeer(t, library, "peer")
	to, toB := load(t, a, p.metadata), load(t, a, b.Metadata())
	if err := p.process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := a.Notify(ctx, to, []byte("into the dark")); err != nil {
		wantErr(t, err, context.DeadlineExceeded)
	}
	mustNotify(t, a, toB, "beside")
	mustReceive(t, b, a, "beside")
	if err := p.process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// UCX takes SIGHUP for itself unless it is told not to.
func TestSignalsStayWithGo(t *testing.T) {
	startAgent(t, transfertest.NIXLLibrary(t), "a")
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGHUP)
	defer signal.Stop(got)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	select {
	case <-got:
	case <-within(t).Done():
		t.Fatal("SIGHUP did not reach Go")
	}
}

func TestManyAtOnce(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	b := startAgent(t, library, "b")
	const senders, each = 4, 25
	var sending sync.WaitGroup
	for i := range senders {
		a := startAgent(t, library, fmt.Sprint("sender-", i))
		to := load(t, a, b.Metadata())
		sending.Go(func() {
			for j := range each {
				if err := a.Notify(t.Context(), to, []byte(fmt.Sprint(j))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	next := map[transfer.Peer]int{}
	for range senders * each {
		n := receive(t, b)
		if want := fmt.Sprint(next[n.From]); string(n.Message) != want {
			t.Fatalf("%s sent %s after %s others", n.From, n.Message, want)
		}
		next[n.From]++
	}
	sending.Wait()
}

func BenchmarkNew(b *testing.B) {
	library := transfertest.NIXLLibrary(b)
	for b.Loop() {
		a, err := New(Config{Name: "a", Library: library})
		if err != nil {
			b.Fatal(err)
		}
		closeAgent(b, a)
	}
}

func BenchmarkNotify(b *testing.B) {
	library := transfertest.NIXLLibrary(b)
	a, peer := startAgent(b, library, "a"), startAgent(b, library, "b")
	to := load(b, a, peer.Metadata())
	message := []byte("HB:cmpl-0123456789abcdef0123456789abcdef-0-8a7a7f67")
	b.ReportAllocs()
	for b.Loop() {
		if err := a.Notify(b.Context(), to, message); err != nil {
			b.Fatal(err)
		}
		<-peer.Notifications()
	}
}

// BenchmarkIdle tells what an agent costs that does nothing, as cores.
func BenchmarkIdle(b *testing.B) {
	startAgent(b, transfertest.NIXLLibrary(b), "a")
	before, start := cpu(b), time.Now()
	for b.Loop() {
		<-time.After(10 * time.Millisecond)
	}
	b.ReportMetric(float64(cpu(b)-before)/float64(time.Since(start)), "cores")
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// What was refused once is not refused for having been tried.
func TestLoadAfterRefusal(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	a, b := startAgent(t, library, "a"), startAgent(t, library, "b")
	cut := b.Metadata()[:len(b.Metadata())-1]
	wantErr(t, loadErr(t, a, cut), transfer.ErrInvalid)
	mustNotify(t, a, load(t, a, b.Metadata()), "hello")
	mustReceive(t, b, a, "hello")
}
