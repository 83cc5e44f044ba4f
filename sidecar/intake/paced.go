package intake

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// ErrClientLeft says that the client closed its connection before its body was complete, or that the request's context ended.
var ErrClientLeft = errors.New("the client left")

// PacedBody is a client's body that must arrive without long pauses. Only the time in which a reader waits for the client
// counts, so a slow engine does not use up the client's time.
type PacedBody struct {
	io.ReadCloser
	ctx    context.Context // ends when no reader needs the body any more; the code that ends it may set a read deadline itself
	pause  time.Duration
	sticky bool // as with net/http's HTTP/2, a deadline that passes ends the body even while no reader waits

	came   int64         // bytes that have arrived
	waited time.Duration // time that readers have waited

	mu      sync.Mutex // guards the fields below
	control http.ResponseController
	until   time.Time // the deadline, zero while no reader waits
	off     bool      // the body, or the handler, has ended
}

// Begin replaces the body of r by p, with pauses of at most pause. The caller must call End before its handler returns,
// because deadlines belong to the connection.
func (p *PacedBody) Begin(ctx context.Context, w http.ResponseWriter, r *http.Request, pause time.Duration) {
	p.ctx = ctx
	p.off = r.Body == nil || r.Body == http.NoBody
	if p.off {
		return
	}
	p.ReadCloser, p.control, p.pause, p.sticky = r.Body, *http.NewResponseController(w), pause, r.ProtoMajor == 2
	if !p.sticky {
		p.extend(time.Now()) // the deadline holds also for the rest of a body that the server reads after an early answer
	}
	r.Body = p
}

// End stops the pacing. The deadline stays: the rest of the body, which the server still reads, must arrive in time too.
func (p *PacedBody) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
}

// Late reports whether a reader has waited for the client beyond the deadline. net/http's HTTP/1 server then ends the
// request's context, as if the client had left.
func (p *PacedBody) Late() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.off && !p.until.IsZero() && !time.Now().Before(p.until)
}

// leaveGrace is how long the context may end after reading has failed because the client left: net/http tells a reader of an HTTP/2
// body first.
const leaveGrace = 50 * time.Millisecond

// Failure converts an error of reading the body: nil for its end, a *pd.Refusal, or ErrClientLeft.
func (p *PacedBody) Failure(err error) error {
	switch {
	case err == io.EOF:
		return nil
	case p.Late():
		return slowBody()
	case p.ctx.Err() != nil, errors.Is(err, io.ErrUnexpectedEOF):
		return ErrClientLeft
	}
	grace := time.NewTimer(leaveGrace)
	defer grace.Stop()
	select {
	case <-p.ctx.Done():
		return ErrClientLeft
	case <-grace.C:
	}
	return pd.Refuse(pd.BadRequest, "The request body could not be read: %v.", err)
}

// LateRefusal returns the refusal of a body that is Late, nil for others.
func (p *PacedBody) LateRefusal() *pd.Refusal {
	if !p.Late() {
		return nil
	}
	return slowBody()
}

// extend moves the deadline to the time by which the client must send more.
func (p *PacedBody) extend(now time.Time) {
	p.setDeadline(now.Add(min(p.pause, p.pause+time.Duration(p.came/pd.BodyRate)*time.Second-p.waited)))
}

// setDeadline sets the connection's read deadline, unless the body is no longer needed.
func (p *PacedBody) setDeadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.off {
		return
	}
	p.until = t
	p.off = p.control.SetReadDeadline(t) != nil // only connections in tests have no deadlines
	if p.ctx.Err() != nil && !p.off {
		p.off = p.control.SetReadDeadline(time.Now()) != nil
	}
}

// Read implements io.Reader.
func (p *PacedBody) Read(b []byte) (int, error) {
	began := time.Now()
	p.extend(began)
	n, err := p.ReadCloser.Read(b)
	p.came += int64(n)
	p.waited += time.Since(began)
	switch err {
	case nil:
		p.suspend()
	case io.EOF:
		p.finish()
	}
	return n, err
}

// suspend ends the wait. A connection's deadline may stay, since it ends only a waiting read.
func (p *PacedBody) suspend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Time{}
	if p.sticky && !p.off {
		_ = p.control.SetReadDeadline(time.Time{}) // an earlier call has shown that it can be set
	}
}

// finish removes the deadline at the end of the body: from then on the server reads in order to notice that the client
// leaves, for as long as the answer takes.
func (p *PacedBody) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.off {
		_ = p.control.SetReadDeadline(time.Time{}) // an earlier call has shown that it can be set
	}
	p.off = true
}
