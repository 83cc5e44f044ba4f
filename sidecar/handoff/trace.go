package handoff

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// Names of spans and attributes are the same for every dialect.
const (
	spanRequest = "sidecar.request"
	spanEncode  = "encode"
	spanPrefill = "prefill"
	spanDecode  = "decode"
	spanRelease = "release"
	spanLend    = "lend"
)

// tracing makes spans. A disabled tracer makes spans that do not record; nothing is computed for those.
type tracing struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

// The kinds of spans, made once.
var serverSpan, clientSpan = trace.WithSpanKind(trace.SpanKindServer), trace.WithSpanKind(trace.SpanKindClient)

// request begins the server span under the caller's, at the time the clock was started.
func (t tracing) request(r *http.Request, api pd.API, start time.Time) (context.Context, trace.Span) {
	ctx := t.propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := t.tracer.Start(ctx, spanRequest, serverSpan, trace.WithTimestamp(start))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("tandem.api", api.String()))
	}
	return ctx, span
}

// exemplar returns the label that links observations to the trace of a span, nil if no collector gets that trace.
func exemplar(span trace.Span) prometheus.Labels {
	c := span.SpanContext()
	if !c.IsSampled() || !c.HasTraceID() {
		return nil
	}
	return prometheus.Labels{"trace_id": c.TraceID().String()}
}

// leg begins the span of one leg, a child of the server span, and writes it into the leg's headers.
func (t tracing) leg(ctx context.Context, name string, header http.Header, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	ctx, span := t.tracer.Start(ctx, name, clientSpan)
	if span.IsRecording() {
		span.SetAttributes(attrs...)
	}
	t.propagator.Inject(ctx, propagation.HeaderCarrier(header))
	return ctx, span
}

// endLegSpan closes a leg's span with its status, 0 if none came. A leg ends with its request at the latest: the request's
// span ends with the phases that the client was sent, and the leg lasted until they were written.
func (x *Exchange) endLegSpan(span trace.Span, status int, err error) {
	describeLeg(span, status, err)
	if at, stopped := x.Clock.Stopped(); stopped && span.IsRecording() {
		span.End(trace.WithTimestamp(at))
		return
	}
	span.End()
}

// describeLeg sets the status and the error of a leg's span.
func describeLeg(span trace.Span, status int, err error) {
	if !span.IsRecording() {
		return
	}
	if status != 0 {
		span.SetAttributes(attribute.Int("http.response.status_code", status))
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
}

// endRelease closes the span of a release with the way that it went in the end.
func endRelease(span trace.Span, way string, err error) {
	span.SetAttributes(attribute.String("tandem.release.way", way))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// endSpan closes the server span: its length is the sum of the phases, less their overlap.
func (x *Exchange) endSpan(phases *pd.Phases) {
	if x.span.IsRecording() {
		attrs := []attribute.KeyValue{
			attribute.String("tandem.pd.mode", x.Route.Mode.String()),
			attribute.String("tandem.pd.plan", x.Route.Planned()),
			attribute.String("tandem.pd.decision", x.Decision.Verdict.String()),
			attribute.String("tandem.pd.reason", string(x.Decision.Reason)),
			attribute.Int("http.response.status_code", x.Status),
			attribute.String("tandem.request_id", x.ID),
		}
		for ph := range pd.Phase(pd.PhaseCount) {
			if took, ok := phases.Get(ph); ok {
				attrs = append(attrs, attribute.Float64("tandem.phase."+ph.String()+"_ms", float64(took)/float64(time.Millisecond)))
			}
		}
		if took, ok := phases.Get(pd.PhaseOverlap); ok {
			attrs = append(attrs, attribute.Float64("tandem.phase."+pd.PhaseOverlap.String()+"_ms", float64(took)/float64(time.Millisecond)))
		}
		x.span.SetAttributes(append(attrs, x.facts()...)...)
		if x.Failure != nil {
			x.span.SetStatus(codes.Error, x.Failure.Error())
		}
	}
	at, _ := x.Clock.Stopped() // End has stopped it, to compute the phases
	x.span.End(trace.WithTimestamp(at))
}

// facts returns the attributes that not every request has.
func (x *Exchange) facts() []attribute.KeyValue {
	var attrs []attribute.KeyValue
	if x.target != "" {
		attrs = append(attrs, attribute.String("tandem.endpoint.prefill", x.target))
	}
	attrs = append(attrs, attribute.String("tandem.endpoint.decode", x.pod()))
	if x.handoff.answered {
		if !x.handoff.finished.IsZero() {
			attrs = append(attrs, attribute.Float64("tandem.handoff.age_ms", float64(x.handoff.age)/float64(time.Millisecond)))
		}
		if sized, ok := x.handoff.of.(dialect.Sized); ok {
			attrs = append(attrs, attribute.Int("tandem.handoff.blocks", sized.Blocks()))
		}
	}
	if x.handoff.of != nil {
		attrs = append(attrs, attribute.String("tandem.release.way", cmp.Or(x.releaseWay, wayNone)))
	}
	for _, c := range []struct {
		name   string
		tokens int64
	}{{"prompt", x.Usage.Prompt}, {"cached", x.Usage.Cached}, {"completion", x.Usage.Completion}} {
		if c.tokens >= 0 {
			attrs = append(attrs, attribute.Int64("tandem.tokens."+c.name, c.tokens))
		}
	}
	return attrs
}
