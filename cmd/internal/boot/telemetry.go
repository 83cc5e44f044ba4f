package boot

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// flushTimeout is how long the end of a program waits for the collector to take the last spans.
const flushTimeout = 3 * time.Second

// Telemetry creates and exports spans. With no collector configured it costs nothing on the request path.
type Telemetry struct {
	// Propagator reads and writes W3C traceparent and baggage. When traces are disabled it does nothing, and a request's
	// headers pass unchanged.
	Propagator propagation.TextMapPropagator

	provider trace.TracerProvider
	shutdown func(context.Context) error
	// flushTimeout bounds shutdown. It is a field so that a test can shorten it.
	flushTimeout time.Duration
}

// Tracer returns the tracer of a package, named by its import path.
func (t *Telemetry) Tracer(scope string) trace.Tracer { return t.provider.Tracer(scope) }

// Close sends the spans that are still buffered, for at most three seconds. It takes no context, because it is called when
// the program's context is already cancelled.
func (t *Telemetry) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), t.flushTimeout)
	defer cancel()
	if err := t.shutdown(ctx); err != nil {
		return fmt.Errorf("flushing traces: %w", err)
	}
	return nil
}

// StartTelemetry exports traces over OTLP/gRPC if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set,
// unless OTEL_SDK_DISABLED=true or OTEL_TRACES_EXPORTER=none. The SDK reads all other OTEL_* variables by its specification:
// sampler (by default the parent's decision, else all), headers, certificates, timeouts, resource attributes. service is the
// service name unless OTEL_SERVICE_NAME sets one. An endpoint without a scheme is plaintext, which collectors inside a
// cluster usually are.
//
// It does not wait for the collector: without one, spans are lost and requests are not affected. The error is an [Exit] with
// CodeConfig.
func StartTelemetry(ctx context.Context, std IO, service string, log *slog.Logger) (*Telemetry, error) {
	endpoint, err := tracesEndpoint(std)
	if err != nil {
		return nil, err
	}
	if endpoint == "" {
		return disabledTelemetry(), nil
	}
	// The SDK reports failed exports only through this global hook. Without it they would reach stderr in a format of their
	// own.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("telemetry", "error", err)
	}))
	var opts []otlptracegrpc.Option
	if !strings.Contains(endpoint, "://") {
		opts = append(opts, otlptracegrpc.WithEndpointURL("http://"+endpoint))
	}
	exporter, err := otlptracegrpc.New(ctx, opts...)
	if err != nil {
		return nil, Configf("starting traces to %s: %w", endpoint, err)
	}
	res, err := describe(ctx, service)
	if err != nil {
		return nil, Configf("describing the service for traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	return &Telemetry{
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
		provider:   provider,
		shutdown: func(ctx context.Context) error {
			err := provider.Shutdown(ctx)
			if err != nil {
				// The provider stops waiting, but its exporter would keep trying; this stops it.
				_ = exporter.Shutdown(ctx)
			}
			return err
		},
		flushTimeout: flushTimeout,
	}, nil
}

// tracesEndpoint returns the collector's address, or "" if traces are disabled.
func tracesEndpoint(std IO) (string, error) {
	endpoint := firstOf(std.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), std.env("OTEL_EXPORTER_OTLP_ENDPOINT"))
	exporter := std.env("OTEL_TRACES_EXPORTER")
	if endpoint == "" || exporter == "none" || strings.EqualFold(std.env("OTEL_SDK_DISABLED"), "true") {
		return "", nil
	}
	if exporter != "" && exporter != "otlp" {
		return "", Configf("starting traces: OTEL_TRACES_EXPORTER=%s: only otlp and none are built in", exporter)
	}
	protocol := firstOf(std.env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), std.env("OTEL_EXPORTER_OTLP_PROTOCOL"))
	if protocol != "" && protocol != "grpc" {
		return "", Configf("starting traces: OTEL_EXPORTER_OTLP_PROTOCOL=%s: only grpc is built in (the collector's port is usually 4317)", protocol)
	}
	return endpoint, nil
}

// firstOf returns the first text that is not empty.
func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// describe returns the resource of every span. Attributes from the environment come last, so they win.
func describe(ctx context.Context, service string) (*resource.Resource, error) {
	return resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(
			attribute.String("service.name", service),
			attribute.String("service.version", ReadVersion().Number),
		),
		resource.WithFromEnv(),
	)
}

// disabledTelemetry returns tracers that neither record nor allocate.
func disabledTelemetry() *Telemetry {
	return &Telemetry{
		Propagator: propagation.NewCompositeTextMapPropagator(),
		provider:   disabledProvider{},
		shutdown:   func(context.Context) error { return nil },
	}
}

type disabledProvider struct{ noop.TracerProvider }

func (disabledProvider) Tracer(string, ...trace.TracerOption) trace.Tracer { return disabledTracer{} }

// disabledTracer differs from the SDK's no-op tracer in one point: it does not put a span into the context, because that
// allocates.
type disabledTracer struct{ noop.Tracer }

// Start returns ctx unchanged and a no-op span.
func (disabledTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	return ctx, noop.Span{}
}
