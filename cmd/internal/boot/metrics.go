package boot

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a metrics registry with the metrics that every program has: the Go runtime, the process,
// tandem_build_info, and tandem_log_dropped_total.
func NewRegistry(std IO) *prometheus.Registry {
	v := ReadVersion()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "tandem_build_info",
		Help:        "The running build; the value is always 1.",
		ConstLabels: prometheus.Labels{"version": v.Number, "revision": v.Revision, "go_version": v.Go},
	})
	info.Set(1)
	registry := prometheus.NewRegistry()
	dropped := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "tandem_log_dropped_total",
		Help: "Lines of the log that were dropped because stderr did not take them in time.",
	}, func() float64 { return float64(std.logs.lost()) })
	registry.MustRegister(info, dropped, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
