package otlp

import (
	"context"
	"encoding/hex"
	"net"
	"slices"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Receiver is a collector that keeps the spans that it gets. Its methods are safe for concurrent use.
type Receiver struct {
	collector.UnimplementedTraceServiceServer
	addr string

	mu    sync.Mutex // guards spans
	spans []Span
}

// Span is a span with the name of its service.
type Span struct {
	*trace.Span
	Service string
}

// Start runs a collector at address (host:port; port 0 takes any) until the test ends.
func Start(tb testing.TB, address string) *Receiver {
	tb.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		tb.Fatalf("listening for traces: %v", err)
	}
	r := &Receiver{addr: l.Addr().String()}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	tb.Cleanup(func() { server.Stop(); <-served })
	return r
}

// Addr returns the host:port at which programs reach it, without TLS.
func (r *Receiver) Addr() string { return r.addr }

// Export implements the collector's service.
func (r *Receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range req.ResourceSpans {
		service := find(resource.GetResource().GetAttributes(), "service.name").GetStringValue()
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				r.spans = append(r.spans, Span{span, service})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// Spans returns all spans so far.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// Of returns the spans of a trace, whose id is in hexadecimal digits.
func (r *Receiver) Of(traceID string) []Span {
	return slices.DeleteFunc(r.Spans(), func(s Span) bool { return hex.EncodeToString(s.TraceId) != traceID })
}

// Attributes returns the attributes of the span by name.
func (s Span) Attributes() map[string]*common.AnyValue {
	m := map[string]*common.AnyValue{}
	for _, kv := range s.GetAttributes() {
		m[kv.Key] = kv.Value
	}
	return m
}

// ID returns the span's id, in hexadecimal digits.
func (s Span) ID() string { return hex.EncodeToString(s.GetSpanId()) }

// Parent returns the id of the parent span, in hexadecimal digits; empty: it has none.
func (s Span) Parent() string { return hex.EncodeToString(s.GetParentSpanId()) }

// Under reports whether the span is a child of the span with an id.
func (s Span) Under(id string) bool { return id != "" && s.Parent() == id }

func find(attrs []*common.KeyValue, key string) *common.AnyValue {
	for _, kv := range attrs {
		if kv.Key == key {
			return kv.Value
		}
	}
	return nil
}
