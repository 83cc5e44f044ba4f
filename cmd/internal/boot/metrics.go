package boot

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a metrics registry with the metrics that every program has: the Go runtime, the process, and
// tandem_build_info.
func NewRegistry() *prometheus.Registry {
	v := ReadVersion()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "tandem_build_info",
		Help:        "The running build; the value is always 1.",
		ConstLabels: prometheus.Labels{"version": v.Number, "revision": v.Revision, "go_version": v.Go},
	})
	info.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(info, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
