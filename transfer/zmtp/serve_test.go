package zmtp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
)

// serving serves what is asked until the test ends, or end is called.
func serving(t testing.TB, answer func([]byte) [][]byte) (address string, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- Serve(ctx, l, answer) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-result; err != nil {
			t.Errorf("serving ended with %v", err)
		}
	})
	t.Cleanup(end)
	return l.Addr().String(), end
}

// echo answers with the question and its length.
func echo(question []byte) [][]byte { return [][]byte{question, fmt.Append(nil, len(question))} }

func TestServe(t *testing.T) {
	address, _ := serving(t, echo)
	var asking sync.WaitGroup
	for i := range 100 {
		question := strings.Repeat("x", 7*i)
		asking.Go(func() {
			got, err := Ask(within(t), new(net.Dialer), address, []byte(question), 1000)
			if err != nil || len(got) != 2 || string(got[0]) != question || string(got[1]) != fmt.Sprint(len(question)) {
				t.Errorf("asked with %d bytes: got %q, %v", len(question), got, err)
			}
		})
	}
	asking.Wait()
}

// A library's REQ socket keeps its connection, and sends further requests over it.
func TestServeOneAfterTheOther(t *testing.T) {
	address, _ := serving(t, echo)
	c, r := connected(t, address)
	for _, question := range []string{"a", "", strings.Repeat("x", 1000)} {
		if _, err := io.WriteString(c, parts("", question)); err != nil {
			t.Fatal(err)
		}
		r.left = 2000
		got, err := r.message()
		if err != nil || !slices.EqualFunc(got, echo([]byte(question)), slices.Equal) {
			t.Errorf("asked %q: got %q, %v", question, got, err)
		}
	}
}

// connected is a connection over which both sides have greeted.
func connected(t *testing.T, address string) (net.Conn, *reader) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Write(appendFrame(greeting[:], flagCommand, ready)); err != nil {
		t.Fatal(err)
	}
	r := &reader{Reader: bufio.NewReader(c)}
	if err := r.greeting(); err != nil {
		t.Fatal(err)
	}
	return c, r
}

// A client that violates the protocol is disconnected, and others are served.
func TestServeHangsUp(t *testing.T) {
	address, _ := serving(t, func(question []byte) [][]byte {
		if string(question) == "nothing" {
			return nil
		}
		return echo(question)
	})
	for name, says := range map[string]string{
		"HTTP":            "GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: one that is long enough to be taken for a greeting\r\n\r\n",
		"several parts":   router + parts("", "a", "b"),
		"no delimiter":    router + parts("a"),
		"a long question": router + parts("", strings.Repeat("x", MaxQuestion)),
		"without end":     router + strings.Repeat("\x01\x00", MaxQuestion),
		"without answer":  router + parts("", "nothing"),
		"nonsense":        router + "\xf0",
		"it hangs up":     router[:10],
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = io.WriteString(c, says) // it may be disconnected while writing
			_ = c.(*net.TCPConn).CloseWrite()
			said, _ := io.ReadAll(c) // what it did not read resets the connection
			if len(said) > len(router) {
				t.Errorf("it answers %q", said[len(router):])
			}
		})
	}
	if _, err := Ask(within(t), new(net.Dialer), address, []byte("still there?"), 1000); err != nil {
		t.Error(err)
	}
}

// The end of the service closes connections that wait for a request.
func TestServeEnds(t *testing.T) {
	address, end := serving(t, echo)
	_, r := connected(t, address)
	if _, err := r.Peek(1); err != nil { // its readiness: it waits for the question now
		t.Fatal(err)
	}
	end()
	r.left = 1000
	if got, err := r.message(); err == nil {
		t.Errorf("it answers %q", got)
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("it still listens")
	}
}

func TestServeWithoutListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Serve(t.Context(), l, echo); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want that the listener is closed", err)
	}
}

// Connections beyond the limit are closed; when one ends, another is served.
func TestServeCrowd(t *testing.T) {
	address, _ := serving(t, echo)
	crowd := make([]net.Conn, maxClients)
	for i := range crowd {
		c, r := connected(t, address)
		if _, err := r.Peek(1); err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
		crowd[i] = c
	}
	if _, err := Ask(within(t), new(net.Dialer), address, nil, 1000); err == nil {
		t.Fatalf("the client after %d others is served", maxClients)
	}
	crowd[0].Close()
	for ctx := within(t); ; {
		if _, err := Ask(ctx, new(net.Dialer), address, nil, 1000); err == nil {
			return
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}
