package chaos

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// longWay is how long a long link takes in each direction.
const longWay = 100 * time.Millisecond

// newLongLink returns an address behind which everything reaches addr after longWay, and comes back after it. Connections begin at
// once. It ends with the test.
func newLongLink(t *testing.T, addr string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { relayLong(ctx, near.(*net.TCPConn), addr) })
		}
	})
	t.Cleanup(func() {
		stop()
		l.Close()
		running.Wait()
	})
	return l.Addr().String()
}

// relayLong relays a connection until both sides have ended it, one side has failed, or ctx ends.
func relayLong(ctx context.Context, near *net.TCPConn, addr string) {
	defer near.Close()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		_ = near.SetLinger(0) // the client sees a reset, not an end
		return
	}
	far := c.(*net.TCPConn)
	defer far.Close()
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(ctx, func() { near.Close(); far.Close() })()
	var ways sync.WaitGroup
	for _, w := range [][2]*net.TCPConn{{near, far}, {far, near}} {
		ways.Go(func() {
			if delay(ctx, w[0], w[1]) != nil {
				end() // whatever is on the way back has no reader
			}
		})
	}
	ways.Wait()
}

// piece is what one read got; the last one is empty.
type piece struct {
	at    time.Time
	bytes []byte
}

// delay copies until from ends, and then ends to. Everything arrives longWay after it was read. The error is that of a connection.
func delay(ctx context.Context, from, to *net.TCPConn) error {
	way := make(chan piece, 256)
	failed := make(chan error, 1)
	go func() {
		defer close(way)
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if n == 0 && err != io.EOF {
				failed <- err
				return
			}
			select {
			case way <- piece{time.Now(), bytes.Clone(buffer[:n])}:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
			if n == 0 {
				return
			}
		}
	}()
	for p := range way {
		pause(ctx, time.Until(p.at.Add(longWay)))
		if len(p.bytes) == 0 {
			return to.CloseWrite()
		}
		if _, err := to.Write(p.bytes); err != nil {
			return err
		}
	}
	return <-failed
}

// TestLongLink: both directions take their time, the ends of a connection are relayed, and what fails on one side fails on the other.
func TestLongLink(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := newLongLink(t, l.Addr().String())
	began := time.Now()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	client := c.(*net.TCPConn)
	if _, err := io.WriteString(client, "question\n"); err != nil {
		t.Fatal(err)
	}
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(server); string(got) != "question\n" || err != nil {
		t.Errorf("the server gets %q, %v", got, err)
	}
	if took := time.Since(began); took < longWay {
		t.Errorf("the way there takes %v, want %v at least", took, longWay)
	}
	if _, err := io.WriteString(server, "answer\n"); err != nil {
		t.Fatal(err)
	}
	server.Close()
	if got, err := io.ReadAll(client); string(got) != "answer\n" || err != nil {
		t.Errorf("the client gets %q, %v", got, err)
	}
	if took := time.Since(began); took < 2*longWay {
		t.Errorf("the way there and back takes %v, want %v at least", took, 2*longWay)
	}

	l.Close()
	refused, err := net.Dial("tcp", at)
	if err == nil {
		defer refused.Close()
		_, err = refused.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("without a server a connection ends with %v, want a reset", err)
	}
}
