package handoff

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/continuation"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// anew is a request that another engine may answer from its beginning, as long as the client has seen nothing of an answer.
type anew struct {
	req    *intake.Request
	before int  // how often other sidecars had its answer go on before the request came here
	sent   bool // the local engine has had a leg of it
}

// mayAskAnew notes a buffered request, if another engine may answer it should the local one die or hang. A forced one must have its
// prompt computed by a prefill pod, which the proxy's next try does.
func (x *Exchange) mayAskAnew(req *intake.Request) {
	_, able := x.legs.Dialect.(dialect.Continuer)
	if !able || x.legs.Continue.Times == 0 || x.Route.Strict || req.AsIs || !x.API.Splittable() {
		return
	}
	x.anew, x.Holds = &anew{req: req, before: countIn(x.request.Header, pd.HeaderContinued)}, true
}

// noteLeg notes that the local engine has had a leg.
func (x *Exchange) noteLeg() {
	if x.anew != nil {
		x.anew.sent = true
	}
}

// refusedConnection reports whether a leg failed before the engine could get any of it.
func refusedConnection(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// opens returns what tells events that engines send before a stream's first token; nil: only those that are known by their names.
func (x *Exchange) opens() func(body.Event) bool {
	if x.ongoing == nil && x.anew == nil {
		return nil
	}
	return continuation.Opens
}

// orAnew returns err, because of which the local engine gives no answer, unless another engine has answered the request. A request that the
// local engine never got is left to the proxy, as without Continue: its next try may use a prefill pod.
func (x *Exchange) orAnew(err error) error {
	var refusal *pd.Refusal
	if x.anew == nil || !x.anew.sent || x.Context.Err() != nil || !errors.As(err, &refusal) || refusal.Reason != pd.NoEndpoint {
		return err
	}
	if answered, end := x.askAnew(err); answered {
		return end
	}
	return err
}

// askAnew has another engine answer the request, whose answer was lost because of cause, and relays that answer. If none does, answered is
// false, and the client has got nothing. Otherwise the error is for Fail.
func (x *Exchange) askAnew(cause error) (answered bool, err error) {
	if x.anew == nil {
		return false, nil
	}
	for {
		of, result := x.askOthers()
		if x.Context.Err() != nil {
			of.end()
			return true, x.contextError()
		}
		x.legs.Metrics.Continued.WithLabelValues(causeOf(cause), result).Inc()
		x.legs.warnings.Warn("answer lost before it began", "request_id", x.ID, "cause", cause, "continued", result)
		if result != askedAnew {
			return false, nil
		}
		err := x.relayAnew(of)
		if err == nil || x.Context.Err() != nil {
			return true, err
		}
		x.answeringFailed()
		cause = err
	}
}

// anewLeg is a leg to another engine that answers a request from its beginning. A nil one has ended.
type anewLeg struct {
	resp   *http.Response
	answer *relay.Answer
	vigil  *vigil
	cancel context.CancelCauseFunc
}

func (l *anewLeg) end() {
	if l == nil {
		return
	}
	l.vigil.over(false)
	l.cancel(nil)
	if l.answer != nil {
		l.answer.Free()
	}
	if l.resp != nil {
		l.resp.Body.Close()
	}
}

// askOthers asks the other engines for the whole answer, one after another, until one begins it. The result is a label of
// Metrics.Continued.
func (x *Exchange) askOthers() (of *anewLeg, result string) {
	if x.anew.before+x.Anew >= x.legs.Continue.Times {
		return nil, tooOften
	}
	targets := x.others()
	if len(targets) == 0 {
		return nil, noEngine
	}
	if !x.legs.Continue.Budget.Take() {
		return nil, overBudget
	}
	x.Anew++
	x.moved.Store(true) // the local engine is not needed any more
	for _, t := range targets {
		of, err := x.askAnewAt(t)
		if err == nil {
			x.answering = t
			return of, askedAnew
		}
		of.end()
		x.failed = append(x.failed, t)
		if x.Context.Err() != nil {
			break
		}
		x.legs.warnings.Warn("engine does not answer a request anew", "request_id", x.ID, "target", t.String(), "error", err)
	}
	return nil, othersFail
}

// askAnewAt asks one engine. The caller must end the leg, also if there is an error.
func (x *Exchange) askAnewAt(t pd.Target) (*anewLeg, error) {
	payload, err := x.anew.req.Local()
	if err != nil {
		return nil, fmt.Errorf("editing the leg: %w", err)
	}
	payload = x.mayGoOn(x.anew.req, payload)
	header := x.legHeader()
	header["Accept-Encoding"] = transport.Identity
	header.Set(pd.HeaderContinued, strconv.Itoa(x.anew.before+x.Anew))
	ctx, cancel := context.WithCancelCause(x.Context)
	of, engine := &anewLeg{cancel: cancel}, x.legs.Prefill(t)
	ctx, span := x.legs.tracing.leg(ctx, spanDecode, header, attribute.Bool("tandem.anew", true),
		attribute.String("server.address", t.Host), attribute.Int("server.port", int(t.Port)))
	sent, status := time.Now(), 0
	x.Clock.Enter(pd.PhaseFirst, sent)
	of.vigil = x.legs.hung.watch(t, engine, waitFirst, payload.Length, cancel)
	x.beginsLeg(of.vigil, func() { cancel(errLeft) })
	req, err := transport.NewBufferedLeg(ctx, engine.URL+x.request.URL.RequestURI(), header, payload.Segments, payload.Length)
	if err == nil {
		of.resp, err = engine.Transport.RoundTrip(req)
	}
	if err == nil {
		status = of.resp.StatusCode
		err = x.beginAnew(of, cancel)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	x.record.leg("continue", t.String(), sent, time.Now(), status, err)
	x.endLegSpan(span, status, err)
	return of, err
}

// beginAnew waits for the first token of a stream, or the first byte of another answer.
func (x *Exchange) beginAnew(of *anewLeg, cancel context.CancelCauseFunc) error {
	if of.resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the engine answers %s", of.resp.Status)
	}
	of.vigil.reads(of.resp)
	of.answer = relay.NewAnswer(of.resp.Body)
	of.vigil.moves(true)
	if !relay.IsEventStream(of.resp.Header) || relay.Encoded(of.resp.Header) {
		_, err := of.answer.Peek()
		return err
	}
	silence := time.AfterFunc(x.legs.FirstEvent, func() { cancel(errSilent) })
	defer silence.Stop()
	err := of.answer.PeekEvent(x.opens(), nil)
	of.vigil.moves(false)
	return err
}

// relayAnew relays the answer of another engine, and ends its leg.
func (x *Exchange) relayAnew(of *anewLeg) error {
	defer of.end()
	if x.Decision.Verdict == pd.Remote {
		x.decide(pd.Local, pd.TransferFailed) // the prompt was computed again, by an engine that decodes
	}
	x.RetryElsewhere, x.Failure = false, nil
	x.rename(of.resp)
	return x.Relay(of.resp, of.answer)
}

// relayHeld relays an answer of the local engine of which another engine may take the place: a stream as soon as it has a token, another
// answer as soon as it is complete.
func (x *Exchange) relayHeld(resp *http.Response, v *vigil) error {
	a := relay.NewAnswer(resp.Body)
	defer a.Free()
	v.moves(true)
	if resp.StatusCode != http.StatusOK || !relay.IsEventStream(resp.Header) || relay.Encoded(resp.Header) {
		return x.Relay(resp, a)
	}
	err := a.PeekEvent(x.opens(), nil)
	v.moves(false)
	switch {
	case err == nil:
		return x.Relay(resp, a)
	case x.Context.Err() != nil:
		return x.contextError()
	case errors.Is(err, relay.ErrBeganFailing):
		if answered, end := x.askAnew(err); answered {
			return end
		}
		return x.Relay(resp, a)
	}
	x.legs.localEngine.doubt()
	return transport.Unreachable(err)
}
