package sidecar

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

const (
	// idleTimeout is under the 5 s after which uvicorn, in front of vLLM and SGLang, closes an idle connection.
	idleTimeout = 4 * time.Second
	// dialTimeout is how long a pod may take to accept a connection. A living one takes a round trip.
	dialTimeout = 3 * time.Second
	keepAlive   = 15 * time.Second
)

// newTransport makes the transport of one kind of leg. It asks nobody for a proxy: legs go to pods.
func newTransport(idle int, secure *tls.Config, control func(context.Context, string, string, syscall.RawConn) error) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, ControlContext: control}
	return &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     secure,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: idle,
		IdleConnTimeout:     idleTimeout,
		DisableCompression:  true, // what the client wants compressed is between it and the engine
		WriteBufferSize:     32 << 10,
		ReadBufferSize:      32 << 10,
	}
}

// hopHeaders belong to one connection (RFC 9110 §7.6.1) and are not passed on.
var hopHeaders = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

// legHeader makes the headers of an engine leg: the client's, less those of the connection and Tandem's own, with one
// request id.
func legHeader(in http.Header, id string) http.Header {
	out := make(http.Header, len(in)+4)
	for name, values := range in {
		if !pd.Internal(name) {
			out[name] = values
		}
	}
	removeHop(out, in)
	delete(out, "Content-Length")
	delete(out, "Expect") // answered here: the body is read before, or while, the leg is sent
	out["X-Request-Id"] = []string{id}
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = []string{""} // keeps net/http from naming itself
	}
	return out
}

// answerHeader copies an engine's answer headers, less those of the connection and those only Tandem may write.
func answerHeader(to, from http.Header) {
	for name, values := range from {
		if !ours(name) {
			to[name] = values
		}
	}
	removeHop(to, from)
}

// ours reports whether an answer's header is for Tandem's parts alone to write.
func ours(name string) bool { return name == "Server-Timing" || pd.Internal(name) }

func removeHop(h, original http.Header) {
	for _, list := range original["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			delete(h, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)))
		}
	}
	for _, name := range hopHeaders {
		delete(h, name)
	}
}

// requestID takes the caller's id if it is sane, else makes one: 1 to 128 letters, digits and -._: only, since it goes
// into engine ids, logs and traces.
func requestID(h http.Header) string {
	values := h["X-Request-Id"]
	if len(values) > 0 && saneID(values[0]) {
		return values[0]
	}
	var raw [16]byte
	rand.Read(raw[:]) //nolint:errcheck // crypto/rand.Read never fails
	return hex.EncodeToString(raw[:])
}

func saneID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && !(c >= '0' && c <= '9') && !strings.ContainsRune("-._:", rune(c)) {
			return false
		}
	}
	return true
}

// newLeg makes the request of one engine leg, whose body of length bytes (-1 = not known) open gives from its beginning. It
// may be sent again if it met a connection that the engine had closed while idle: net/http does so by itself when no byte
// of an answer has been read, the connection was not new, and the body can be had again, for requests it holds to be
// idempotent. The nil key says so without going over the wire.
func newLeg(ctx context.Context, url string, header http.Header, length int64, open func() (io.ReadCloser, error)) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header = header
	if _, ok := header["Idempotency-Key"]; !ok {
		header["Idempotency-Key"] = nil
	}
	if length == 0 {
		req.Body = http.NoBody
		return req, nil
	}
	req.ContentLength = length
	req.GetBody = open
	req.Body, err = open()
	return req, err
}

// newHeldLeg is newLeg for a body that is held.
func newHeldLeg(ctx context.Context, url string, header http.Header, l dialect.Leg) (*http.Request, error) {
	return newLeg(ctx, url, header, l.Length, func() (io.ReadCloser, error) { return newSegmentReader(l.Segments), nil })
}

// segmentReader reads segments in order without joining them.
type segmentReader struct{ rest net.Buffers }

func newSegmentReader(segments [][]byte) *segmentReader {
	// net.Buffers eats its outer slice; the segments are needed again.
	return &segmentReader{rest: append(net.Buffers(nil), segments...)}
}

func (r *segmentReader) Read(p []byte) (int, error) { return r.rest.Read(p) }

// WriteTo saves the copy into a buffer that io.Copy would make.
func (r *segmentReader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for len(r.rest) > 0 {
		n, err := w.Write(r.rest[0])
		total += int64(n)
		if err != nil {
			return total, err
		}
		r.rest = r.rest[1:]
	}
	return total, nil
}

func (r *segmentReader) Close() error { return nil }
