package services

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds the wait for what happens within milliseconds.
const patience = 20 * time.Second

// backend answers each line with its name and the line, and the end of its client with "end".
func backend(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go func() {
				defer c.Close()
				lines := bufio.NewScanner(c)
				for lines.Scan() {
					fmt.Fprintf(c, "%s %s\n", name, lines.Text())
				}
				fmt.Fprintln(c, "end")
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// freeAddress is one that nothing listens at.
func freeAddress(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func startRelay(t *testing.T) *relay {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := newRelay(ctx, new(troubles))
	t.Cleanup(func() {
		cancel()
		r.stop()
		if err := r.troubles.err(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func apply(r *relay, at netip.AddrPort, to ...netip.AddrPort) {
	fronts := map[netip.AddrPort][]netip.AddrPort{}
	if len(to) > 0 {
		fronts[at] = to
	}
	r.apply(fronts)
}

func dial(t *testing.T, at netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", at.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// relayed connects through a relay to an endpoint, and gives both ends.
func relayed(t *testing.T, r *relay, at netip.AddrPort) (client, server *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	apply(r, at, l.Addr().(*net.TCPAddr).AddrPort())
	client = dial(t, at)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, c.(*net.TCPConn)
}

// ask sends a line and gives the answer.
func ask(t *testing.T, c net.Conn, line string) string {
	t.Helper()
	if _, err := fmt.Fprintln(c, line); err != nil {
		t.Fatal(err)
	}
	answer, err := bufio.NewReader(io.LimitReader(c, 1000)).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

func TestConnectionsAlternateBetweenBackends(t *testing.T) {
	r, at := startRelay(t), freeAddress(t)
	apply(r, at, backend(t, "a"), backend(t, "b"), backend(t, "c"))
	var got []string
	for range 6 {
		got = append(got, ask(t, dial(t, at), "hello"))
	}
	slices.Sort(got)
	if want := []string{"a hello", "a hello", "b hello", "b hello", "c hello", "c hello"}; !slices.Equal(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
}

// TestEndpointsLeave: connections that exist stay, new ones go elsewhere, and where nothing is left they are refused.
func TestEndpointsLeave(t *testing.T) {
	r, at, a, b := startRelay(t), freeAddress(t), backend(t, "a"), backend(t, "b")
	apply(r, at, a)
	old := dial(t, at)
	if got := ask(t, old, "1"); got != "a 1" {
		t.Fatalf("answer %q", got)
	}
	apply(r, at, b)
	if got := ask(t, dial(t, at), "2"); got != "b 2" {
		t.Errorf("a new connection got %q", got)
	}
	apply(r, at)
	if c, err := net.DialTimeout("tcp", at.String(), patience); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without endpoints: %v, %v, want refused", c, err)
	}
	if got := ask(t, old, "3"); got != "a 3" {
		t.Errorf("the old connection got %q", got)
	}
	apply(r, at, a)
	if got := ask(t, dial(t, at), "4"); got != "a 4" {
		t.Errorf("an endpoint that is back: %q", got)
	}
}

// TestEnds: the end of what a client says reaches the endpoint, and what that says then reaches the client.
func TestEnds(t *testing.T) {
	r, at := startRelay(t), freeAddress(t)
	apply(r, at, backend(t, "a"))
	c := dial(t, at)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); string(got) != "end\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestBrokenIsReset(t *testing.T) {
	r, at := startRelay(t), freeAddress(t)
	t.Run("nothing listens at the endpoint", func(t *testing.T) {
		apply(r, at, freeAddress(t))
		c, err := net.DialTimeout("tcp", at.String(), patience)
		if err == nil { // and not yet reset
			defer c.Close()
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v, want reset", err)
		}
	})
	t.Run("the endpoint breaks", func(t *testing.T) {
		c, server := relayed(t, r, at)
		reset(server)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v, want reset", err)
		}
	})
	t.Run("the client breaks", func(t *testing.T) {
		c, server := relayed(t, r, at)
		defer server.Close()
		reset(c)
		if err := server.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v, want reset", err)
		}
	})
}

func TestPortIsTaken(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, to := newRelay(ctx, new(troubles)), backend(t, "a")
	defer func() { cancel(); r.stop() }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	for range 2 {
		apply(r, at, to)
	}
	if err := r.troubles.err(); !errors.Is(err, syscall.EADDRINUSE) || strings.Count(err.Error(), "listening for a Service") != 1 {
		t.Errorf("%v, want once that the address is in use", err)
	}
	l.Close()
	apply(r, at, to)
	if got := ask(t, dial(t, at), "1"); got != "a 1" {
		t.Errorf("when it is free: %q", got)
	}
	apply(r, at)
}
