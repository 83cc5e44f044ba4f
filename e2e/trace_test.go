package e2e

import (
	"encoding/hex"
	"math"
	"testing"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/tandem-serving/tandem/e2e/otlp"
	"github.com/tandem-serving/tandem/pd"
)

// startReceiver runs a collector that the programs of a test send their traces to.
func startReceiver(t *testing.T) *otlp.Receiver {
	t.Helper()
	return otlp.Start(t, "127.0.0.1:0")
}

// traced sends one call whose trace the client began, ends the sidecar, and gives the spans by name.
func traced(t *testing.T, p *pair, c call) map[string]*trace.Span {
	t.Helper()
	r := startReceiver(t)
	s := startSidecarIn(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + r.Addr()}, p.decode.addr)
	c.header["traceparent"] = "00-" + traceID + "-00f067aa0ba902b7-01"
	if got := mustSend(t, c, s.addr("http"), p.model); got.Status != 200 {
		t.Fatalf("status %d %s", got.Status, got.Body)
	}
	s.stop(t) // what is left of the trace is sent at the end
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
	p := &pair{prefill: startSim(t, "prefill"), decode: startSim(t, "decode"), tokenIDs: [2]int{300, 1000}}
	var err error
	if p.model, err = decodeModel(p.decode.addr); err != nil {
		t.Fatal(err)
	}
	both(t, func(t *testing.T, stream bool) {
		c := call{api: pd.APICompletions, prompt: p.fresh(100), tokens: 8, stream: stream}.remote(p.prefill.addr)
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
		attrs := attributes(request)
		if n := mustAddUp(t, request); n != pd.PhaseCount {
			t.Errorf("%d phases", n)
		}
		for name, want := range map[string]string{"tandem.pd.decision": "remote", "tandem.pd.reason": "external", "tandem.pd.mode": "auto",
			"tandem.endpoint.prefill": p.prefill.addr} {
			if got := attrs[name].GetStringValue(); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		for name, want := range map[string]int64{"tandem.tokens.prompt": 100, "tandem.tokens.completion": 8, "tandem.tokens.cached": 0, "tandem.handoff.blocks": 4} {
			if v, ok := attrs[name]; !ok || v.GetIntValue() != want {
				t.Errorf("%s is %v, want %d", name, v, want)
			}
		}
		if attributes(prefill)["tandem.attempt"].GetIntValue() != 1 {
			t.Error("the prefill span has no attempt")
		}
		if decode.StartTimeUnixNano < prefill.EndTimeUnixNano || decode.EndTimeUnixNano > request.EndTimeUnixNano {
			t.Error("the legs do not follow each other inside the server span")
		}
	})
}

// mustAddUp fails unless the phases of a server span sum to its length, and says how many there are.
func mustAddUp(t *testing.T, s *trace.Span) (phases int) {
	t.Helper()
	attrs, sum := attributes(s), 0.0
	for ph := range pd.Phase(pd.PhaseCount) {
		if v, ok := attrs["tandem.phase."+ph.String()+"_ms"]; ok {
			phases++
			sum += v.GetDoubleValue()
		}
	}
	if length := milliseconds(s); math.Abs(length-sum) > 0.001 {
		t.Errorf("phases of %s sum to %v ms, the span is %v ms", s.Name, sum, length)
	}
	return phases
}

// milliseconds is the length of a span.
func milliseconds(s *trace.Span) float64 {
	return float64(s.EndTimeUnixNano-s.StartTimeUnixNano) / float64(time.Millisecond)
}

func attributes(s *trace.Span) map[string]*common.AnyValue { return otlp.Span{Span: s}.Attributes() }
