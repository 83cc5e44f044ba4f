package intake

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// GuardedBody is a client's body that is cleaned while it is read: members that a client may not send do not pass. Its
// beginning is kept, so that a leg can be sent again if it met a connection that its engine had closed while idle: the
// engine has read nothing then, but the transport may have read a little.
type GuardedBody struct {
	failed atomic.Pointer[error] // why reading stopped, if not at the end

	mu      sync.Mutex // guards what follows, also while a reader waits for the client's next bytes
	src     io.Reader
	buf     *[]byte  // holds what is kept
	kept    []byte   // what has been read, the beginning of buf
	lost    bool     // nothing is kept: it became too much, or is not needed any more
	current *reading // the one that may read on
}

// maxKept is how much of a streamed body is kept for sending it again (bytes). A short request fits; of a long one, the
// transport seldom gets further before it notices that the connection is closed.
const maxKept = 64 << 10

// Guard wraps a client's body that an engine may read as JSON.
func (in *Intake) Guard(r io.Reader) *GuardedBody {
	return &GuardedBody{src: body.NewBlank(r, in.Table.Members(), in.limits(), in.strips)}
}

// guardForm wraps a client's form. Its fields may be JSON, so none may mention a member that a client may not send; nothing
// can be removed from a form. The engine limits its size.
func (in *Intake) guardForm(r io.Reader) *GuardedBody {
	return &GuardedBody{src: body.NewSentry(r, in.Table.Members(), in.strips)}
}

// GuardByType wraps a request's body by what an engine may read it as; nil for a body that is certainly not JSON. The text of
// a form must be UTF-8: in another encoding an engine could read members that the guard does not see.
func (in *Intake) GuardByType(r *http.Request) (*GuardedBody, *pd.Refusal) {
	types := r.Header["Content-Type"]
	if len(types) != 1 { // engines differ in which of several they use
		return in.Guard(r.Body), CheckEncoding(r.Header)
	}
	media, params, err := mime.ParseMediaType(types[0])
	if err != nil {
		return in.Guard(r.Body), CheckEncoding(r.Header)
	}
	major, _, _ := strings.Cut(media, "/")
	switch {
	case major == "multipart":
		if c := strings.ToLower(params["charset"]); c != "" && c != "utf-8" && c != "us-ascii" {
			return nil, pd.Refuse(pd.BadRequest, "Forms must be encoded as UTF-8, not %q.", c)
		}
		return in.guardForm(r.Body), CheckEncoding(r.Header)
	case major == "audio", major == "image", major == "video", media == "application/octet-stream":
		return nil, nil
	}
	return in.Guard(r.Body), CheckEncoding(r.Header)
}

var (
	errReadTooFar = errors.New("the request body was read too far to be sent again")
	errSuperseded = errors.New("the request body is no longer read")
)

// Again opens the body from its beginning. A reader that was opened earlier fails from now on.
func (g *GuardedBody) Again() (io.ReadCloser, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost {
		return nil, errReadTooFar
	}
	g.current = &reading{g: g}
	return g.current, nil
}

// Once opens the body for a call that must not be sent again: the request is not known to be idempotent.
func (g *GuardedBody) Once() io.ReadCloser {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.discard()
	g.current = &reading{g: g}
	return g.current
}

// Answered releases what was kept, unless it is still being read: a leg that has its answer is not sent again, and the
// answer may take minutes. It does nothing for a nil receiver.
func (g *GuardedBody) Answered() {
	if g == nil || !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	if g.current == nil || g.current.at == len(g.kept) {
		g.discard()
	}
}

// Free ends all reading. A transport that still waits for the client's next bytes keeps its memory until they come.
func (g *GuardedBody) Free() {
	if !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	g.current = nil
	g.discard()
}

// keep adds to what is kept. The caller holds mu.
func (g *GuardedBody) keep(b []byte) {
	if g.lost {
		return
	}
	size := len(g.kept) + len(b)
	if size > maxKept {
		g.discard()
		return
	}
	if g.buf == nil || size > len(*g.buf) {
		larger := transport.TakeBuffer(size)
		copy(*larger, g.kept)
		g.putBuffer()
		g.buf, g.kept = larger, (*larger)[:len(g.kept)]
	}
	g.kept = append(g.kept, b...)
}

// discard drops what is kept. The caller holds mu.
func (g *GuardedBody) discard() {
	g.putBuffer()
	g.buf, g.kept, g.lost = nil, nil, true
}

func (g *GuardedBody) putBuffer() {
	if g.buf != nil {
		transport.PutBuffer(g.buf)
	}
}

// Failure is why reading stopped, nil for a nil receiver or a body that could be read.
func (g *GuardedBody) Failure() error {
	if g == nil {
		return nil
	}
	if err := g.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// reading is one reader of a guarded body.
type reading struct {
	g  *GuardedBody
	at int // in what is kept
}

// Read implements io.Reader.
func (r *reading) Read(b []byte) (int, error) {
	g := r.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current != r {
		return 0, errSuperseded
	}
	if r.at < len(g.kept) {
		n := copy(b, g.kept[r.at:])
		r.at += n
		return n, nil
	}
	n, err := g.src.Read(b)
	switch {
	case err == io.EOF:
		g.src = http.NoBody // the cleaner's memory is not kept for as long as the answer takes
	case err != nil:
		g.failed.Store(&err)
	}
	g.keep(b[:n])
	r.at = len(g.kept)
	return n, err
}

// Close implements io.Closer. The server closes the client's body.
func (r *reading) Close() error { return nil }
