package flow

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pd"
)

// waits are the buckets of waits (seconds): a request that does not wait takes microseconds, one with a time to live a minute.
var waits = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// dispatched is the outcome of a request that was let pass; that of another is its pd.Reason.
const dispatched = "dispatched"

// Metrics are the metrics of queues. They outlive configurations. A nil Metrics counts nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	usual    prometheus.Counter // of requests of priority 0 that pass: found once, as nearly all requests are such
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_queue_requests_total",
			Help: "Requests that flow control let pass or refused, by outcome: dispatched, or the reason of the refusal."},
			[]string{"priority", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_queue_seconds", Buckets: waits,
			Help: "Time that requests waited for capacity. Requests that passed at once are not counted."}, []string{"priority", "outcome"}),
	}
	m.usual = m.requests.WithLabelValues("0", dispatched)
	reg.MustRegister(m.requests, m.seconds)
	return m
}

// passed counts a request that did not wait.
func (m *Metrics) passed(priority int) {
	switch {
	case m == nil:
	case priority == 0:
		m.usual.Inc()
	default:
		m.requests.WithLabelValues(strconv.Itoa(priority), dispatched).Inc()
	}
}

// left counts a request that has left the queue, or could not enter it.
func (m *Metrics) left(priority int, waited time.Duration, err error) {
	if m == nil {
		return
	}
	outcome := dispatched
	if err != nil {
		outcome = string(pd.AsRefusal(err).Reason)
	}
	m.requests.WithLabelValues(strconv.Itoa(priority), outcome).Inc()
	m.seconds.WithLabelValues(strconv.Itoa(priority), outcome).Observe(waited.Seconds())
}
