package container

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// greets dials an address from a sandbox.
func greets(t *testing.T, s *Sandbox, address string) string {
	t.Helper()
	out, _ := said(t, s, program(t, "dial", address))
	return strings.TrimSpace(out)
}

func TestNetwork(t *testing.T) {
	a := newTestSandbox(t, "a")
	b := addSandbox(t, a.host, "b")
	for s, greeting := range map[*Sandbox]string{a: "hello of a", b: "hello of b"} {
		startReady(t, s, program(t, "listen", "0.0.0.0:8000", greeting))
	}
	startReady(t, a, program(t, "listen", "127.0.0.1:9000", "loopback of a"))
	port := func(s *Sandbox, port int) string { return fmt.Sprintf("%s:%d", s.IP(), port) }
	for _, c := range []struct {
		name    string
		from    *Sandbox
		address string
		want    string
	}{
		{"own address", a, port(a, 8000), "hello of a"},
		{"each other", a, port(b, 8000), "hello of b"},
		{"each other back", b, port(a, 8000), "hello of a"},
		{"own loopback", a, "127.0.0.1:9000", "loopback of a"},
		{"own loopback by name", a, "localhost:9000", "loopback of a"},
		{"own name", b, "b-0:8000", "hello of b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := greets(t, c.from, c.address); got != c.want {
				t.Errorf("%s says %q, want %q", c.address, got, c.want)
			}
		})
	}
	t.Run("another's loopback", func(t *testing.T) {
		if got := greets(t, b, "127.0.0.1:9000"); !strings.Contains(got, "connection refused") {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("node to sandbox", func(t *testing.T) {
		if got, err := ask(port(a, 8000)); got != "hello of a\n" {
			t.Errorf("it says %q: %v", got, err)
		}
	})
	t.Run("sandbox to node", func(t *testing.T) { toNode(t, a) })
}

// ask dials from the node.
func ask(address string) (string, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	out, err := io.ReadAll(c)
	return string(out), err
}

// toNode reaches a service's address, which is one of loopback's on the node, and tells the caller's address.
func toNode(t *testing.T, s *Sandbox) {
	t.Helper()
	if err := ip(t.Context(), "", "addr add 10.0.0.77/32 dev lo"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ip(t.Context(), "", "addr del 10.0.0.77/32 dev lo"); err != nil {
			t.Error(err)
		}
	}()
	l, err := net.Listen("tcp", "10.0.0.77:80")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if _, writeErr := io.WriteString(c, host); err != nil || writeErr != nil {
			t.Error(err, writeErr)
		}
	}()
	if got := greets(t, s, "10.0.0.77:80"); got != s.IP().String() {
		t.Errorf("the service sees %q, want %s", got, s.IP())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	<-served
}

func TestDrop(t *testing.T) {
	a := newTestSandbox(t, "a")
	b, c := addSandbox(t, a.host, "b"), addSandbox(t, a.host, "c")
	for s, greeting := range map[*Sandbox]string{a: "a", b: "b", c: "c"} {
		startReady(t, s, program(t, "listen", "0.0.0.0:8000", greeting))
	}
	address := func(s *Sandbox) string { return s.IP().String() + ":8000" }
	if got := greets(t, a, address(b)); got != "b" {
		t.Fatalf("before: %q", got)
	}
	if err := a.Drop(b.IP()); err != nil {
		t.Fatal(err)
	}
	if got, _ := said(t, a, program(t, "dial briefly", address(b))); !strings.Contains(got, "timeout") {
		t.Errorf("to whom it drops: %q, not a timeout", got)
	}
	if got := greets(t, a, address(c)); got != "c" {
		t.Errorf("to another: %q", got)
	}
	if err := a.Restore(b.IP()); err != nil {
		t.Fatal(err)
	}
	if got := greets(t, a, address(b)); got != "b" {
		t.Errorf("after: %q", got)
	}
	if err := a.Restore(b.IP()); err == nil {
		t.Error("restoring what is not dropped is no error")
	}
}

// TestDropIsOneWay: of two that tell each other something, only the one hears that is not dropped.
func TestDropIsOneWay(t *testing.T) {
	a := newTestSandbox(t, "a")
	b := addSandbox(t, a.host, "b")
	heard := func(s *Sandbox) (*Container, *lines) {
		log := &lines{first: make(chan struct{})}
		return startLogged(t, s, program(t, "hear", "0.0.0.0:7000"), log), log
	}
	tellOther := func(from, to *Sandbox, text string) {
		t.Helper()
		if out, code := said(t, from, program(t, "tell", to.IP().String()+":7000", text)); code != 0 {
			t.Errorf("telling %s: %s", text, out)
		}
	}
	atA, logA := heard(a)
	atB, logB := heard(b)
	if err := a.Drop(b.IP()); err != nil {
		t.Fatal(err)
	}
	tellOther(a, b, "dropped")
	tellOther(b, a, "arrives")
	await(t, atA)
	if err := a.Restore(b.IP()); err != nil {
		t.Fatal(err)
	}
	tellOther(a, b, "restored")
	await(t, atB)
	for _, heard := range []struct{ got, want string }{
		{logA.String(), "ready\narrives\n"}, {logB.String(), "ready\nrestored\n"},
	} {
		if !strings.HasPrefix(heard.got, heard.want) {
			t.Errorf("it heard %q, want %q", heard.got, heard.want)
		}
	}
}

// TestDropStopsConnections: one that is open is silent until it is restored, and loses nothing.
func TestDropStopsConnections(t *testing.T) {
	a := newTestSandbox(t, "a")
	startReady(t, a, program(t, "echo", "0.0.0.0:8000"))
	c, err := net.Dial("tcp", a.IP().String()+":8000")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	say := func(text string, wait time.Duration) (string, error) {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 6)
		n, err := io.ReadFull(c, b)
		return string(b[:n]), err
	}
	if got, err := say("before", patience); got != "before" {
		t.Fatalf("%q: %v", got, err)
	}
	if err := a.Drop(nodeAddress); err != nil {
		t.Fatal(err)
	}
	if got, err := say("during", 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) || got != "" {
		t.Errorf("while it is dropped: %q: %v", got, err)
	}
	if err := a.Restore(nodeAddress); err != nil {
		t.Fatal(err)
	}
	if got, err := say("after.", patience); got != "during" {
		t.Errorf("after: %q: %v", got, err)
	}
}

func TestLimit(t *testing.T) {
	const (
		megabyte = 1 << 20
		slow     = 4_000_000 // bit/s: two seconds for a megabyte
		atLeast  = time.Second
	)
	a := newTestSandbox(t, "a")
	startReady(t, a, program(t, "flood", "0.0.0.0:8000", strconv.Itoa(megabyte)))
	took := func() time.Duration {
		start := time.Now()
		got, err := ask(a.IP().String() + ":8000")
		if err != nil || len(got) != megabyte {
			t.Fatalf("got %d bytes: %v", len(got), err)
		}
		return time.Since(start)
	}
	free := took()
	if err := a.Limit(slow); err != nil {
		t.Fatal(err)
	}
	limited := took()
	if limited < atLeast {
		t.Errorf("a megabyte at 4 Mbit/s took %v, and %v without a limit", limited, free)
	}
	for range 2 {
		if err := a.Limit(0); err != nil {
			t.Fatal(err)
		}
	}
	if again := took(); again >= limited {
		t.Errorf("a megabyte without a limit took %v, and with one %v", again, limited)
	}
	for _, wrong := range []int64{-1, 7999, maxLimit + 1} {
		if err := a.Limit(wrong); err == nil {
			t.Errorf("a limit of %d is no error", wrong)
		}
	}
	if err := a.Limit(maxLimit); err != nil {
		t.Error(err)
	}
}

// TestManyAtOnce: the threads that enter namespaces come back, or are not used again.
func TestManyAtOnce(t *testing.T) {
	const many = 12
	first := newTestSandbox(t, "first")
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			s, err := first.host.NewSandbox(t.Context(), SandboxOptions{Name: fmt.Sprintf("many-%d", i)})
			if err != nil {
				t.Error(err)
				return
			}
			c, err := s.Start(program(t, "terminate"))
			if err != nil {
				t.Error(err)
				return
			}
			out, code, err := c.Exec(t.Context(), []string{"/bin/sh", "-c", "/bin/cat /sys/class/net/eth0/address; /bin/ls /proc"})
			if want := hardware(s.IP()) + "\n1\n"; err != nil || code != 0 || !strings.HasPrefix(string(out), want) {
				t.Errorf("it says %q and ends with %d, %v; want %q", out, code, err, want)
			}
		})
	}
	all.Wait()
	threads, err := filepath.Glob("/proc/self/task/*/ns")
	if err != nil || len(threads) == 0 {
		t.Fatalf("no threads are found: %v", err)
	}
	for _, kind := range []string{"net", "pid_for_children"} {
		for _, thread := range threads {
			got, err := os.Readlink(filepath.Join(thread, kind))
			if want, ownErr := os.Readlink("/proc/1/ns/" + kind); err == nil && got != want || ownErr != nil {
				t.Errorf("a thread is in %s, and this process in %s: %v", got, want, ownErr)
			}
		}
	}
}

func TestSandboxesEnd(t *testing.T) {
	a := newTestSandbox(t, "a")
	h := a.host
	c := startReady(t, a, program(t, "terminate"))
	if _, err := h.NewSandbox(t.Context(), SandboxOptions{Name: "a"}); err == nil {
		t.Error("two of a name are no error")
	}
	if _, err := h.NewSandbox(t.Context(), SandboxOptions{Name: "../a"}); err == nil {
		t.Error("a name with a slash is no error")
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if code, sig := c.Exit(); code != 137 || sig != syscall.SIGKILL {
		t.Errorf("its container ended with %d", code)
	}
	if _, err := a.Start(shell(t, "")); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("starting in it: %v", err)
	}
	next := addSandbox(t, h, "a")
	if next.IP() == a.IP() {
		t.Errorf("the next one has its address %s", a.IP())
	}
	running := startReady(t, next, program(t, "terminate"))
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if code, _ := running.Exit(); code != 137 {
		t.Errorf("at the host's end a container ended with %d", code)
	}
	if _, err := h.NewSandbox(t.Context(), SandboxOptions{Name: "b"}); err == nil {
		t.Error("a sandbox of a closed host is no error")
	}
	mustBeBare(t, h)
}

// mustBeBare fails if sandboxes have left something on the machine.
func mustBeBare(t *testing.T, h *Host) {
	t.Helper()
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if i.Name != "lo" && i.Name != bridge {
			t.Errorf("interface %s is left", i.Name)
		}
	}
	for _, dir := range []string{"/run/netns", h.dir} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			t.Errorf("%s is left", filepath.Join(dir, e.Name()))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), h.dir) {
		t.Errorf("a mount is left:\n%s", mounts)
	}
}
