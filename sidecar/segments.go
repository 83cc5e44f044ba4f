package sidecar

import (
	"context"
	"io"
	"net"
)

// segmentReader reads segments in order without joining them.
type segmentReader struct{ rest net.Buffers }

func newSegmentReader(segments [][]byte) *segmentReader {
	// net.Buffers eats its outer slice; the segments are needed again.
	return &segmentReader{rest: append(net.Buffers(nil), segments...)}
}

// Read implements io.Reader.
func (r *segmentReader) Read(p []byte) (int, error) { return r.rest.Read(p) }

// Close implements io.Closer.
func (r *segmentReader) Close() error { return nil }

// engineConn is a connection to an engine. net/http would copy a held body on its way into the socket, through a buffer
// that it allocates for each request; here it is written from where it lies.
type engineConn struct{ *net.TCPConn }

// dialEngine makes a dialer's connections engineConns.
func dialEngine(d *net.Dialer) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if tcp, ok := c.(*net.TCPConn); ok {
			return engineConn{tcp}, err
		}
		return c, err
	}
}

// ReadFrom implements io.ReaderFrom: net/http calls it for what of a body found no place beside the header.
func (c engineConn) ReadFrom(r io.Reader) (int64, error) {
	// A body of known length comes as a LimitedReader around what newLeg gave.
	if l, ok := r.(*io.LimitedReader); ok {
		if held, ok := l.R.(*segmentReader); ok && held.len() <= l.N {
			n, err := held.rest.WriteTo(c.TCPConn)
			l.N -= n
			return n, err
		}
	}
	buf := takeBuffer(answerBuffer)
	defer giveBuffer(buf)
	// The embedded connection's own ReadFrom would allocate the buffer.
	return io.CopyBuffer(struct{ io.Writer }{c.TCPConn}, r, *buf)
}

// len is the number of bytes left.
func (r *segmentReader) len() int64 {
	var n int64
	for _, segment := range r.rest {
		n += int64(len(segment))
	}
	return n
}
