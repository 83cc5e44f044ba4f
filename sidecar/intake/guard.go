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

// GuardedBody is a client's body from which members that clients may not send are removed while it is read. It keeps its
// beginning, so that a leg can be sent again if the engine had closed the idle connection: the engine has then read nothing,
// but the transport may have read a little.
type GuardedBody struct {
	failed atomic.Pointer[error] // why reading stopped, if not at the end

	mu      sync.Mutex // guards the fields below, also while a reader waits for the client's next bytes
	src     io.Reader
	buf     *[]byte  // the buffer of kept
	kept    []byte   // what has been read, the beginning of buf
	lost    bool     // nothing is kept: it was too much, or is no longer needed
	current *reading // the only reader that may read on
}

// maxKept is how much of a streamed body is kept for sending it again (bytes). A short request fits; of a long one, the
// transport seldom sends more before it notices that the connection is closed.
const maxKept = 64 << 10

// Guard wraps a client's body that an engine may read as JSON.
func (in *Intake) Guard(r io.Reader) *GuardedBody {
	return &GuardedBody{src: body.NewBlank(r, in.Table.Members(), in.limits(), in.strips)}
}

// guardForm wraps a client's form. Its fields may be JSON, so it must not mention a member that a client may not send:
// nothing can be removed from a form. The engine limits its size. Items of lists, such as messages, are in no form; and their names
// are so short that a recording could have one by chance.
func (in *Intake) guardForm(r io.Reader) *GuardedBody {
	members := in.Table.Members()
	return &GuardedBody{src: body.NewSentry(r, members, func(want int) bool { return in.strips(want) && !strings.Contains(members.Path(want), "*") })}
}

// GuardByType wraps a request's body according to its content type; nil for a body that is certainly not JSON. A form must be
// UTF-8: in another encoding an engine could read members that the guard does not see.
func (in *Intake) GuardByType(r *http.Request) (*GuardedBody, *pd.Refusal) {
	types := r.Header["Content-Type"]
	if len(types) != 1 { // engines disagree which of several counts
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

// Again opens the body from its beginning. Earlier readers fail from now on.
func (g *GuardedBody) Again() (io.ReadCloser, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost {
		return nil, errReadTooFar
	}
	g.current = &reading{g: g}
	return g.current, nil
}

// Once opens the body for a call that must not be sent again, because it may not be idempotent.
func (g *GuardedBody) Once() io.ReadCloser {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.discard()
	g.current = &reading{g: g}
	return g.current
}

// Answered releases the kept beginning, unless it is still being read: a leg that has its answer is not sent again, and the
// rest of the answer may take minutes. It does nothing for a nil receiver.
func (g *GuardedBody) Answered() {
	if g == nil || !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	if g.current == nil || g.current.at == len(g.kept) {
		g.discard()
	}
}

// Free ends all reading. While a transport still waits for the client's next bytes, its memory stays.
func (g *GuardedBody) Free() {
	if !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	g.current = nil
	g.discard()
}

// keep appends to the kept beginning. The caller holds mu.
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

// discard drops the kept beginning. The caller holds mu.
func (g *GuardedBody) discard() {
	g.putBuffer()
	g.buf, g.kept, g.lost = nil, nil, true
}

func (g *GuardedBody) putBuffer() {
	if g.buf != nil {
		transport.PutBuffer(g.buf)
	}
}

// Failure returns why reading stopped, nil for a nil receiver or at the body's end.
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
	at int // offset in the kept beginning
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
		g.src = http.NoBody // releases the cleaner's memory before the answer ends
	case err != nil:
		g.failed.Store(&err)
	}
	g.keep(b[:n])
	r.at = len(g.kept)
	return n, err
}

// Close implements io.Closer. The server closes the client's body.
func (r *reading) Close() error { return nil }
