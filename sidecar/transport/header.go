package transport

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// Header values that all legs share. They must not be changed in place.
var (
	NoAgent  = []string{""} // User-Agent: keeps net/http from writing its own
	Identity = []string{"identity"}
)

// hopHeaders belong to one connection (RFC 9110 §7.6.1) and are not passed on.
var hopHeaders = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

// Stripped reports whether a client's header of this (canonical) name is removed before engines get the request. A nil
// Stripped removes only the headers of pd.Internal.
type Stripped func(name string) bool

// Has reports whether a header is removed: by Stripped or by pd.Internal.
func (s Stripped) Has(name string) bool { return pd.Internal(name) || s != nil && s(name) }

// LegHeader makes the headers of an engine leg: the client's, without the stripped ones and those of the connection, with one
// request id.
func (s Stripped) LegHeader(in http.Header, id string) http.Header {
	out := make(http.Header, len(in)+4)
	for name, values := range in {
		if !s.Has(name) {
			out[name] = values
		}
	}
	removeHopHeaders(out, in)
	delete(out, "Content-Length")
	delete(out, "Expect") // the sidecar answers it itself, because it reads the body before or while it sends the leg
	if ids := out["X-Request-Id"]; len(ids) != 1 || ids[0] != id {
		out["X-Request-Id"] = []string{id}
	}
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = NoAgent
	}
	return out
}

// AnswerHeader copies an engine's answer headers, without those of the connection and those that only Tandem may write.
func AnswerHeader(to, from http.Header) {
	for name, values := range from {
		if !Reserved(name) {
			to[name] = values
		}
	}
	removeHopHeaders(to, from)
}

// keyTiming is pd.HeaderTiming in net/http's form.
var keyTiming = http.CanonicalHeaderKey(pd.HeaderTiming)

// Reserved reports whether only Tandem may write an answer's header or trailer of this (canonical) name.
func Reserved(name string) bool { return name == keyTiming || pd.Internal(name) }

// RemoveReserved removes from an engine's headers or trailers those that only Tandem may write.
func RemoveReserved(h http.Header) {
	for name := range h {
		if Reserved(name) {
			delete(h, name)
		}
	}
}

func removeHopHeaders(h, original http.Header) {
	for _, list := range original["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			delete(h, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)))
		}
	}
	for _, name := range hopHeaders {
		delete(h, name)
	}
}

// RequestID returns the client's request id, or a new one if it is missing or malformed.
func RequestID(h http.Header) string {
	values := h["X-Request-Id"]
	if len(values) > 0 && pd.WellFormedRequestID(values[0]) {
		return values[0]
	}
	var raw [16]byte
	rand.Read(raw[:]) //nolint:errcheck // crypto/rand.Read never fails
	return hex.EncodeToString(raw[:])
}
