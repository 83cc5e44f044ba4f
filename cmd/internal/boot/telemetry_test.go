package boot

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// receiver is a real OTLP collector that stores what it receives.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (r *receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.got <- req
	return &collector.ExportTraceServiceResponse{}, nil
}

// startReceiver runs a collector until the test ends.
func startReceiver(t *testing.T) (*receiver, string) {
	t.Helper()
	l, err := Listen(t.Context(), "port", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{got: make(chan *collector.ExportTraceServiceRequest, 16)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
	return r, l.Addr().String()
}

// setEnv sets real variables, since the SDK reads them itself, and returns an IO with the same variables.
func setEnv(t *testing.T, env map[string]string) IO {
	t.Helper()
	for k, v := range env {
		t.Setenv(k, v)
	}
	return IO{Name: "test", Env: func(k string) (string, bool) { v, ok := env[k]; return v, ok }}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func attributes(res *resourcepb.Resource) map[string]string {
	m := map[string]string{}
	for _, kv := range res.GetAttributes() {
		m[kv.GetKey()] = kv.GetValue().GetStringValue()
	}
	return m
}

func TestSpansReachTheCollector(t *testing.T) {
	tests := []struct {
		name    string
		env     func(addr string) map[string]string
		service string
	}{
		{"endpoint with scheme", func(addr string) map[string]string {
			return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + addr}
		}, "tandem-test"},
		{"endpoint without scheme", func(addr string) map[string]string {
			return map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": strings.Replace(addr, "127.0.0.1", "localhost", 1)}
		}, "tandem-test"},
		{"service named by the environment", func(addr string) map[string]string {
			return map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + addr, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
				"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SERVICE_NAME": "mine",
			}
		}, "mine"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, addr := startReceiver(t)
			tel, err := StartTelemetry(t.Context(), setEnv(t, tt.env(addr)), "tandem-test", quiet())
			if err != nil {
				t.Fatal(err)
			}
			_, span := tel.Tracer("scope").Start(t.Context(), "sidecar.request")
			span.End()
			if err := tel.Close(); err != nil {
				t.Fatal(err)
			}
			resource, sent := onlySpan(t, r)
			if sent.GetName() != "sidecar.request" {
				t.Errorf("span is called %q", sent.GetName())
			}
			got := attributes(resource)
			if got["service.name"] != tt.service || got["service.version"] != ReadVersion().Number {
				t.Errorf("resource = %v; want service.name %s and the version", got, tt.service)
			}
		})
	}
}

// onlySpan returns the one span that must have arrived by now.
func onlySpan(t *testing.T, r *receiver) (*resourcepb.Resource, *tracepb.Span) {
	t.Helper()
	if n := len(r.got); n != 1 {
		t.Fatalf("collector got %d exports, want 1", n)
	}
	resource := (<-r.got).GetResourceSpans()[0]
	return resource.GetResource(), resource.GetScopeSpans()[0].GetSpans()[0]
}

func TestSamplerFollowsTheParent(t *testing.T) {
	r, addr := startReceiver(t)
	std := setEnv(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + addr,
		"OTEL_TRACES_SAMPLER":         "parentbased_always_off",
	})
	tel, err := StartTelemetry(t.Context(), std, "tandem-test", quiet())
	if err != nil {
		t.Fatal(err)
	}
	for _, flags := range []string{"00", "01"} { // the parent sampled only the second
		header := http.Header{
			"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-" + flags},
			"Baggage":     {"tenant=a"},
		}
		ctx := tel.Propagator.Extract(t.Context(), propagation.HeaderCarrier(header))
		ctx, span := tel.Tracer("scope").Start(ctx, "parent-"+flags)
		out := http.Header{}
		tel.Propagator.Inject(ctx, propagation.HeaderCarrier(out))
		if !strings.HasPrefix(out.Get("Traceparent"), "00-4bf92f3577b34da6a3ce929d0e0e4736-") || out.Get("Baggage") != "tenant=a" {
			t.Errorf("flags %s: propagated %v", flags, out)
		}
		span.End()
	}
	_, root := tel.Tracer("scope").Start(t.Context(), "root")
	root.End()
	if err := tel.Close(); err != nil {
		t.Fatal(err)
	}
	_, span := onlySpan(t, r)
	if span.GetName() != "parent-01" {
		t.Errorf("exported %q, want the one with a sampled parent", span.GetName())
	}
}

func TestTelemetryIsDisabled(t *testing.T) {
	endpoint := "http://127.0.0.1:1"
	tests := []struct {
		name string
		env  map[string]string
	}{
		{"no endpoint", nil},
		{"exporter none", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_TRACES_EXPORTER": "none"}},
		{"SDK disabled", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint, "OTEL_SDK_DISABLED": "TRUE"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tel, err := StartTelemetry(t.Context(), setEnv(t, tt.env), "tandem-test", quiet())
			if err != nil {
				t.Fatal(err)
			}
			ctx, span := tel.Tracer("scope").Start(t.Context(), "x")
			if span.IsRecording() || span.SpanContext().IsValid() || ctx != t.Context() {
				t.Errorf("span %v is not the no-op span", span)
			}
			out := http.Header{}
			tel.Propagator.Inject(ctx, propagation.HeaderCarrier(out))
			if len(out) != 0 {
				t.Errorf("propagated %v", out)
			}
			if err := tel.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTelemetryRefusesExportersThatAreNotBuiltIn(t *testing.T) {
	for variable, value := range map[string]string{
		"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
	} {
		t.Run(variable, func(t *testing.T) {
			std := setEnv(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", variable: value})
			_, err := StartTelemetry(t.Context(), std, "tandem-test", quiet())
			exit, ok := errors.AsType[Exit](err)
			if !ok || exit.Code != CodeConfig || !strings.Contains(err.Error(), variable+"="+value) {
				t.Errorf("err = %v; want exit 3 naming %s=%s", err, variable, value)
			}
		})
	}
}

// A collector that accepts connections but never answers must not delay the end of the program beyond the flush timeout.
func TestCloseStopsWaitingForASilentCollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	std := setEnv(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + l.Addr().String()})
	tel, err := StartTelemetry(t.Context(), std, "tandem-test", quiet())
	if err != nil {
		t.Fatal(err)
	}
	tel.flushTimeout = 50 * time.Millisecond
	_, span := tel.Tracer("scope").Start(t.Context(), "x")
	span.End()
	if err := tel.Close(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close = %v, want the deadline", err)
	}
}

// spanOptions are made once, as a package on the request path should do.
var spanOptions = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}

// tracedRequest does the tracing that a component does for one request.
func tracedRequest(ctx context.Context, tel *Telemetry, tracer trace.Tracer, header http.Header) {
	ctx = tel.Propagator.Extract(ctx, propagation.HeaderCarrier(header))
	ctx, span := tracer.Start(ctx, "sidecar.request", spanOptions...)
	defer span.End()
	if span.IsRecording() {
		span.SetAttributes(attribute.String("tandem.pd.decision", "remote"))
	}
	tel.Propagator.Inject(ctx, propagation.HeaderCarrier(header))
}

func TestDisabledTelemetryDoesNotAllocate(t *testing.T) {
	tel := disabledTelemetry()
	tracer, header := tel.Tracer("scope"), http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() { tracedRequest(ctx, tel, tracer, header) }); n != 0 {
		t.Errorf("a request allocates %v times, want 0", n)
	}
}

func BenchmarkDisabledTelemetry(b *testing.B) {
	tel := disabledTelemetry()
	tracer, header := tel.Tracer("scope"), http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		tracedRequest(ctx, tel, tracer, header)
	}
}
