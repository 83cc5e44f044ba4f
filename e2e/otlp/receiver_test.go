package otlp_test

import (
	"slices"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/tandem-serving/tandem/e2e/otlp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestReceiver sends two traces as a program does, and asks for one.
func TestReceiver(t *testing.T) {
	r := otlp.Start(t, "127.0.0.1:0")
	conn, err := grpc.NewClient(r.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text := func(s string) *common.AnyValue {
		return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: s}}
	}
	spans := []*trace.Span{
		{Name: "parent", TraceId: []byte{1}, SpanId: []byte{0xa}, Attributes: []*common.KeyValue{{Key: "k", Value: text("v")}}},
		{Name: "child", TraceId: []byte{1}, SpanId: []byte{0xb}, ParentSpanId: []byte{0xa}},
		{Name: "other", TraceId: []byte{2}, SpanId: []byte{0xc}},
	}
	_, err = collector.NewTraceServiceClient(conn).Export(t.Context(), &collector.ExportTraceServiceRequest{ResourceSpans: []*trace.ResourceSpans{{
		Resource:   &resource.Resource{Attributes: []*common.KeyValue{{Key: "service.name", Value: text("tandem")}}},
		ScopeSpans: []*trace.ScopeSpans{{Spans: spans}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(r.Spans()); n != 3 {
		t.Errorf("%d spans, want 3", n)
	}
	got := r.Of("01")
	if len(got) != 2 || got[0].Name != "parent" || got[1].Name != "child" {
		t.Fatalf("spans of the trace: %v", got)
	}
	parent, child := got[0], got[1]
	if parent.Service != "tandem" || parent.Attributes()["k"].GetStringValue() != "v" {
		t.Errorf("service %q, attributes %v", parent.Service, parent.Attributes())
	}
	if !child.Under(parent.ID()) || parent.Under(child.ID()) || parent.Under(parent.Parent()) || parent.Parent() != "" {
		t.Errorf("%s is under %q, %s under %q", child.ID(), child.Parent(), parent.ID(), parent.Parent())
	}
	if !slices.ContainsFunc(r.Of("02"), func(s otlp.Span) bool { return s.Name == "other" }) {
		t.Error("the other trace has no span")
	}
}
