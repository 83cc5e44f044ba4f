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
}

// mayRegenerate prepares a stream that cannot go on from its token ids, as why says, if another engine may generate it again. It returns why the
// stream cannot go on at all.
func (x *Exchange) mayRegenerate(b *body.Body, of request.Payload, why continuation.Refusal) continuation.Refusal {
	again := continuation.Regenerable(x.API, b, !x.regenerates()) // SGLang obeys seeds only with --enable-deterministic-inference
	switch {
	case again == "":
		x.setOngoing(&regenerating{Regeneration: continuation.NewRegeneration(of, x.legs.Continue.Memory), mover: x.mover()})
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
}

var (
	_ continued = (*ongoing)(nil)
	_ continued = (*regenerating)(nil)
)
