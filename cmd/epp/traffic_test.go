package main

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
)

// pipes is a listener of connections within the process.
type pipes struct{ net.Listener }

func (pipes) Accept() (net.Conn, error) {
	conn, _ := net.Pipe()
	return conn, nil
}

func TestAwaitIdle(t *testing.T) {
	const idle, most = 2 * time.Second, 15 * time.Second
	begins := func(t *traffic, method string) {
		_ = t.note(nil, nil, &grpc.StreamServerInfo{FullMethod: method}, func(any, grpc.ServerStream) error { return nil })
	}
	for _, c := range []struct {
		name string
		do   func(t *traffic, conn net.Conn) // from the start of the drain
		want time.Duration
	}{
		{"no request", func(*traffic, net.Conn) {}, idle},
		{"no client is connected", func(_ *traffic, conn net.Conn) { conn.Close() }, 0},
		{"the last one leaves", func(_ *traffic, conn net.Conn) { <-time.After(time.Second); conn.Close(); conn.Close() }, time.Second},
		{"one more request", func(t *traffic, _ net.Conn) { <-time.After(time.Second); begins(t, pickMethod) }, idle + time.Second},
		{"only health checks", func(t *traffic, _ net.Conn) { <-time.After(time.Second); begins(t, "/grpc.health.v1.Health/Watch") }, idle},
		{"a client never stops asking", func(t *traffic, _ net.Conn) {
			for range 30 {
				<-time.After(time.Second)
				begins(t, pickMethod)
			}
		}, most},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				traffic := newTraffic()
				traffic.Listener = pipes{}
				conn, err := traffic.Accept()
				must(t, err)
				begins(traffic, pickMethod) // before the drain it does not count
				began := time.Now()
				var gateway sync.WaitGroup
				defer gateway.Wait()
				gateway.Go(func() { c.do(traffic, conn) })
				synctest.Wait()
				traffic.awaitIdle(t.Context(), idle, most)
				if got := time.Since(began); got != c.want {
					t.Errorf("idle after %v, want %v", got, c.want)
				}
			})
		})
	}
}
