package sidecar

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/handoff"
	"github.com/tandem-serving/tandem/sidecar/lease"
)

// seconds are the buckets of all durations: from the sidecar's own work (100 µs) to a long prefill (2 min).
var seconds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}

// metrics are the sidecar's metrics. No label holds an address.
type metrics struct {
	requests *prometheus.CounterVec
	phases   *prometheus.HistogramVec
	handoff  handoff.Metrics
	warmups  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, tokens, open, held func() float64) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_requests_total",
			Help: "Generate calls by result, reason and the status that the client got; code 0 = none."}, []string{"component", "decision", "reason", "code"}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_phase_seconds", Buckets: seconds,
			Help: "Time of a generate call in each phase of the sidecar's clock."}, []string{"phase", "decision"}),
	}
	m.warmups = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_warmup_total",
		Help: "Warm-up hand-offs, by result. No other metric counts them."}, []string{"result"})
	inflight := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_inflight",
		Help: "Legs in progress."}, []string{"component", "role"})
	m.handoff = handoff.Metrics{
		Legs: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_leg_seconds", Buckets: seconds,
			Help: "Time from sending a leg to the end of its answer (prefill) or to its headers (decode, local), by status; code 0 = none."}, []string{"leg", "code"}),
		HandoffAge: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tandem_handoff_age_seconds", Buckets: seconds,
			Help: "Age of a hand-off when decode was asked to read it."}),
		Retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_retries_total",
			Help: "Legs that were sent again, to another candidate or without the hand-off, by cause."}, []string{"leg", "cause"}),
		Releases: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_kv_release_total",
			Help: "Releases of hand-offs that decode will not read, by way and result."}, []string{"way", "result"}),
		Stranded: prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_kv_stranded_total",
			Help: "Hand-offs that could not be released for certain: their blocks may stay pinned until the lease expires."}),
		Inflight: inflight.MustCurryWith(prometheus.Labels{"component": component}),
	}
	fallback := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_fallback_tokens",
		Help: "Requests planned remote that may still be prefilled locally now."}, tokens)
	requests := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_open_requests",
		Help: "Generate calls that have begun and not ended, and hand-offs that are being released: while it is above 0, " +
			"the decode engine is needed."}, open)
	bodies := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_buffered_bytes",
		Help: "Bytes of request bodies that are buffered now, over all requests; --buffer-limit is the bound."}, held)
	reg.MustRegister(m.requests, m.phases, m.handoff.Legs, m.handoff.HandoffAge, m.handoff.Retries, m.handoff.Releases, m.handoff.Stranded, inflight,
		m.warmups, fallback, requests, bodies)
	return m
}

// component is the label of metrics that other programs of Tandem have too.
const component = "sidecar"

// leaseMetrics registers the metrics of hand-offs that are renewed and released by notices.
func leaseMetrics(reg prometheus.Registerer, counts func() lease.Counts) {
	connects := prometheus.CounterOpts{Name: "tandem_lease_connects_total", Help: "Connections made to prefill engines, with all their ranks, at their side channels, by result."}
	beats := prometheus.CounterOpts{Name: "tandem_lease_heartbeats_total", Help: "Heartbeats that hold hand-offs, by result: one for all ranks of an engine."}
	counter := func(o prometheus.CounterOpts, result string, count func(lease.Counts) uint64) {
		o.ConstLabels = prometheus.Labels{"result": result}
		reg.MustRegister(prometheus.NewCounterFunc(o, func() float64 { return float64(count(counts())) }))
	}
	counter(connects, "ok", func(c lease.Counts) uint64 { return c.Connects })
	counter(connects, "failed", func(c lease.Counts) uint64 { return c.FailedConnects })
	counter(beats, "ok", func(c lease.Counts) uint64 { return c.Beats })
	counter(beats, "failed", func(c lease.Counts) uint64 { return c.FailedBeats })
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_lease_engines",
		Help: "Prefill engines that the sidecar knows, whether or not it can notify them."}, func() float64 { return float64(counts().Engines) }))
}

func (m *metrics) request(d pd.Result, status int, phases *pd.Phases) {
	verdict := d.Verdict.String()
	m.requests.WithLabelValues(component, verdict, string(d.Reason), strconv.Itoa(status)).Inc()
	for ph := range pd.Phase(pd.PhaseCount) {
		if took, ok := phases.Get(ph); ok {
			m.phases.WithLabelValues(ph.String(), verdict).Observe(took.Seconds())
		}
	}
}
