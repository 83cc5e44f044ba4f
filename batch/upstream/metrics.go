package upstream

import "github.com/prometheus/client_golang/prometheus"

// metrics are those of a Client.
type metrics struct {
	attempts *prometheus.CounterVec
	took     prometheus.Histogram
}

// String names the verdict in metrics.
func (v verdict) String() string {
	return [...]string{final: "answered", full: "full", evicted: "evicted", unreachable: "unreachable", failed: "failed", aborted: "aborted"}[v]
}

func newMetrics(reg prometheus.Registerer, pace *Pacer) *metrics {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_batch_attempts_total",
			Help: "Requests to the upstream, by outcome: answered, full, evicted, unreachable, failed or aborted."}, []string{"outcome"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tandem_batch_request_seconds",
			Help: "Time of the requests to the upstream that were answered.", Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640}}),
	}
	limit := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_batch_limit",
		Help: "Requests that may be in flight, as the pace has it."}, func() float64 { limit, _ := pace.State(); return float64(limit) })
	inflight := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_batch_inflight",
		Help: "Requests in flight."}, func() float64 { _, inflight := pace.State(); return float64(inflight) })
	headroom := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_batch_headroom",
		Help: "Share of their goals that online requests leave, as the picker told with the latest answer; NaN if it did not."}, pace.Headroom)
	reg.MustRegister(m.attempts, m.took, limit, inflight, headroom)
	return m
}
