package extproc

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

const spanPick = "epp.pick"

// traceHeaders are the trace context that the client sent.
type traceHeaders struct{ parent, state string }

// tracing makes the picker's spans. If it is off, it reads, makes and sends nothing.
type tracing struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	on         bool
}

// newTracing returns tracing that is off without a tracer, and with a propagator that has no fields.
func newTracing(t trace.Tracer, p propagation.TextMapPropagator) tracing {
	return tracing{tracer: t, propagator: p, on: t != nil && p != nil && len(p.Fields()) > 0}
}

// span is the span of one pick. The zero value records nothing.
type span struct {
	trace.Span
	context context.Context
	adds    bool // neither client nor gateway sent a trace context: the request must carry ours
}

// pick begins the span of a request whose first frame arrived at start. Its parent is the gateway's span, from the stream's
// metadata, or else the client's.
func (t tracing) pick(stream context.Context, h *head, start time.Time) span {
	if !t.on {
		return span{}
	}
	ctx := t.propagator.Extract(stream, metadataCarrier{stream})
	parent := trace.SpanContextFromContext(ctx).IsValid()
	if !parent {
		ctx = t.propagator.Extract(stream, propagation.MapCarrier{"traceparent": h.trace.parent, "tracestate": h.trace.state})
	}
	s := span{adds: !parent && h.trace.parent == ""}
	s.context, s.Span = t.tracer.Start(ctx, spanPick, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start))
	if s.IsRecording() {
		// Clients choose the id, and OTLP drops the whole batch of a span with a string that is not UTF-8.
		s.SetAttributes(attribute.String("tandem.request_id", strings.ToValidUTF8(h.RequestID, "\uFFFD")),
			attribute.String("tandem.api", h.api.String()))
	}
	return s
}

// inject returns the headers that propagate the span with the request: none if the gateway or the client sent a trace context.
func (t tracing) inject(s span) propagation.MapCarrier {
	if !t.on || !s.adds {
		return nil
	}
	headers := propagation.MapCarrier{}
	t.propagator.Inject(s.context, headers)
	return headers
}

// finish ends the span.
func (s span) finish() {
	if s.Span != nil {
		s.End()
	}
}

// picked records the decision.
func (s span) picked(r *epp.Request, d *epp.Decision, took time.Duration) {
	if s.Span == nil || !s.IsRecording() {
		return
	}
	s.SetAttributes(append(requestAttributes(r),
		attribute.String("tandem.pd.plan", d.Verdict.String()),
		attribute.String("tandem.pd.reason", string(d.Reason)),
		attribute.Int("tandem.tokens.cached", d.Cached),
		attribute.Float64("tandem.phase.epp_ms", float64(took)/float64(time.Millisecond)))...)
	for i := range d.Picks {
		s.SetAttributes(attribute.String("tandem.endpoint."+string(d.Picks[i].Row.Stage), d.Picks[i].Endpoints[0].Address))
	}
}

// refused records the refusal. r is nil if the request could not be read.
func (s span) refused(r *epp.Request, why *pd.Refusal) {
	if s.Span == nil || !s.IsRecording() {
		return
	}
	s.SetAttributes(append(requestAttributes(r),
		attribute.String("tandem.pd.decision", pd.Refused.String()),
		attribute.String("tandem.pd.reason", string(why.Result().Reason)),
		attribute.Int("http.response.status_code", why.Status()))...)
	s.SetStatus(codes.Error, why.Error())
}

func requestAttributes(r *epp.Request) []attribute.KeyValue {
	if r == nil {
		return nil
	}
	all := []attribute.KeyValue{
		attribute.String("tandem.pd.mode", r.Mode.String()),
		attribute.Int("tandem.tokens.prompt", r.Prompt.Tokens),
	}
	if r.Objective != "" {
		all = append(all, attribute.String("tandem.objective", strings.ToValidUTF8(r.Objective, "\uFFFD")),
			attribute.Int("tandem.priority", r.Priority))
	}
	if r.Rewrite != "" {
		all = append(all, attribute.String("tandem.model.answers", r.Model), attribute.String("tandem.model.rewrite", r.Rewrite))
	}
	if r.Asked != "" {
		all = append(all, attribute.String("tandem.model.asked", r.Asked))
	}
	return all
}

// metadataCarrier reads trace context out of the metadata of a stream.
type metadataCarrier struct{ stream context.Context }

// Get implements propagation.TextMapCarrier.
func (c metadataCarrier) Get(key string) string {
	if values := metadata.ValueFromIncomingContext(c.stream, key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier. It does nothing: incoming metadata is not changed.
func (metadataCarrier) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (metadataCarrier) Keys() []string { return nil }
