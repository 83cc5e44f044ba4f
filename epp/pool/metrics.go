package pool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// seconds are the buckets of ages and durations: from a page read on loopback (1 ms) to an endpoint that has not answered for a minute.
var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// metrics are this package's metrics. Collect counts the pool's gauges.
type metrics struct {
	pool      *Pool
	scrapes   *prometheus.CounterVec
	took      prometheus.Histogram
	age       prometheus.Histogram
	oldest    *prometheus.Desc
	endpoints *prometheus.Desc
	inflight  *prometheus.Desc
	trouble   *prometheus.Desc
}

func newMetrics(p *Pool, reg prometheus.Registerer) *metrics {
	m := &metrics{
		pool: p,
		scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_scrapes_total",
			Help: "Readings of endpoints' metrics pages, by result."}, []string{"result"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tandem_scrape_seconds", Buckets: seconds,
			Help: "Time to read a metrics page, failed readings included."}),
		age: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tandem_scrape_age_seconds", Buckets: seconds,
			Help: "Age of a load when the next one arrived."}),
		oldest: prometheus.NewDesc("tandem_scrape_oldest_seconds",
			"Age of the oldest load in the pool; endpoints that were never read are not in it.", nil, nil),
		endpoints: prometheus.NewDesc("tandem_endpoints",
			"Endpoints by role and by their load: fresh, stale or unread; left = gone, with requests still running.",
			[]string{"role", "state"}, nil),
		inflight: prometheus.NewDesc("tandem_inflight",
			"Requests that were sent to endpoints and have not ended.", []string{"role"}, prometheus.Labels{"component": "epp"}),
		trouble: prometheus.NewDesc("tandem_discovery_trouble",
			"1 while the source of the endpoints, or a part of it, cannot be used.", nil, nil),
	}
	if reg != nil {
		reg.MustRegister(m)
	}
	return m
}

func (m *metrics) scraped(result string, took time.Duration) {
	m.scrapes.WithLabelValues(result).Inc()
	m.took.Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	m.scrapes.Describe(out)
	m.took.Describe(out)
	m.age.Describe(out)
	out <- m.oldest
	out <- m.endpoints
	out <- m.inflight
	out <- m.trouble
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.scrapes.Collect(out)
	m.took.Collect(out)
	m.age.Collect(out)
	c := m.pool.census(time.Now())
	out <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, c.oldest.Seconds())
	trouble := 0.0
	if m.pool.Trouble() != nil {
		trouble = 1
	}
	out <- prometheus.MustNewConstMetric(m.trouble, prometheus.GaugeValue, trouble)
	for kind, n := range c.endpoints {
		out <- prometheus.MustNewConstMetric(m.endpoints, prometheus.GaugeValue, float64(n), kind.role, kind.state)
	}
	for role, n := range c.inflight {
		out <- prometheus.MustNewConstMetric(m.inflight, prometheus.GaugeValue, float64(n), role)
	}
}

// census counts the pool.
type census struct {
	oldest    time.Duration
	endpoints map[kind]int
	inflight  map[string]int // requests by role
}

type kind struct{ role, state string }

// The states of an endpoint.
const (
	stateFresh  = "fresh"  // its load is as new as it should be
	stateStale  = "stale"  // its load is old
	stateUnread = "unread" // it has no load
	stateLeft   = "left"   // it is gone, with requests still running
)

// newCensus returns a census with zeros for both stages, so that an alert can distinguish an empty pool from a missing
// metric, and a graph falls to zero instead of ending.
func newCensus() census {
	c := census{endpoints: make(map[kind]int), inflight: make(map[string]int)}
	for _, role := range []pd.Role{pd.RolePrefill, pd.RoleDecode} {
		c.inflight[role.String()] = 0
		for _, state := range []string{stateFresh, stateStale, stateUnread} {
			c.endpoints[kind{role.String(), state}] = 0
		}
	}
	return c
}

func (p *Pool) census(now time.Time) census {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := newCensus()
	for _, m := range p.set.members {
		load := m.load.Load()
		age := now.Sub(load.At)
		state := stateFresh
		switch {
		case load.At.IsZero():
			state, age = stateUnread, 0
		case age > p.options.Stale:
			state = stateStale
		}
		c.oldest = max(c.oldest, age)
		c.add(m.Endpoint, state)
	}
	for _, d := range p.set.gone {
		if d.Own().Requests > 0 {
			c.add(d.Endpoint, stateLeft)
		}
	}
	return c
}

func (c *census) add(e *epp.Endpoint, state string) {
	role := e.Role.String()
	c.endpoints[kind{role, state}]++
	c.inflight[role] += e.Own().Requests
}
