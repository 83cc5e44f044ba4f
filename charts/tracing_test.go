package charts_test

import (
	"strings"
	"testing"
)

// TestTracingEndpoint: where spans go, for each form in which a collector may be named. tandem up takes HOST:PORT.
func TestTracingEndpoint(t *testing.T) {
	for name, test := range map[string]struct {
		endpoint, programs, envoy string
	}{
		"host and port":            {"collector:4317", "http://collector:4317", "address: collector, port_value: 4317"},
		"host":                     {"collector.traces", "http://collector.traces:4317", "address: collector.traces, port_value: 4317"},
		"another port":             {"10.0.0.1:14317", "http://10.0.0.1:14317", "address: 10.0.0.1, port_value: 14317"},
		"URL":                      {"http://collector:4317/", "http://collector:4317", "address: collector, port_value: 4317"},
		"TLS, which Envoy has not": {"https://collector", "https://collector:4317", ""},
		"none":                     {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := render(t, "--set=tracing.endpoint="+test.endpoint, "--set=tracing.engines=true")
			r := readRelease(t, all)
			for where, got := range map[string]string{
				"picker":         r.run["epp"]["epp"].env["OTEL_EXPORTER_OTLP_ENDPOINT"],
				"sidecar":        r.run["decode"]["sidecar"].env["OTEL_EXPORTER_OTLP_ENDPOINT"],
				"engine":         r.run["prefill"]["engine"].flags["otlp-traces-endpoint"],
				"engine's spans": r.run["decode"]["engine"].env["OTEL_EXPORTER_OTLP_ENDPOINT"],
			} {
				if got != test.programs {
					t.Errorf("%s: got %q, want %q", where, got, test.programs)
				}
			}
			bootstrap := strings.ReplaceAll(data(t, all.named(t, "ConfigMap", "-proxy"), "envoy.yaml"), `"`, "")
			if traces := strings.Contains(bootstrap, "envoy.tracers.opentelemetry"); traces != (test.envoy != "") || !strings.Contains(bootstrap, test.envoy) {
				t.Errorf("Envoy traces: %t, want %q", traces, test.envoy)
			}
		})
	}
}
