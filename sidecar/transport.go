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
	// connBuffer is for each direction of a connection (bytes), held as long as the connection is: it takes a header, and
	// a short body with it. What is longer goes past it.
	connBuffer = 2 << 10
	// maxAnswerHeader caps the header of an engine's answer (bytes). Honest ones are a thousandth of it.
	maxAnswerHeader = 256 << 10
)

// newTransport makes the transport of one kind of leg. It asks nobody for a proxy: legs go to pods.
func newTransport(idle int, secure func() *tls.Config, control func(context.Context, string, string, syscall.RawConn) error) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, ControlContext: control}
	return &http.Transport{
		DialContext:         dialEngine(dialer),
		DialTLSContext:      dialSecure(dialer, secure),
		MaxIdleConnsPerHost: idle,
		IdleConnTimeout:     idleTimeout,
		DisableCompression:  true, // what the client wants compressed is between it and the engine
		WriteBufferSize:     connBuffer,
		ReadBufferSize:      connBuffer,

		MaxResponseHeaderBytes: maxAnswerHeader,
	}
}

// dialSecure is dialEngine for TLS, set up anew for each connection: certificates may have changed.
func dialSecure(d *net.Dialer, secure func() *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		config := secure()
		if host, _, err := net.SplitHostPort(addr); err == nil && config.ServerName == "" {
			config = config.Clone()
			config.ServerName = host
		}
		return (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, network, addr)
	}
}

// Tandem's headers as net/http spells them: of a name in lower case its functions make a new string at each use.
var (
	keyMode     = http.CanonicalHeaderKey(pd.HeaderMode)
	keyPrefill  = http.CanonicalHeaderKey(pd.HeaderPrefill)
	keyPlan     = http.CanonicalHeaderKey(pd.HeaderPlan)
	keyAuth     = http.CanonicalHeaderKey(pd.HeaderAuth)
	keyModel    = http.CanonicalHeaderKey(pd.HeaderModel)
	keyDecision = http.CanonicalHeaderKey(pd.HeaderDecision)
	keyTiming   = http.CanonicalHeaderKey(pd.HeaderTiming)
	keyOutcome  = http.CanonicalHeaderKey(pd.HeaderOutcome)
)

// Values that every leg's headers share. Nobody changes a header's values in place.
var (
	noAgent  = []string{""} // keeps net/http from naming itself
	identity = []string{"identity"}
)

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
	if ids := out["X-Request-Id"]; len(ids) != 1 || ids[0] != id {
		out["X-Request-Id"] = []string{id}
	}
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = noAgent
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
func ours(name string) bool { return name == keyTiming || pd.Internal(name) }

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
