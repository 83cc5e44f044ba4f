package main

import (
	"net"
	"sync"
	"sync/atomic"
)

// maxClients is the largest number of connections to the data port. An Envoy keeps one for each running request, of which an
// engine accepts some hundred. An idle connection costs some 20 KiB.
const maxClients = 10_000

// capped is a listener that closes connections beyond a number at once. A proxy then tries another pod; a connection that
// was not accepted would wait instead.
type capped struct {
	*net.TCPListener
	most int64
	open atomic.Int64
}

// newCapped limits one of boot's listeners, all of which are TCP listeners.
func newCapped(l net.Listener, most int) *capped {
	return &capped{TCPListener: l.(*net.TCPListener), most: int64(most)}
}

// Accept implements net.Listener.
func (l *capped) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &client{TCPConn: c, of: l}, nil
		}
		l.open.Add(-1)
		_ = c.Close() // no request was read from it
	}
}

// client is a counted connection. It keeps the methods of a TCP connection: net/http half-closes it to end an answer while
// the rest of the request body still arrives.
type client struct {
	*net.TCPConn
	of   *capped
	once sync.Once
}

// Close implements net.Conn.
func (c *client) Close() error {
	c.once.Do(func() { c.of.open.Add(-1) })
	return c.TCPConn.Close()
}
