package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// dialPeer connects a SUB socket to a peer that sends some bytes.
func dialPeer(t *testing.T, says string, limit int) (c *Conn, told func() string, err error) {
	address, told := peer(t, says, false)
	c, err = Dial(within(t), new(net.Dialer), address, Sub, limit)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, told, err
}

// publishes is what a PUB socket sends before its messages.
var publishes = string(greeting[:]) + string(appendFrame(nil, flagCommand, []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB")))

// TestWait: waiting for a message takes nothing away from it, whether it comes or not.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c := &Conn{conn: ours, in: reader{Reader: bufio.NewReader(ours)}, limit: 100}
		defer c.Close()
		begun := time.Now()
		if come, err := c.Wait(time.Second); come || err != nil || time.Since(begun) != time.Second {
			t.Errorf("without a message: %v, %v, after %v; want false after a second", come, err, time.Since(begun))
		}
		go func() { _, _ = theirs.Write([]byte(parts("kv", "1", "a"))) }()
		begun = time.Now()
		if come, err := c.Wait(time.Second); !come || err != nil || time.Since(begun) != 0 {
			t.Errorf("with a message: %v, %v, after %v; want true at once", come, err, time.Since(begun))
		}
		got, err := c.Receive()
		if text := string(bytes.Join(got, []byte(" "))); err != nil || text != "kv 1 a" {
			t.Errorf("%q, %v", text, err)
		}
		theirs.Close()
		if come, err := c.Wait(time.Second); come || err == nil {
			t.Errorf("when the connection has ended: %v, %v", come, err)
		}
	})
}

func TestReceive(t *testing.T) {
	long := strings.Repeat("long", step)
	for name, test := range map[string]struct {
		says  string
		limit int
		want  []string // messages, their parts with spaces between
		err   error    // after them
	}{
		"messages":                {parts("kv", "1", "a") + parts("b"), 100, []string{"kv 1 a", "b"}, io.EOF},
		"an empty part":           {parts("", "1"), 100, []string{" 1"}, io.EOF},
		"long parts":              {parts("kv", long) + parts("b"), 5 * step, []string{"kv " + long, "b"}, io.EOF},
		"a command between":       {string(appendFrame(nil, flagCommand, []byte("\x03FOO"))) + parts("b"), 100, []string{"b"}, io.EOF},
		"an error":                {string(appendFrame(nil, flagCommand, []byte("\x05ERROR\x02no"))) + parts("b"), 100, nil, ErrProtocol},
		"unknown flags":           {"\x10\x01a", 100, nil, ErrProtocol},
		"longer than the limit":   {parts("kv", strings.Repeat("x", 99)), 100, nil, ErrProtocol},
		"a length of all bits":    {"\x02\xff\xff\xff\xff\xff\xff\xff\xff", 100, nil, ErrProtocol},
		"parts without end":       {strings.Repeat("\x01\x00", maxParts+1), 100, nil, ErrProtocol},
		"it ends inside a length": {"\x02\x00\x00", 100, nil, io.ErrUnexpectedEOF},
		"it ends inside a part":   {"\x00\x05ab", 100, nil, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := peer(t, publishes+test.says, true)
			c, err := Dial(within(t), new(net.Dialer), address, Sub, test.limit)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for _, want := range test.want {
				got, err := c.Receive()
				if err != nil {
					t.Fatal(err)
				}
				if text := string(bytes.Join(got, []byte(" "))); text != want {
					t.Fatalf("%.50q, want %.50q", text, want)
				}
			}
			if _, err := c.Receive(); !errors.Is(err, test.err) {
				t.Errorf("%v, want %v", err, test.err)
			}
		})
	}
}

func TestDialRefuses(t *testing.T) {
	for name, says := range map[string]string{
		"another protocol":         "HTTP/1.1 400 Bad Request\r\n" + strings.Repeat(" ", 64),
		"a message before READY":   string(greeting[:]) + parts("a"),
		"an error":                 string(greeting[:]) + string(appendFrame(nil, flagCommand, []byte("\x05ERROR\x02no"))),
		"a first command too long": string(greeting[:]) + "\x06\x00\x00\x00\x00\x10\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := dialPeer(t, says, 100); !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("it says nothing until the context ends", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ctx, cancel := context.WithCancelCause(t.Context())
		over := errors.New("over")
		go func() {
			if c, err := l.Accept(); err == nil {
				defer c.Close()
				_, _ = io.ReadFull(c, make([]byte, len(greeting)))
				cancel(over)
				_, _ = io.Copy(io.Discard, c)
			}
		}()
		if _, err := Dial(ctx, new(net.Dialer), l.Addr().String(), Sub, 100); !errors.Is(err, over) {
			t.Errorf("%v", err)
		}
	})
}

func TestSubscribeAndPong(t *testing.T) {
	c, told, err := dialPeer(t, publishes+string(appendFrame(nil, flagCommand, []byte("\x04PING\x00\x0actx")))+parts("a"), 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Subscribe("kv@"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(); err != nil {
		t.Fatal(err)
	}
	c.Close()
	ready := string(appendFrame(nil, flagCommand, []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x08Identity\x00\x00\x00\x00")))
	want := string(greeting[:]) + ready + parts("\x01kv@") + string(appendFrame(nil, flagCommand, []byte("\x04PONGctx")))
	if got := told(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Two connections of this package at both ends.
func TestAccept(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		router, err := Accept(within(t), conn, Router, 100)
		if err != nil {
			served <- err
			return
		}
		defer router.Close()
		question, err := router.Receive()
		if err == nil {
			err = router.Send(append(question, []byte("answer"))...)
		}
		served <- err
	}()
	c, err := Dial(within(t), new(net.Dialer), l.Addr().String(), Dealer, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Send(nil, []byte("question")); err != nil {
		t.Fatal(err)
	}
	got, err := c.Receive()
	if err != nil || string(bytes.Join(got, []byte("|"))) != "|question|answer" {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
