package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// streamLocal passes a request to the engine beside, while it comes: nothing is held. What clients may not send is
// overwritten on the way.
func (x *exchange) streamLocal() error {
	if x.r.ContentLength > x.s.cfg.Trust.BodyLimit {
		return tooLarge(x.s.cfg.Trust.BodyLimit)
	}
	source := x.s.guard(x.r.Body)
	header := legHeader(x.r.Header, x.id)
	req, err := http.NewRequestWithContext(x.ctx, http.MethodPost, x.s.engine+x.r.URL.RequestURI(), source)
	if err != nil {
		return fmt.Errorf("making the local leg: %w", err)
	}
	req.ContentLength = x.r.ContentLength
	if req.ContentLength == 0 {
		req.Body = http.NoBody
	}
	req.Header = header
	return x.sendLocal(req, source)
}

// heldLocal sends a request that was held.
func (x *exchange) heldLocal(req *request) error {
	l := dialect.Leg{Segments: req.body.Segments(), Length: req.body.Len()}
	if !req.asIs {
		var err error
		if l, err = req.Local(); err != nil {
			return fmt.Errorf("editing the local leg: %w", err)
		}
	}
	r, err := newLeg(x.ctx, x.s.engine+x.r.URL.RequestURI(), legHeader(x.r.Header, x.id), l)
	if err != nil {
		return fmt.Errorf("making the local leg: %w", err)
	}
	return x.sendLocal(r, nil)
}

// sendLocal sends a leg to the engine beside and relays its answer.
func (x *exchange) sendLocal(req *http.Request, source *guarded) (err error) {
	ctx, span := x.s.tracing.leg(req.Context(), spanDecode, req.Header)
	status := 0
	defer func() { endLeg(span, status, err) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x.state = decoding
	sent := time.Now()
	x.clock.Enter(pd.PhaseFirst, sent)
	inflight := x.s.metrics.inflight.WithLabelValues(room, "decode")
	inflight.Inc()
	defer inflight.Dec()
	resp, err := x.s.local.RoundTrip(req.WithContext(ctx))
	if err != nil {
		x.s.metrics.leg("local", 0, time.Since(sent))
		return x.localFailure(source, err)
	}
	defer resp.Body.Close()
	x.s.metrics.leg("local", resp.StatusCode, time.Since(sent))
	status = resp.StatusCode
	return x.relayFresh(resp)
}

// localFailure says why the engine beside gave no answer.
func (x *exchange) localFailure(source *guarded, err error) error {
	if readErr := source.failure(); readErr != nil {
		if refusal := refusalOf(readErr, x.s.cfg.Trust.BodyLimit); refusal != nil {
			return refusal
		}
		return x.readError(readErr)
	}
	if x.ctx.Err() != nil {
		return x.gone()
	}
	refusal := pd.Refuse(pd.NoEndpoint, "The decode engine of this pod does not answer. Try again; another pod will.")
	refusal.Cause = err
	return refusal
}

// guarded is a request body that is cleaned while it is read.
type guarded struct {
	io.Reader
	io.Closer

	mu  sync.Mutex // guards err: the transport may still read when its RoundTrip has returned
	err error      // why reading stopped, if not at the end
}

// guard wraps a client's body so that nothing a client may not send passes.
func (s *Server) guard(r io.ReadCloser) *guarded {
	return &guarded{Reader: body.NewBlank(r, dialect.RequestTable(), s.limits(), dialect.Stripped), Closer: r}
}

func (g *guarded) Read(p []byte) (int, error) {
	n, err := g.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		g.mu.Lock()
		g.err = err
		g.mu.Unlock()
	}
	return n, err
}

// failure is why reading stopped, nil for a nil receiver or a body that could be read.
func (g *guarded) failure() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}
