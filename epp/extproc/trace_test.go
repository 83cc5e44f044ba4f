package extproc

import (
	"slices"
	"testing"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

const (
	gatewaySpan = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-1111111111111111-01"
	clientSpan  = "00-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb-2222222222222222-01"
	unsampled   = "00-cccccccccccccccccccccccccccccccc-3333333333333333-00"
)

func traced(recorder *tracetest.SpanRecorder) option {
	return func(_ *Config, d *Deps) {
		d.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
		d.Propagator = propagation.TraceContext{}
	}
}

func TestSpanParents(t *testing.T) {
	for _, c := range []struct {
		name                   string
		stream, request        string // traceparent in the stream's metadata, and in the request
		traceID, parent        string // "" = a trace of its own
		recorded, adds, remote bool
	}{
		{"no trace context", "", "", "", "", true, true, false},
		{"the gateway does", gatewaySpan, "", gatewaySpan[3:35], gatewaySpan[36:52], true, false, true},
		{"the client does", "", clientSpan, clientSpan[3:35], clientSpan[36:52], true, false, true},
		{"both do", gatewaySpan, clientSpan, gatewaySpan[3:35], gatewaySpan[36:52], true, false, true},
		{"the client chose not to", "", unsampled, unsampled[3:35], "", false, false, true},
		{"the client sends garbage, which is not ours to rewrite", "", "garbage", "", "", true, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			recorder := tracetest.NewSpanRecorder()
			r := startRig(t, remotePool(), traced(recorder))
			var md, headers []string
			if c.stream != "" {
				md = []string{"traceparent", c.stream}
			}
			if c.request != "" {
				headers = []string{"traceparent", c.request}
			}
			s := r.open(t, client.MarkPicker, md...)
			set := s.decide(headers...)
			r.gone(t)
			spans := recorder.Ended()
			if !c.recorded {
				if len(spans) != 0 || set["traceparent"] != "" {
					t.Errorf("%d spans, traceparent %q", len(spans), set["traceparent"])
				}
				return
			}
			if len(spans) != 1 || spans[0].Name() != spanPick || spans[0].SpanKind() != trace.SpanKindServer {
				t.Fatalf("spans %v", spans)
			}
			own, parent := spans[0].SpanContext(), spans[0].Parent()
			if c.remote && (own.TraceID().String() != c.traceID || parent.SpanID().String() != c.parent) || !c.remote && parent.IsValid() {
				t.Errorf("trace %s under %s, want %s under %s", own.TraceID(), parent.SpanID(), c.traceID, c.parent)
			}
			want := ""
			if c.adds {
				want = "00-" + own.TraceID().String() + "-" + own.SpanID().String() + "-01"
			}
			if set["traceparent"] != want {
				t.Errorf("traceparent %q, want %q", set["traceparent"], want)
			}
		})
	}
}

func TestSpanAttributes(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	r := startRig(t, remotePool(), traced(recorder))
	r.ask(t, chat(more, pd.HeaderMode, "force"))
	r.pool.choose = func(*epp.Request) (*epp.Decision, error) { return nil, pd.Refuse(pd.NoEndpoint, "None.") }
	r.ask(t, chat(more))
	r.ask(t, chat(ends))                                  // cannot be read
	r.ask(t, chat(more, pd.HeaderMode, "perhaps"))        // is refused while it comes
	r.ask(t, chat(more, "content-length", "99999999999")) // is refused before it comes
	spans := recorder.Ended()
	if len(spans) != 5 {
		t.Fatalf("%d spans", len(spans))
	}
	for i, want := range [][]string{
		{"tandem.request_id=r-1", "tandem.api=chat", "tandem.pd.mode=force", "tandem.pd.plan=remote", "tandem.pd.reason=uncached",
			"tandem.endpoint.decode=" + a, "tandem.endpoint.prefill=" + b, "tandem.tokens.cached=0"},
		{"tandem.request_id=r-1", "tandem.pd.mode=auto", "tandem.pd.decision=refused", "tandem.pd.reason=no-endpoint",
			"http.response.status_code=503"},
		{"tandem.request_id=r-1", "tandem.api=chat", "tandem.pd.decision=refused", "tandem.pd.reason=bad-request",
			"http.response.status_code=400"},
		{"tandem.request_id=r-1", "tandem.pd.decision=refused", "tandem.pd.reason=bad-pd-header", "http.response.status_code=400"},
		{"tandem.request_id=r-1", "tandem.pd.decision=refused", "tandem.pd.reason=too-large", "http.response.status_code=413"},
	} {
		have := spans[i].Attributes()
		for _, w := range want {
			if !slices.ContainsFunc(have, func(kv attribute.KeyValue) bool { return string(kv.Key)+"="+kv.Value.String() == w }) {
				t.Errorf("span %d lacks %s: %v", i, w, have)
			}
		}
		if failed := spans[i].Status().Code == codes.Error; failed != (i > 0) {
			t.Errorf("status of span %d: %v", i, spans[i].Status())
		}
	}
	for _, key := range []attribute.Key{"tandem.phase.epp_ms", "tandem.tokens.prompt"} {
		if !slices.ContainsFunc(spans[0].Attributes(), func(kv attribute.KeyValue) bool { return kv.Key == key }) {
			t.Errorf("the span lacks %s", key)
		}
	}
}

// A span with a text that is no UTF-8 cannot be exported, nor any other span of its batch.
func TestSpanAttributesAreUTF8(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	r := startRig(t, remotePool(), traced(recorder))
	bad := "x\xff"
	s := r.open(t, client.MarkPicker)
	s.send(requestHeaders(more, ":method", "POST", ":path", "/v1/chat/completions", pd.HeaderRequestID, bad, "content-type", bad),
		requestBody(ends, prompt))
	if _, err := s.rest(); err != nil {
		t.Error(err)
	}
	r.ask(t, chat(more, pd.HeaderMode, bad))
	spans := recorder.Ended()
	if len(spans) == 0 {
		t.Fatal("no spans")
	}
	for _, span := range spans {
		for _, kv := range span.Attributes() {
			if !utf8.ValidString(kv.Value.String()) {
				t.Errorf("%s is %q", kv.Key, kv.Value.String())
			}
		}
		if why := span.Status().Description; !utf8.ValidString(why) {
			t.Errorf("status %q", why)
		}
	}
}

func TestTracingOffCostsNothing(t *testing.T) {
	for name, off := range map[string]tracing{
		"none":  newTracing(nil, nil),
		"no-op": newTracing(noop.NewTracerProvider().Tracer(""), propagation.NewCompositeTextMapPropagator()),
	} {
		st := &stream{}
		st.request.head.trace.parent = clientSpan
		if n := testing.AllocsPerRun(100, func() {
			span := off.pick(t.Context(), &st.request.head, st.began)
			span.picked(nil, nil, 0)
			if off.inject(span) != nil {
				t.Error("something is injected")
			}
			span.finish()
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
