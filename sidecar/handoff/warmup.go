package handoff

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
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
// one after the other. If the prefill engine blames the request, the error wraps a *ClientError.
func (legs *Legs) WarmUp(ctx context.Context, t pd.Target, header http.Header, body []byte) error {
	req, err := legs.parseCompletion(body)
	if err != nil {
		return err
	}
	p := &pairHandoff{legs: legs, header: header, req: req}
	defer func() { p.handoff.hold.End() }()
	if err := p.prefill(ctx, t); err != nil {
		return err
	}
	return p.decode(ctx)
}

// prefill gets a hand-off. When ctx ends it hangs up as it does for a client that has left.
func (p *pairHandoff) prefill(ctx context.Context, t pd.Target) error {
	a, err := p.legs.Dialect.Attempt(ctx, p.req, t)
	if err != nil {
		return fmt.Errorf("preparing the legs: %w", err)
	}
	legCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h := &hangup{cancel: cancel}
	defer h.done()
	defer context.AfterFunc(ctx, h.soon)()
	sent := time.Now()
	_, of, err := p.legs.sendPrefill(h.trace(legCtx), t, pd.APICompletions.Path(), p.header.Clone(), a)
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
		defer g.cancel(nil)
		defer context.AfterFunc(ctx, func() { g.cancel(nil) })()
		return p.decoded(r)
	case <-ctx.Done():
		p.release(func(r releasing) { p.legs.cancelLeg(g, r) })
		return context.Cause(ctx)
	}
}

// decoded reads decode's answer.
func (p *pairHandoff) decoded(r legResult) error {
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

// release releases the hand-off in a way. It is counted meanwhile: the decode engine is needed for it.
func (p *pairHandoff) release(way func(releasing)) {
	p.legs.releasing.Add(1)
	defer p.legs.releasing.Add(-1)
	way(releasing{p.header.Get("X-Request-Id"), p.handoff.of, p.handoff.hold, p.header.Clone(), trace.SpanFromContext(context.Background())})
}

// parseCompletion scans a completion request.
func (legs *Legs) parseCompletion(text []byte) (*request.Request, error) {
	var scan body.Scanner
	scan.Reset(legs.Intake.Table.Members(), body.Limits{}, nil)
	if _, err := scan.Write(text); err != nil {
		return nil, err
	}
	b := &body.Body{}
	b.Append(text)
	return legs.Intake.Table.Request(pd.APICompletions, b, &scan), scan.Close()
}
