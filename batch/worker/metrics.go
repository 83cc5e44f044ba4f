package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
)

// metrics are those of a worker. No label holds a tenant, a batch or a model.
type metrics struct {
	lines   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer, s *store.Store) *metrics {
	m := &metrics{
		lines: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_batch_lines_total",
			Help: "Lines of batches with a result: completed, failed, or not-run because the batch was cancelled or has expired."}, []string{"result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_batch_seconds",
			Help: "Time of batches from their creation to their end, by the status in which they ended.", Buckets: []float64{1, 10, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 57600, 86400, 172800}}, []string{"status"}),
	}
	reg.MustRegister(m.lines, m.seconds, batches{s, prometheus.NewDesc("tandem_batch_batches", "Batches in the store, by status.", []string{"status"}, nil)})
	return m
}

// batches counts the batches of a store when metrics are collected.
type batches struct {
	store *store.Store
	desc  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (b batches) Describe(to chan<- *prometheus.Desc) { to <- b.desc }

// Collect implements prometheus.Collector.
func (b batches) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	counts, err := b.store.Count(ctx)
	if err != nil {
		to <- prometheus.NewInvalidMetric(b.desc, err)
		return
	}
	for _, status := range batch.Statuses() {
		to <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, float64(counts[status]), string(status))
	}
}
