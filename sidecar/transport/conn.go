package transport

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"
)

const (
	// idleTimeout is less than the 5 s after which uvicorn, in front of vLLM and SGLang, closes an idle connection.
	idleTimeout = 4 * time.Second
	// DialTimeout is how long a pod may take to accept a connection. A healthy one takes a round trip.
	DialTimeout = 3 * time.Second
	// KeepAlive is the interval of TCP keep-alive probes.
	KeepAlive = 15 * time.Second
	// connBuffer is the size of a connection's buffer for each direction (bytes), for as long as the connection lives. It
	// holds a header, and a short body with it. Longer bodies bypass it.
	connBuffer = 2 << 10
	// copyBuffer is how much of a streamed body is read at once (bytes).
	copyBuffer = 32 << 10
	// maxAnswerHeader limits the header of an engine's answer (bytes). Real ones are a thousandth of it.
	maxAnswerHeader = 256 << 10
)

// New makes the transport for one kind of leg: at most idle unused connections to each engine, over TLS if secure is not nil,
// and only to addresses that control accepts (nil = all). It uses no HTTP proxy: legs go to pods.
func New(idle int, secure func() *tls.Config, control func(context.Context, string, string, syscall.RawConn) error) *http.Transport {
	dialer := &net.Dialer{Timeout: DialTimeout, KeepAlive: KeepAlive, ControlContext: control}
	return &http.Transport{
		DialContext:         dialPlain(dialer),
		DialTLSContext:      dialTLS(dialer, secure),
		MaxIdleConnsPerHost: idle,
		IdleConnTimeout:     idleTimeout,
		DisableCompression:  true, // compression is negotiated between the client and the engine
		WriteBufferSize:     connBuffer,
		ReadBufferSize:      connBuffer,

		MaxResponseHeaderBytes: maxAnswerHeader,
	}
}

// NewHTTP2 makes the transport for calls of gRPC to the local engine, over TLS if secure is not nil.
func NewHTTP2(secure func() *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: DialTimeout, KeepAlive: KeepAlive}
	t := &http.Transport{
		DialContext: dialer.DialContext,
		DialTLSContext: dialTLS(dialer, func() *tls.Config {
			config := secure().Clone()
			config.NextProtos = []string{"h2"}
			return config
		}),
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswerHeader,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP2(true)
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// dialPlain wraps a dialer's connections in conn.
func dialPlain(d *net.Dialer) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if tcp, ok := c.(*net.TCPConn); ok {
			return conn{tcp}, err
		}
		return c, err
	}
}

// dialTLS dials with the current TLS setup: certificates may have changed since the last connection.
func dialTLS(d *net.Dialer, secure func() *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		config := secure()
		if host, _, err := net.SplitHostPort(addr); err == nil && config.ServerName == "" {
			config = config.Clone()
			config.ServerName = host
		}
		return (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, network, addr)
	}
}

// conn is a connection to an engine. net/http copies a buffered body into the socket through a buffer that it allocates for
// each request; conn writes the body's segments directly.
type conn struct{ *net.TCPConn }

// ReadFrom implements io.ReaderFrom. net/http calls it for the part of a body that did not fit into the buffer with the
// header.
func (c conn) ReadFrom(r io.Reader) (int64, error) {
	// A body of known length comes as a LimitedReader around the reader that NewLeg was given.
	if l, ok := r.(*io.LimitedReader); ok {
		if buffered, ok := l.R.(*segmentReader); ok && buffered.len() <= l.N {
			n, err := buffered.rest.WriteTo(c.TCPConn)
			l.N -= n
			return n, err
		}
	}
	buf := TakeBuffer(copyBuffer)
	defer PutBuffer(buf)
	// The embedded connection's own ReadFrom would allocate the buffer.
	return io.CopyBuffer(struct{ io.Writer }{c.TCPConn}, r, *buf)
}
