package handoff

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// pairHandoff is one hand-off of a warm-up. It appears in no metrics and traces of users' requests; its release is counted
// with all others.
type pairHandoff struct {
	legs    *Legs
	header  http.Header
	req     *request.Request
	handoff pending
}

// WarmUp runs one hand-off between target and the local engine, of a completion with these headers and this body: both legs,
// as the dialect's shape says. If the prefill engine blames the request, the error wraps a *ClientError.
func (legs *Legs) WarmUp(ctx context.Context, t pd.Target, header http.Header, body []byte) error {
	req, err := legs.parseCompletion(body)
	if err != nil {
		return err
	}
	if err := cmp.Or(legs.checkLocal(ctx), legs.checkPrefill(ctx, t)); err != nil {
		return err
	}
	p := &pairHandoff{legs: legs, header: header, req: req}
	defer func() { p.handoff.hold.End() }()
	if legs.Dialect.Shape() == dialect.Concurrent {
		return p.runBoth(ctx, t)
	}
	if err := p.prefill(ctx, t); err != nil {
		return err
	}
	return p.decode(ctx)
}

// prefill gets a hand-off. When ctx ends it hangs up as for a client that has left.
func (p *pairHandoff) prefill(ctx context.Context, t pd.Target) error {
	a, err := p.legs.Dialect.Attempt(ctx, p.req, t)
	if err != nil {
		return fmt.Errorf("preparing the legs: %w", err)
	}
	legCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h := &hangup{cancel: cancel}
	defer h.done()
	defer context.AfterFunc(ctx, h.schedule)()
	sent := time.Now()
	_, of, err := p.legs.sendPrefill(legCtx, h, p.legs.Prefill(t), pd.APICompletions.Path(), p.header.Clone(), a)
	if finished(of) != nil {
		return dialect.ErrNoHandoff // a longer prompt may do
	}
	if of != nil {
		p.handoff = p.legs.newHandoff(of, sent, t)
	}
	if err != nil && of != nil { // it does not fit the prompt
		p.release(p.legs.releaseUnread)
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
		p.release(p.legs.releaseUnread)
		return err
	}
	g, err := p.legs.startLeg(ctx, p.handoff.of, pd.APICompletions.Path(), p.header.Clone(), l)
	if err != nil {
		p.release(p.legs.releaseUnread)
		return fmt.Errorf("making the decode leg: %w", err)
	}
	select {
	case r := <-g.result:
		return p.decoded(ctx, g, r)
	case <-ctx.Done():
		p.endLeg(g)
		return context.Cause(ctx)
	}
}

// runBoth runs both legs at once. When one fails, or ctx ends, it ends the other one, and has the engines abort both.
func (p *pairHandoff) runBoth(ctx context.Context, t pd.Target) error {
	a, err := p.legs.Dialect.Attempt(ctx, p.req, t)
	if err != nil {
		return fmt.Errorf("preparing the legs: %w", err)
	}
	rendezvous, ok := a.(dialect.Rendezvous)
	if !ok {
		return errNotConcurrent
	}
	p.handoff = pending{of: rendezvous.Handoff(), target: t}
	l, err := p.handoff.of.Decode()
	if err != nil {
		return fmt.Errorf("editing the decode leg: %w", err)
	}
	legCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, err := p.legs.startLeg(legCtx, p.handoff.of, pd.APICompletions.Path(), p.header.Clone(), l)
	if err != nil {
		return fmt.Errorf("making the decode leg: %w", err)
	}
	prefilled := make(chan error, 1)
	var prefill sync.WaitGroup
	prefill.Go(func() {
		_, of, err := p.legs.sendPrefill(legCtx, nil, p.legs.Prefill(t), pd.APICompletions.Path(), p.header.Clone(), a)
		if finished(of) != nil {
			err = dialect.ErrNoHandoff
		}
		prefilled <- err
	})
	err = p.awaitBoth(ctx, g, prefilled)
	cancel()
	prefill.Wait()
	if aborter, ok := a.(dialect.Aborter); ok && err != nil {
		p.runRelease(func(r releasing) { p.legs.abort(r, aborter, t) })
	}
	return err
}

// awaitBoth waits until both legs have succeeded, or one has failed, or ctx ends. The decode leg has ended when it returns.
func (p *pairHandoff) awaitBoth(ctx context.Context, g *leg, prefilled <-chan error) error {
	decode := g.result
	for decode != nil || prefilled != nil {
		var err error
		select {
		case r := <-decode:
			decode = nil
			err = p.decoded(ctx, g, r)
		case err = <-prefilled:
			prefilled = nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err == nil {
			continue
		}
		if decode != nil {
			p.endLeg(g)
		}
		return err
	}
	return nil
}

// endLeg cancels a decode leg under way, and releases its hand-off.
func (p *pairHandoff) endLeg(g *leg) {
	if !pinned(p.handoff.of) {
		g.drop()
		return
	}
	p.release(func(r releasing) { p.legs.cancelLeg(g, r) })
}

// decoded reads decode's answer.
func (p *pairHandoff) decoded(ctx context.Context, g *leg, r legResult) error {
	defer g.cancel(nil)
	defer context.AfterFunc(ctx, func() { g.cancel(nil) })()
	if r.err != nil {
		p.release(p.legs.releaseInDoubt)
		return r.err
	}
	defer r.resp.Body.Close()
	if r.resp.StatusCode != http.StatusOK {
		if p.handoff.pins(r.resp.StatusCode) {
			p.release(p.legs.releaseUnread)
		}
		return fmt.Errorf("decode answered %s", r.resp.Status)
	}
	_, err := io.Copy(io.Discard, io.LimitReader(r.resp.Body, maxPrefillAnswer))
	return err
}

// release releases the hand-off in the given way, if an engine keeps anything for it.
func (p *pairHandoff) release(way func(releasing)) {
	if pinned(p.handoff.of) {
		p.runRelease(way)
	}
}

// runRelease runs a release, and counts it meanwhile in Releasing: the local engine is needed for it.
func (p *pairHandoff) runRelease(way func(releasing)) {
	p.legs.releasing.Add(1)
	defer p.legs.releasing.Add(-1)
	way(releasing{p.header.Get("X-Request-Id"), p.handoff.of, p.handoff.hold, p.header.Clone(), trace.SpanFromContext(context.Background()), nil})
}

// parseCompletion scans a completion request.
func (legs *Legs) parseCompletion(text []byte) (*request.Request, error) {
	var scan body.Scanner
	if err := scan.Scan(legs.Intake.Table.Members(), body.Limits{}, text); err != nil {
		return nil, err
	}
	b := &body.Body{}
	b.Append(text)
	return legs.Intake.Table.Request(pd.APICompletions, b, &scan), nil
}
