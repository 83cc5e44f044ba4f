package sidecar

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// segmentSize is the size of a new segment for a body of which n bytes are expected. Who only says that much will come costs
// a segment: when there is not much room left, a small one.
func (s *Server) segmentSize(n int64) int64 {
	if s.held.Scarce() {
		return min(n, firstSegment)
	}
	return min(n, maxSegment)
}

func heldTooMuch() *pd.Refusal {
	return pd.Refuse(pd.Busy, "This pod holds as many request bodies as it may. Try again; another pod may have room.")
}

// maxHeaders is how many header lines a request may have: each costs hundreds of bytes in memory, and four on the wire.
// Envoy takes 100, and adds some.
const maxHeaders = 256

// paced is a client's body that has to come without long pauses. Only the time in which it is waited for counts: who reads
// slowly, because an engine does, does not wear out the client's patience with it.
type paced struct {
	io.ReadCloser
	ctx    context.Context // ends when nobody wants the body any more; who ends it may set a deadline too
	pause  time.Duration
	sticky bool // a deadline that passes ends the body, though nobody reads then: HTTP/2 of net/http

	came   int64         // bytes
	waited time.Duration // for them

	mu      sync.Mutex // guards what follows
	control http.ResponseController
	until   time.Time // the deadline, zero while nobody waits
	off     bool      // the body is over, or the handler
}

// begin has a request's body come in time from now on. It must be ended before the handler: deadlines are the connection's.
func (p *paced) begin(ctx context.Context, w http.ResponseWriter, r *http.Request, pause time.Duration) {
	p.off = r.Body == nil || r.Body == http.NoBody
	if p.off {
		return
	}
	p.ReadCloser, p.ctx, p.control, p.pause, p.sticky = r.Body, ctx, *http.NewResponseController(w), pause, r.ProtoMajor == 2
	if !p.sticky {
		p.extend(time.Now()) // also for what the server reads of a body before an answer that comes early
	}
	r.Body = p
}

// end leaves the deadline as it is: what the server still reads of the body has to come in time too.
func (p *paced) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
}

// late tells whether the client was waited for until the deadline had passed. The server of HTTP/1 then ends the request's
// context as for a client that left.
func (p *paced) late() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.off && !p.until.IsZero() && !time.Now().Before(p.until)
}

// extend moves the deadline to where patience ends with a client that has sent what came.
func (p *paced) extend(now time.Time) {
	p.deadline(now.Add(min(p.pause, p.pause+time.Duration(p.came/pd.BodyRate)*time.Second-p.waited)))
}

// deadline sets the connection's, unless nobody wants the body any more: whoever ended it may have set one too.
func (p *paced) deadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.off {
		return
	}
	p.until = t
	p.off = p.control.SetReadDeadline(t) != nil // a connection without deadlines is a test's
	if p.ctx.Err() != nil && !p.off {
		p.off = p.control.SetReadDeadline(time.Now()) != nil
	}
}

// Read implements io.Reader.
func (p *paced) Read(b []byte) (int, error) {
	began := time.Now()
	p.extend(began)
	n, err := p.ReadCloser.Read(b)
	p.came += int64(n)
	p.waited += time.Since(began)
	switch err {
	case nil:
		p.rest()
	case io.EOF:
		p.over()
	}
	return n, err
}

// rest ends the waiting. The deadline of a connection may stay: it ends only who waits.
func (p *paced) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Time{}
	if p.sticky && !p.off {
		_ = p.control.SetReadDeadline(time.Time{}) // it could be set before
	}
}

// over ends the deadline with the body: from now on the server listens for the client's leaving, and silence is none.
func (p *paced) over() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.off {
		_ = p.control.SetReadDeadline(time.Time{}) // it could be set before
	}
	p.off = true
}

func slowBody() *pd.Refusal {
	return pd.Refuse(pd.SlowBody, "The request body did not arrive in time. Send it again without pauses.")
}

// checked keeps requests with too many header lines from a handler.
func (s *Server) checked(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lines := 0
		for _, values := range r.Header {
			lines += len(values)
		}
		if lines > maxHeaders {
			s.refusePass(w, r, pd.Refuse(pd.LongHeader, "The request has more than %d header lines.", maxHeaders))
			return
		}
		h.ServeHTTP(w, r)
	})
}
