package handoff

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// leg is a decode leg under way. It does not end with the client: whether it may be cancelled at once depends on how far
// the engine has come (see cancelDelivered).
type leg struct {
	cancel context.CancelCauseFunc
	ctx    context.Context
	sent   time.Time
	stream bool          // the engine sends the headers when it has admitted the leg
	settle time.Duration // how long the engine must have a leg that is no stream before it may be cancelled

	trace   httptrace.ClientTrace
	once    sync.Once     // closes wrote
	wrote   chan struct{} // closed when the whole leg has been handed to the engine's socket
	wroteAt time.Time     // set before wrote is closed
	result  chan legResult
	vigil   *vigil // of the local engine
}

type legResult struct {
	resp *http.Response
	err  error
}

// startLeg sends a decode leg that reads a hand-off, whose headers it adds to those of the leg. The caller must take its result, or
// call cancelDelivered.
func (legs *Legs) startLeg(ctx context.Context, of dialect.Handoff, uri string, header http.Header, l request.Payload) (*leg, error) {
	g := &leg{sent: time.Now(), wrote: make(chan struct{}), result: make(chan legResult, 1)}
	if r, ok := of.(dialect.Releaser); ok {
		g.settle = r.Settle()
	}
	g.ctx, g.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	g.trace.WroteRequest = g.written
	setHeaders(of, pd.RoleDecode, header)
	req, err := transport.NewBufferedLeg(httptrace.WithClientTrace(g.ctx, &g.trace), legs.Decode.URL+uri, header, l.Segments, l.Length)
	if err != nil {
		g.cancel(nil)
		return nil, err
	}
	go func() {
		resp, err := legs.Decode.Transport.RoundTrip(req)
		g.result <- legResult{resp, err}
	}()
	return g, nil
}

// setHeaders adds to the headers of a leg what its attempt, or the hand-off of that, has in them.
func setHeaders(of any, role pd.Role, header http.Header) {
	if s, ok := of.(dialect.HeaderSetter); ok {
		s.SetHeader(role, header)
	}
}

// written notes when the leg was handed to the socket, for the first time if it was sent again.
func (g *leg) written(info httptrace.WroteRequestInfo) {
	if info.Err == nil {
		g.once.Do(func() { g.wroteAt = time.Now(); close(g.wrote) })
	}
}

// releaseTimeout bounds a release: an engine that has not sent the headers of a stream by then cannot release anything.
const releaseTimeout = 5 * time.Second

// cancelDelivered cancels a leg whose answer is not needed, after the engine has learned of the hand-off in it. The headers of
// a stream show that; for a whole answer it is assumed g.settle after the leg was written. It returns, after at most
// releaseTimeout, the status of the engine's answer (0: none came) and whether the engine got the leg.
func (g *leg) cancelDelivered() (status int, delivered bool) {
	defer g.cancel(errClientLeft)
	limit := time.NewTimer(releaseTimeout)
	defer limit.Stop()
	wrote := g.wrote
	var settled <-chan time.Time
	for {
		select {
		case r := <-g.result:
			if r.err != nil {
				return 0, false
			}
			g.cancel(errClientLeft)
			r.resp.Body.Close()
			return r.resp.StatusCode, true
		case <-wrote:
			wrote = nil
			if !g.stream {
				t := time.NewTimer(time.Until(g.wroteAt.Add(g.settle)))
				defer t.Stop()
				settled = t.C
			}
		case <-settled:
			g.drop()
			return 0, true
		case <-limit.C:
			g.drop()
			return 0, wrote == nil
		}
	}
}

// drop cancels the leg and waits for its goroutine.
func (g *leg) drop() {
	g.cancel(errClientLeft)
	if r := <-g.result; r.err == nil {
		r.resp.Body.Close()
	}
}
