package demo

import (
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// spanOf returns a span of 5 ms with attributes, given as names and values in turn.
func spanOf(name string, attributes ...string) *trace.Span {
	s := &trace.Span{Name: name, StartTimeUnixNano: 1_000_000_000, EndTimeUnixNano: 1_005_000_000}
	for i := 0; i < len(attributes); i += 2 {
		s.Attributes = append(s.Attributes, &common.KeyValue{Key: attributes[i],
			Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: attributes[i+1]}}})
	}
	return s
}

func TestSpansTellPodsAndTime(t *testing.T) {
	c, err := collectSpans()
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	conn, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const request, decode, prefill = "tandem.request_id", "tandem.endpoint.decode", "tandem.endpoint.prefill"
	spans := []*trace.Span{
		spanOf("sidecar.request", request, "remote", decode, "a:1", prefill, "b:2"),
		spanOf("sidecar.request", request, "local", decode, "a:1"),
		spanOf("sidecar.request", request, "elsewhere", decode, "c:3"),
		spanOf("sidecar.request", decode, "a:1"),
		spanOf("epp.pick", request, "local", decode, "c:3"), // what was planned
	}
	_, err = collector.NewTraceServiceClient(conn).Export(t.Context(), &collector.ExportTraceServiceRequest{
		ResourceSpans: []*trace.ResourceSpans{{ScopeSpans: []*trace.ScopeSpans{{Spans: spans}}}}})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{"a:1": "decode-0", "b:2": "prefill-0"}
	for _, test := range []struct {
		request string
		want    traced
	}{
		{"remote", traced{"decode-0", "prefill-0", 5 * time.Millisecond}},
		{"local", traced{"decode-0", "", 5 * time.Millisecond}},
		{"elsewhere", traced{took: 5 * time.Millisecond}},
		{"never sent", traced{}},
		{"", traced{}},
	} {
		if got := c.of(test.request, names); got != test.want {
			t.Errorf("%q: %+v, want %+v", test.request, got, test.want)
		}
	}
}
