package flow

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pd"
)

// waits are the buckets of waits (seconds): a request that does not wait takes microseconds, one with a time to live a minute.
var waits = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// dispatched is the outcome of a request that was let pass; that of another is its pd.Reason.
const dispatched = "dispatched"

// theirs are llm-d's names of outcomes, one for each of ours.
var theirs = map[string]string{
	dispatched:              "Dispatched",
	string(pd.QueueFull):    "RejectedCapacity",
	string(pd.QueueTimeout): "EvictedTTL",
	string(pd.NoEndpoint):   "EvictedNoEndpoints",
	string(pd.Deadline):     "EvictedContextCancelled",
	string(pd.Evicted):      "EvictedOther",
	string(pd.Draining):     "RejectedOther",
}

// Metrics are the metrics of queues. They outlive configurations. A nil Metrics counts nothing.
type Metrics struct {
	seconds *prometheus.HistogramVec
	pool    string        // name of the InferencePool
	usual   *atomic.Int64 // requests of priority 0 that pass: found once, as nearly all requests are such

	mu       sync.RWMutex
	outcomes map[ending]*atomic.Int64
}

// ending is the end of a request in the queue.
type ending struct {
	priority int
	outcome  string
}

// NewMetrics makes the metrics and registers them. pool is the name of the InferencePool, "" = there is none.
func NewMetrics(reg prometheus.Registerer, pool string) *Metrics {
	m := &Metrics{pool: pool, outcomes: make(map[ending]*atomic.Int64),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_queue_seconds", Buckets: waits,
			Help: "Time that requests waited for capacity. Requests that passed at once are not counted."}, []string{"priority", "outcome"})}
	m.usual = m.ends(0, dispatched)
	reg.MustRegister(m, m.seconds)
	return m
}

// ends returns the count of an ending.
func (m *Metrics) ends(priority int, outcome string) *atomic.Int64 {
	key := ending{priority, outcome}
	m.mu.RLock()
	n, ok := m.outcomes[key]
	m.mu.RUnlock()
	if ok {
		return n
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n, ok = m.outcomes[key]; !ok {
		n = new(atomic.Int64)
		m.outcomes[key] = n
	}
	return n
}

// passed counts a request that did not wait.
func (m *Metrics) passed(priority int) {
	switch {
	case m == nil:
	case priority == 0:
		m.usual.Add(1)
	default:
		m.ends(priority, dispatched).Add(1)
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
	m.ends(priority, outcome).Add(1)
	m.seconds.WithLabelValues(strconv.Itoa(priority), outcome).Observe(waited.Seconds())
}

// The counts of outcomes, under our name and under llm-d's.
var (
	outcomesDesc = prometheus.NewDesc("tandem_queue_outcomes_total",
		"Requests that flow control let pass or refused, by outcome: dispatched, or the reason of the refusal.",
		[]string{"priority", "outcome"}, nil)
	theirOutcomesDesc = prometheus.NewDesc("llm_d_epp_flow_control_requests_total",
		"Requests that flow control let pass or refused, by llm-d's outcomes.", []string{"outcome", "priority", "inference_pool"}, nil)
)

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	out <- outcomesDesc
	out <- theirOutcomesDesc
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for key, count := range m.outcomes {
		n, priority := float64(count.Load()), strconv.Itoa(key.priority)
		out <- prometheus.MustNewConstMetric(outcomesDesc, prometheus.CounterValue, n, priority, key.outcome)
		out <- prometheus.MustNewConstMetric(theirOutcomesDesc, prometheus.CounterValue, n, theirs[key.outcome], priority, m.pool)
	}
}
