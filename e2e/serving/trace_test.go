package serving

import (
	"encoding/hex"
	"testing"

	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// traced sends one call whose trace the client began, ends the sidecar, and gives the spans by name.
func traced(t *testing.T, p *harness.Pair, c harness.Call) map[string]*trace.Span {
	t.Helper()
	r := harness.StartReceiver(t)
	s := harness.StartSidecarIn(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + r.Addr()}, p.Decode.Addr)
	c.Header["traceparent"] = "00-" + traceID + "-00f067aa0ba902b7-01"
	if got := harness.MustSend(t, c, s.Addr("http"), p.Model); got.Status != 200 {
		t.Fatalf("status %d %s", got.Status, got.Body)
	}
	s.MustStop(t) // what is left of the trace is sent at the end
	byName := map[string]*trace.Span{}
	for _, span := range r.Spans() {
		if hex.EncodeToString(span.TraceId) != traceID {
			t.Errorf("span %s is in another trace", span.Name)
		}
		byName[span.Name] = span.Span
	}
	if n := len(r.Spans()); len(byName) != n {
		t.Fatalf("%d spans, %d names", n, len(byName))
	}
	return byName
}

const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"

func TestTraceOfARemoteRequest(t *testing.T) {
	p := &harness.Pair{Prefill: harness.StartSim(t, "prefill"), Decode: harness.StartSim(t, "decode"), TokenIDs: [2]int{300, 1000}}
	var err error
	if p.Model, err = harness.DecodeModel(p.Decode.Addr); err != nil {
		t.Fatal(err)
	}
	harness.BothForms(t, func(t *testing.T, stream bool) {
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 8, Stream: stream}.Remote(p.Prefill.Addr)
		spans := traced(t, p, c)
		request, prefill, decode := spans["sidecar.request"], spans["prefill"], spans["decode"]
		if len(spans) != 3 || request == nil || prefill == nil || decode == nil {
			t.Fatalf("spans %v", spans)
		}
		if hex.EncodeToString(request.ParentSpanId) != "00f067aa0ba902b7" {
			t.Error("the server span is not the client's child")
		}
		if string(prefill.ParentSpanId) != string(request.SpanId) || string(decode.ParentSpanId) != string(request.SpanId) {
			t.Error("prefill and decode are not siblings under the server span")
		}
		attrs := harness.Attributes(request)
		if n := harness.MustAddUp(t, request); n != pd.PhaseCount-1 { // all but encode
			t.Errorf("%d phases", n)
		}
		for name, want := range map[string]string{"tandem.pd.decision": "remote", "tandem.pd.reason": "external", "tandem.pd.mode": "auto",
			"tandem.endpoint.prefill": p.Prefill.Addr} {
			if got := attrs[name].GetStringValue(); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		for name, want := range map[string]int64{"tandem.tokens.prompt": 100, "tandem.tokens.completion": 8, "tandem.tokens.cached": 0, "tandem.handoff.blocks": 4} {
			if v, ok := attrs[name]; !ok || v.GetIntValue() != want {
				t.Errorf("%s is %v, want %d", name, v, want)
			}
		}
		if harness.Attributes(prefill)["tandem.attempt"].GetIntValue() != 1 {
			t.Error("the prefill span has no attempt")
		}
		if decode.StartTimeUnixNano < prefill.EndTimeUnixNano || decode.EndTimeUnixNano > request.EndTimeUnixNano {
			t.Error("the legs do not follow each other inside the server span")
		}
	})
}
