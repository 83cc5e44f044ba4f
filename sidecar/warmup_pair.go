package sidecar

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

const (
	// warmupMark begins the request ids of the warm-up. In the log of a vLLM engine that logs requests they are
	// cmpl-tandem-warmup-….
	warmupMark = "tandem-warmup-"
	// warmupPrompt comes after the request id, so that no cache has it: what decode has in its own is not read from prefill.
	warmupPrompt = " Tandem warms this pair up."
	// warmupGrowth is how many times as long the next prompt is if there was no hand-off, and warmupGrowths how often that is
	// tried. Models with hybrid attention hand over whole blocks alone, of up to some 2,200 tokens.
	warmupGrowth, warmupGrowths = 8, 3
	// warmupTimeout bounds one hand-off of the warm-up. A handshake that fails takes engines 5 s.
	warmupTimeout = 15 * time.Second
)

// Why there is no use in trying again. The sidecar has no key: those of requests are their clients'.
var (
	errNothing       = errors.New("the prefill engine hands nothing over, however long the prompt")
	errDecodeLocked  = errors.New("the decode engine asks for a key")
	errPrefillLocked = errors.New("the prefill engine asks for a key")
)

// introduction is one hand-off of the warm-up. It is none of the users' requests, and in none of their metrics and traces;
// if it has to be given back, that is counted where it is for all hand-offs.
type introduction struct {
	s    *Server
	id   string
	req  *request.Request
	hand handInHand
}

// meet runs one hand-off of a few tokens from a prefill engine to the decode engine.
func (w *warmup) meet(ctx context.Context, t pd.Target) error {
	ctx, cancel := context.WithTimeout(ctx, warmupTimeout)
	defer cancel()
	model, err := w.s.model(ctx)
	if err != nil {
		return fmt.Errorf("asking decode for its model: %w", err)
	}
	i := &introduction{s: w.s, id: warmupMark + transport.RequestID(nil)}
	if i.req, err = warmupRequest(model, i.id+strings.Repeat(warmupPrompt, w.length(t))); err != nil {
		return err
	}
	defer func() { i.hand.hold.End() }()
	if err := i.prefill(ctx, t); err != nil {
		return err
	}
	return i.decode(ctx)
}

// length is how many times the prompt says what it says.
func (w *warmup) length(t pd.Target) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 1
	if p := w.known[t]; p != nil {
		for range p.grown {
			n *= warmupGrowth
		}
	}
	return n
}

func (i *introduction) header() http.Header {
	return http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {i.id}, "User-Agent": transport.NoAgent,
		"Accept-Encoding": transport.Identity}
}

// prefill gets a hand-off. When ctx ends it hangs up as it does for a client that has left.
func (i *introduction) prefill(ctx context.Context, t pd.Target) error {
	l, err := i.s.dialect.Prefill(i.req)
	if err != nil {
		return fmt.Errorf("editing the prefill leg: %w", err)
	}
	legCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h := &hangup{cancel: cancel}
	defer h.done()
	defer context.AfterFunc(ctx, h.soon)()
	sent := time.Now()
	_, offer, err := i.s.sendPrefill(h.trace(legCtx), t, pd.APICompletions.Path(), i.header(), l)
	if !offer.Handoff.Zero() {
		finished := i.s.stalls.arrived(sent)
		i.hand = handInHand{offer: offer, finished: finished, target: t, hold: i.s.leases.Hold(offer.Handoff, finished)}
	}
	var refused *clientError
	switch {
	case err == nil:
		return nil
	case !offer.Handoff.Zero(): // it does not fit the prompt
		i.end(i.s.giveBack)
	case errors.As(err, &refused) && isLocked(refused.status):
		return fmt.Errorf("%w: %w", errPrefillLocked, err)
	}
	return err
}

// decode has the decode engine take the hand-off up, or gives it back.
func (i *introduction) decode(ctx context.Context) error {
	l, err := i.s.dialect.Decode(i.req, i.hand.offer)
	if err != nil {
		err = fmt.Errorf("editing the decode leg: %w", err)
	}
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		i.end(i.s.giveBack)
		return err
	}
	g, err := startLeg(ctx, i.s.local, i.s.engine+pd.APICompletions.Path(), i.header(), l)
	if err != nil {
		i.end(i.s.giveBack)
		return fmt.Errorf("making the decode leg: %w", err)
	}
	select {
	case r := <-g.result:
		defer g.cancel(nil)
		defer context.AfterFunc(ctx, func() { g.cancel(nil) })()
		return i.decoded(r)
	case <-ctx.Done():
		i.end(func(h held) { i.s.abandon(g, h) })
		return context.Cause(ctx)
	}
}

// decoded reads decode's answer.
func (i *introduction) decoded(r legResult) error {
	if r.err != nil {
		i.end(i.s.giveUp)
		return r.err
	}
	defer r.resp.Body.Close()
	if r.resp.StatusCode != http.StatusOK {
		if keepsHold(r.resp.StatusCode) {
			i.end(i.s.giveBack)
		}
		return fmt.Errorf("decode answered %s", r.resp.Status)
	}
	_, err := io.Copy(io.Discard, io.LimitReader(r.resp.Body, maxPrefillAnswer))
	return err
}

// end gives the hand-off back in a way. The decode engine is needed meanwhile, and whoever waits for that sees it.
func (i *introduction) end(way func(held)) {
	i.s.life.count(1)
	defer i.s.life.count(-1)
	way(held{i.id, i.hand.offer, i.hand.hold, i.header(), trace.SpanFromContext(context.Background())})
}

func warmupRequest(model, prompt string) (*request.Request, error) {
	text, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0})
	if err != nil {
		return nil, err
	}
	var scan body.Scanner
	scan.Reset(request.Base.Members(), body.Limits{}, nil)
	if _, err := scan.Write(text); err != nil {
		return nil, err
	}
	b := &body.Body{}
	b.Append(text)
	return request.Base.Request(pd.APICompletions, b, &scan), scan.Close()
}

// isLocked tells that an engine wants to see who asks.
func isLocked(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

var errNoModel = errors.New("it serves none")

// model is the name of the first model of the decode engine.
func (s *Server) model(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.engine+"/v1/models", nil)
	if err != nil {
		return "", err
	}
	resp, err := s.local.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if isLocked(resp.StatusCode) {
		return "", fmt.Errorf("%w: it answered %s", errDecodeLocked, resp.Status)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxPrefillAnswer)).Decode(&list); err != nil {
		return "", err
	}
	if len(list.Data) == 0 || list.Data[0].ID == "" {
		return "", errNoModel
	}
	return list.Data[0].ID, nil
}
