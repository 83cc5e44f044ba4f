package main

import (
	"net"
	"sync"
	"sync/atomic"
)

// maxClients is how many connections there may be to the data port. An Envoy keeps one for each request that runs, of which
// an engine takes some hundred. An idle connection costs some 20 KiB.
const maxClients = 10_000

// capped is a listener that closes connections beyond a number at once: a proxy tries another pod then, where one that were
// not accepted would wait.
type capped struct {
	*net.TCPListener
	most int64
	open atomic.Int64
}

// newCapped caps one of boot's listeners, which are all of TCP.
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
		_ = c.Close() // nobody has been promised anything
	}
}

// client is a connection that is counted. It is all that a TCP connection is: net/http closes its half of one to end an answer
// that the rest of a body is still coming to.
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
