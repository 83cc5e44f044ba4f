package main

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// traffic reports whether gateways still ask for picks. It is a listener that counts connections; its interceptor notes streams.
type traffic struct {
	net.Listener
	open atomic.Int64
	made time.Time
	last atomic.Int64  // when the latest stream began, in ns since made; 0 = never
	left chan struct{} // has one element after a connection has ended
}

func newTraffic() *traffic { return &traffic{made: time.Now(), left: make(chan struct{}, 1)} }

// Accept implements net.Listener.
func (t *traffic) Accept() (net.Conn, error) {
	conn, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	t.open.Add(1)
	return &countedConn{Conn: conn, of: t}, nil
}

// countedConn is a connection that reports its end to traffic.
type countedConn struct {
	net.Conn
	of   *traffic
	once sync.Once
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.of.open.Add(-1)
		select {
		case c.of.left <- struct{}{}:
		default:
		}
	})
	return c.Conn.Close()
}

// note is a grpc.StreamServerInterceptor.
func (t *traffic) note(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.FullMethod == pickMethod {
		t.last.Store(int64(time.Since(t.made)))
	}
	return handler(srv, stream)
}

// pickMethod is the method that gateways call for every request.
const pickMethod = "/" + serviceExtProc + "/Process"

// awaitIdle waits until no stream has begun for the duration idle, counted from now, or no client is connected. It waits for the
// duration most at most.
func (t *traffic) awaitIdle(ctx context.Context, idle, most time.Duration) {
	since := time.Now()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for t.open.Load() > 0 {
		if last := t.made.Add(time.Duration(t.last.Load())); last.After(since) {
			since = last
		}
		wait := time.Until(since.Add(idle))
		if wait <= 0 {
			return
		}
		rest := time.NewTimer(wait)
		select {
		case <-rest.C:
		case <-t.left:
		case <-ctx.Done():
			rest.Stop()
			return
		}
		rest.Stop()
	}
}
