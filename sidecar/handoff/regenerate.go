package handoff

import (
	"bytes"
	"context"
	"net/http"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/continuation"
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// regenerating is a stream that goes on at another engine which generates all of it again.
type regenerating struct {
	*continuation.Regeneration
	mover
	strips *continuation.Stream // strips the ids from the local engine's events; nil: it was not asked for ids
	events body.Events          // of what strips returns, which may have several
}

// again makes the regenerating of a request that another engine answers in the same way.
func (x *Exchange) again(of request.Payload) *regenerating {
	return &regenerating{Regeneration: continuation.NewRegeneration(of, x.legs.Continue.Memory), mover: x.mover(), events: body.Events{Limit: relay.MaxEvent}}
}

// mayRegenerate prepares a stream that cannot go on from its token ids, as why says, if another engine may generate it again. It returns why the
// stream cannot go on at all.
func (x *Exchange) mayRegenerate(b *body.Body, of request.Payload, why continuation.Refusal) continuation.Refusal {
	again := continuation.Regenerable(x.API, b, !x.regenerates()) // SGLang obeys seeds only with --enable-deterministic-inference
	switch {
	case again == "":
		x.setOngoing(x.again(of))
		return ""
	case why == continuation.OtherAPI:
		return again
	}
	return why
}

// regenerates reports whether another engine needs a prefill engine, as the local one does, to answer a request again.
func (x *Exchange) regenerates() bool {
	_, is := x.legs.Dialect.(dialect.Regenerator)
	return is && (x.API == pd.APIChat || x.API == pd.APICompletions)
}

// nameCandidates has the sidecar of the other engine run both legs, with the prefill candidates of the request, and with the shared secret with
// which it came.
func (x *Exchange) nameCandidates(header http.Header) {
	for _, t := range x.Route.Targets {
		header.Add(pd.HeaderPrefill, t.String())
	}
	if secrets := x.request.Header.Values(pd.HeaderAuth); len(secrets) > 0 {
		header[http.CanonicalHeaderKey(pd.HeaderAuth)] = secrets
	}
}

// Event implements relay.Continuation.
func (r *regenerating) Event(e body.Event) body.Event {
	if r.strips == nil || r.Moves() > 0 {
		return r.Regeneration.Event(e)
	}
	e = r.strips.Event(e)
	_ = r.events.Feed(e.Raw, r.note) // each event was within the limit before
	return e
}

// Held implements relay.Continuation.
func (r *regenerating) Held() []byte {
	if r.strips == nil || r.Moves() > 0 {
		return r.Regeneration.Held()
	}
	return r.strips.Held()
}

func (r *regenerating) note(e body.Event) error {
	r.Regeneration.Event(e)
	return nil
}

// otherAnswer is the result of a stream that has gone on at an engine which then answered with another text; a metric label.
const otherAnswer = "differs"

// GoOn implements relay.Continuation.
func (r *regenerating) GoOn(cause error) *relay.Answer {
	if r.Broken() != nil {
		r.x.legs.Metrics.Continued.WithLabelValues(causeNone, otherAnswer).Inc()
		r.x.legs.warnings.Warn("stream does not go on", "request_id", r.x.ID, "error", r.Broken())
		return nil
	}
	if end := r.End(); end != nil {
		r.endLeg()
		r.answer = relay.NewAnswer(bytes.NewReader(end))
		return r.answer
	}
	return r.brokeOff(cause, r.tryOthers(r.Refusal(), r.Moves(), r.send, r.Moved))
}

// Leave implements relay.Continuation. A stream stays at an engine that is to end: another one might answer with another text, which would
// end the stream, and would need as long for the text so far.
func (r *regenerating) Leave() *relay.Answer {
	if r.Broken() != nil {
		return r.fails()
	}
	r.vigil.moves(r.Refusal() == "" && r.mayMove(r.Moves()))
	return nil
}

// send sends the request as the client sent it.
func (r *regenerating) send(ctx context.Context, engine transport.Engine, header http.Header) (*http.Response, error) {
	if r.x.regenerates() {
		r.x.nameCandidates(header)
	}
	return r.sendTo(ctx, engine, r.x.request.URL.RequestURI(), header, r.Leg())
}

func (r *regenerating) end() {
	r.endLeg()
	r.Regeneration.Close()
	if r.strips != nil {
		r.strips.Close()
	}
}

var (
	_ continued = (*ongoing)(nil)
	_ continued = (*regenerating)(nil)
	_ continued = (*undecided)(nil)
)
