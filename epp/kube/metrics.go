package kube

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are this package's metrics.
type metrics struct {
	watch  *Watch
	events *prometheus.CounterVec
	faults *prometheus.CounterVec
	synced *prometheus.Desc
	pods   *prometheus.Desc
}

func newMetrics(w *Watch, reg prometheus.Registerer) *metrics {
	m := &metrics{
		watch: w,
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_kube_events_total",
			Help: "Objects received from the API server, at first and at each change, by kind."},
			[]string{"kind"}),
		faults: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_kube_watch_failures_total",
			Help: "Failed requests to list or watch, by kind and reason. Kinds that the cluster does not have are missing."},
			[]string{"kind", "reason"}),
		synced: prometheus.NewDesc("tandem_kube_synced",
			"1 while the cluster has told all there is to know and tells of changes.", nil, nil),
		pods: prometheus.NewDesc("tandem_kube_pods",
			"Pods that the selector selects, by whether they can serve.", []string{"state"}, nil),
	}
	if reg != nil {
		reg.MustRegister(m)
	}
	return m
}

func (m *metrics) event(k kind) { m.events.WithLabelValues(k.label).Inc() }

func (m *metrics) fault(k kind, broken *fault) {
	if broken != nil {
		m.faults.WithLabelValues(k.label, broken.reason).Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	m.events.Describe(out)
	m.faults.Describe(out)
	out <- m.synced
	out <- m.pods
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.events.Collect(out)
	m.faults.Collect(out)
	synced, serving, all := 0.0, 0, 0
	if m.watch.following.Load() {
		synced = 1
	}
	if r := m.watch.podSet.Load(); r != nil {
		serving, all = r.count()
	}
	out <- prometheus.MustNewConstMetric(m.synced, prometheus.GaugeValue, synced)
	out <- prometheus.MustNewConstMetric(m.pods, prometheus.GaugeValue, float64(serving), "serving")
	out <- prometheus.MustNewConstMetric(m.pods, prometheus.GaugeValue, float64(all-serving), "waiting")
}
