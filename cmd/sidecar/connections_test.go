package main

import (
	"io"
	"net"
	"testing"
	"time"
)

// Beyond the limit a connection is closed at once, and the end of one allows another.
func TestCapped(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newCapped(inner, 2)
	accepted := make(chan net.Conn, 8)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	dial()
	dial()
	first, second := <-accepted, <-accepted
	defer second.Close()
	if _, err := dial().Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a third one: %v, want its end", err)
	}
	first.Close()
	first.Close() // closing twice must not count twice
	dial()
	fourth := <-accepted
	defer fourth.Close()
	if _, err := dial().Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a fifth one: %v, want its end", err)
	}
	if _, can := fourth.(interface{ CloseWrite() error }); !can {
		t.Error("net/http cannot half-close it: answers to bodies that are still coming are lost")
	}
}
