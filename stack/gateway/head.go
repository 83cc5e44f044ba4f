package gateway

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

// hopByHop are the headers of one connection (RFC 9110 section 7.6.1), and Expect, which the server answers.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te",
	"Trailer", "Transfer-Encoding", "Upgrade", "Expect"}

func removeHopByHop(h http.Header) {
	for _, named := range h["Connection"] {
		for name := range strings.SplitSeq(named, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopByHop {
		h.Del(name)
	}
}

// requestHead returns a client's request head for the picker and the endpoints: without the headers that only parts of Tandem
// may send, and with those that a gateway adds.
func requestHead(r *http.Request) client.RequestHead {
	h := r.Header.Clone()
	trailers := strings.Contains(strings.ToLower(strings.Join(h["Te"], ",")), "trailers")
	removeHopByHop(h)
	if trailers {
		h.Set("Te", "trailers")
	}
	h.Del(epp.HeaderTarget) // for gateways that have authenticated the client
	h.Del(epp.HeaderTargetOld)
	for name := range h {
		if pd.Internal(name) && !strings.EqualFold(name, pd.HeaderMode) {
			delete(h, name)
		}
	}
	if h.Get(pd.HeaderRequestID) == "" {
		h.Set(pd.HeaderRequestID, newRequestID())
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		h.Set("X-Forwarded-For", strings.Join(append(h["X-Forwarded-For"], host), ", "))
	}
	h.Set("X-Forwarded-Proto", "http")
	return client.RequestHead{Method: r.Method, Scheme: "http", Authority: r.Host, Path: r.URL.RequestURI(), Header: h}
}

// newRequestID returns a random UUID, as Envoy does.
func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
