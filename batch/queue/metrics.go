package queue

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of all consumers of a process. The label queue is the name in the configuration.
type Metrics struct {
	messages *prometheus.CounterVec
	held     *prometheus.GaugeVec
	closed   *prometheus.GaugeVec
	waiting  waiting
}

// NewMetrics registers the metrics of some queues.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_batch_queue_messages_total",
			Help: "Messages of queues that have ended: answered, failed, expired, cancelled, invalid, abandoned by too many consumers, or lost to another consumer."}, []string{"queue", "result"}),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_batch_queue_held",
			Help: "Messages that this process has claimed."}, []string{"queue"}),
		closed: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_batch_queue_closed",
			Help: "1 while a gate has messages wait: hours, budget or saturation."}, []string{"queue", "gate"}),
		waiting: waiting{prometheus.NewDesc("tandem_batch_queue_waiting", "Messages that no consumer has claimed.", []string{"queue"}, nil), map[string]Source{}},
	}
	reg.MustRegister(m.messages, m.held, m.closed, m.waiting)
	return m
}

// waiting asks the brokers when metrics are collected. One that does not answer has no value, so that the others are seen.
type waiting struct {
	desc  *prometheus.Desc
	queue map[string]Source // filled before the metrics are served
}

// Describe implements prometheus.Collector.
func (w waiting) Describe(to chan<- *prometheus.Desc) { to <- w.desc }

// Collect implements prometheus.Collector.
func (w waiting) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for name, source := range w.queue {
		if n, err := source.Waiting(ctx); err == nil {
			to <- prometheus.MustNewConstMetric(w.desc, prometheus.GaugeValue, float64(n), name)
		}
	}
}
