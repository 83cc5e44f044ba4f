package sidecar

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// guarded is a client's body that is cleaned while it is read: nothing a client may not send passes. Its beginning is
// kept, so that a leg that met a connection its engine had closed while idle can be sent again: the engine has read
// nothing then, but the transport may have read a little.
type guarded struct {
	failed atomic.Pointer[error] // why reading stopped, if not at the end

	mu   sync.Mutex // guards what follows, also while the client's next bytes are waited for
	src  io.Reader
	buf  *[]byte  // holds what is kept
	kept []byte   // what has been read, the beginning of buf
	lost bool     // nothing is kept: it became too much, or nobody needs it
	last *passing // the one that may read on
}

// keptBody is how much of a streamed body is kept for sending it again (bytes): a short request is whole, and of a long
// one the transport seldom gets further into the socket of a connection that is gone.
const keptBody = 64 << 10

// guard wraps a client's body that an engine may read as JSON.
func (s *Server) guard(r io.Reader) *guarded {
	return &guarded{src: body.NewBlank(r, request.Base.Members(), s.limits(), s.strips)}
}

// guardForm wraps a client's form: its fields may be JSON, so none may mention what a client may not send. Nothing can be
// taken out of it. It may be as large as the engine likes.
func (s *Server) guardForm(r io.Reader) *guarded {
	return &guarded{src: body.NewSentry(r, request.Base.Members(), s.strips)}
}

var (
	errBodyGone   = errors.New("the request body was read too far to be sent again")
	errSuperseded = errors.New("the request body is no longer read")
)

// again gives the body from its beginning. Who reads an earlier one gets an error from now on.
func (g *guarded) again() (io.ReadCloser, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost {
		return nil, errBodyGone
	}
	g.last = &passing{g: g}
	return g.last, nil
}

// once gives the body for a call that is not sent again: nothing says that an engine may get it twice.
func (g *guarded) once() io.ReadCloser {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forgetKept()
	g.last = &passing{g: g}
	return g.last
}

// answered gives back what was kept, unless it is still being read: a leg that has its answer is not sent again, and the
// answer may take minutes. For a nil receiver it does nothing.
func (g *guarded) answered() {
	if g == nil || !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	if g.last == nil || g.last.at == len(g.kept) {
		g.forgetKept()
	}
}

// free ends all reading. A transport that still waits for the client's next bytes keeps what it holds.
func (g *guarded) free() {
	if !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	g.last = nil
	g.forgetKept()
}

// keep adds to what is kept. It is called with mu held.
func (g *guarded) keep(b []byte) {
	if g.lost {
		return
	}
	size := len(g.kept) + len(b)
	if size > keptBody {
		g.forgetKept()
		return
	}
	if g.buf == nil || size > len(*g.buf) {
		larger := transport.TakeBuffer(size)
		copy(*larger, g.kept)
		g.giveBack()
		g.buf, g.kept = larger, (*larger)[:len(g.kept)]
	}
	g.kept = append(g.kept, b...)
}

// forgetKept is called with mu held.
func (g *guarded) forgetKept() {
	g.giveBack()
	g.buf, g.kept, g.lost = nil, nil, true
}

func (g *guarded) giveBack() {
	if g.buf != nil {
		transport.PutBuffer(g.buf)
	}
}

// failure is why reading stopped, nil for a nil receiver or a body that could be read.
func (g *guarded) failure() error {
	if g == nil {
		return nil
	}
	if err := g.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// passing is one reading of a guarded body.
type passing struct {
	g  *guarded
	at int // in what is kept
}

// Read implements io.Reader.
func (p *passing) Read(b []byte) (int, error) {
	g := p.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last != p {
		return 0, errSuperseded
	}
	if p.at < len(g.kept) {
		n := copy(b, g.kept[p.at:])
		p.at += n
		return n, nil
	}
	n, err := g.src.Read(b)
	switch {
	case err == io.EOF:
		g.src = http.NoBody // what cleaned the body is not held for as long as the answer takes
	case err != nil:
		g.failed.Store(&err)
	}
	g.keep(b[:n])
	p.at = len(g.kept)
	return n, err
}

// Close implements io.Closer. The client's body is closed by its server.
func (p *passing) Close() error { return nil }
