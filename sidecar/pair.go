package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/warmup"
)

// warmupConfig wires the warm-up to this sidecar.
func (s *Server) warmupConfig(find warmup.Finder) warmup.Config {
	c := warmup.Config{
		Find:            find,
		Allowed:         func(t pd.Target) bool { return s.routes.Allow.Check(t) == nil },
		SideChannelPort: s.cfg.Keep.SideChannel,
		Decode:          s.decodeEngine(),
		Prefill:         s.prefillEngine,
		Draining:        s.life.draining.Load,
		Drained:         s.life.idle,
		Log:             s.log,
		Count:           func(result string) { s.metrics.warmups.WithLabelValues(result).Inc() },
	}
	if s.leases != nil {
		c.SideChannels = s.leases
	}
	if s.cfg.Keep.WarmUp && s.dialect.Shape() == dialect.Serial {
		c.HandOff = s.warmUp
	}
	return c
}

// pairHandoff is one hand-off of the warm-up. It appears in no metrics and traces of users' requests; its release is counted
// with all others.
type pairHandoff struct {
	s       *Server
	header  http.Header
	req     *request.Request
	handoff pending
}

// warmUp implements warmup.HandOff.
func (s *Server) warmUp(ctx context.Context, t pd.Target, header http.Header, body []byte) error {
	req, err := s.parseCompletion(body)
	if err != nil {
		return err
	}
	p := &pairHandoff{s: s, header: header, req: req}
	defer func() { p.handoff.hold.End() }()
	if err := p.prefill(ctx, t); err != nil {
		return err
	}
	return p.decode(ctx)
}

// prefill gets a hand-off. When ctx ends it hangs up as it does for a client that has left.
func (p *pairHandoff) prefill(ctx context.Context, t pd.Target) error {
	a, err := p.s.dialect.Attempt(ctx, p.req, t)
	if err != nil {
		return fmt.Errorf("preparing the legs: %w", err)
	}
	legCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h := &hangup{cancel: cancel}
	defer h.done()
	defer context.AfterFunc(ctx, h.soon)()
	sent := time.Now()
	_, of, err := p.s.sendPrefill(h.trace(legCtx), t, pd.APICompletions.Path(), p.header.Clone(), a)
	if of != nil {
		p.handoff = p.s.newHandoff(of, sent, t)
	}
	var refused *clientError
	switch {
	case err == nil:
		return nil
	case of != nil: // it does not fit the prompt
		p.release(p.s.releaseUnread)
	case errors.As(err, &refused) && warmup.IsLocked(refused.status):
		return fmt.Errorf("%w: %w", warmup.ErrLocked, err)
	}
	return err
}

// decode has the decode engine read the hand-off, or releases it.
func (p *pairHandoff) decode(ctx context.Context) error {
	l, err := p.handoff.of.Decode()
	if err != nil {
		err = fmt.Errorf("editing the decode leg: %w", err)
	}
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		p.release(p.s.releaseUnread)
		return err
	}
	g, err := startLeg(ctx, p.handoff.of, p.s.local, p.s.engine+pd.APICompletions.Path(), p.header.Clone(), l)
	if err != nil {
		p.release(p.s.releaseUnread)
		return fmt.Errorf("making the decode leg: %w", err)
	}
	select {
	case r := <-g.result:
		defer g.cancel(nil)
		defer context.AfterFunc(ctx, func() { g.cancel(nil) })()
		return p.decoded(r)
	case <-ctx.Done():
		p.release(func(r releasing) { p.s.abandon(g, r) })
		return context.Cause(ctx)
	}
}

// decoded reads decode's answer.
func (p *pairHandoff) decoded(r legResult) error {
	if r.err != nil {
		p.release(p.s.releaseInDoubt)
		return r.err
	}
	defer r.resp.Body.Close()
	if r.resp.StatusCode != http.StatusOK {
		if p.handoff.pins(r.resp.StatusCode) {
			p.release(p.s.releaseUnread)
		}
		return fmt.Errorf("decode answered %s", r.resp.Status)
	}
	_, err := io.Copy(io.Discard, io.LimitReader(r.resp.Body, maxPrefillAnswer))
	return err
}

// release releases the hand-off in a way. It counts as open meanwhile: the decode engine is needed for it.
func (p *pairHandoff) release(way func(releasing)) {
	p.s.life.count(1)
	defer p.s.life.count(-1)
	way(releasing{p.header.Get("X-Request-Id"), p.handoff.of, p.handoff.hold, p.header.Clone(), trace.SpanFromContext(context.Background())})
}

// parseCompletion scans a completion request.
func (s *Server) parseCompletion(text []byte) (*request.Request, error) {
	var scan body.Scanner
	scan.Reset(s.table.Members(), body.Limits{}, nil)
	if _, err := scan.Write(text); err != nil {
		return nil, err
	}
	b := &body.Body{}
	b.Append(text)
	return s.table.Request(pd.APICompletions, b, &scan), scan.Close()
}
