package demo

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// traced is what the sidecar's span of a request says about it.
type traced struct {
	decode, prefill string        // pods whose engines served it; "": unknown; prefill also if no prefill engine was asked
	took            time.Duration // in the sidecar; 0: unknown
}

// spanCollector receives the spans of the stack over OTLP/gRPC, and keeps what those of the sidecars say. Nothing else tells a
// client which pods served its request.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer
	address string // host:port
	server  *grpc.Server
	served  chan struct{} // closed when the server has ended

	mu       sync.Mutex
	requests map[string]traced // by request id; addresses of pods instead of names
}

// collectSpans starts a collector on a free port of loopback. The caller must stop it.
func collectSpans() (*spanCollector, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for spans: %w", err)
	}
	c := &spanCollector{address: l.Addr().String(), server: grpc.NewServer(), served: make(chan struct{}), requests: map[string]traced{}}
	collector.RegisterTraceServiceServer(c.server, c)
	go func() {
		defer close(c.served)
		_ = c.server.Serve(l) // until stop
	}()
	return c, nil
}

// stop ends the collector. Programs send their last spans when they end, so they must have ended before.
func (c *spanCollector) stop() {
	c.server.Stop()
	<-c.served
}

// Export implements the collector's service.
func (c *spanCollector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.add(span)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (c *spanCollector) add(span *trace.Span) {
	if span.GetName() != "sidecar.request" {
		return
	}
	var id string
	x := traced{took: time.Duration(span.GetEndTimeUnixNano() - span.GetStartTimeUnixNano())}
	for _, a := range span.GetAttributes() {
		switch value := a.GetValue().GetStringValue(); a.GetKey() {
		case "tandem.request_id":
			id = value
		case "tandem.endpoint.decode":
			x.decode = value
		case "tandem.endpoint.prefill":
			x.prefill = value
		}
	}
	if id != "" {
		c.requests[id] = x
	}
}

// of returns what the sidecar's span says about a request. names has the names of pods by their addresses.
func (c *spanCollector) of(requestID string, names map[string]string) traced {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.requests[requestID]
	x.decode, x.prefill = names[x.decode], names[x.prefill]
	return x
}
