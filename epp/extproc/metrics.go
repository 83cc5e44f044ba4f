package extproc

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// seconds are the buckets of the picker's own time: a pick takes some 10 µs; a request that waits for one may take seconds.
var seconds = []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1,
	2.5, 5, 10, 30}

// metrics are the metrics of this package. None has an address as a label.
type metrics struct {
	requests   *prometheus.CounterVec
	phases     [pd.Refused + 1]prometheus.Observer // by verdict
	streams    [filters]prometheus.Gauge
	violations *prometheus.CounterVec
	rewrites   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, bodies *pd.BufferedBytes) (*metrics, error) {
	phases := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_phase_seconds", Buckets: seconds,
		Help: "Time of a request in phase epp: from its last byte at the picker to the picker's answer."},
		[]string{"phase", "decision"})
	streams := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_extproc_streams",
		Help: "Open ext-proc streams, by Envoy filter."}, []string{"filter"})
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_requests_total",
			Help: "Generate calls by result, reason and the status that the client got; code 0 = none."},
			[]string{"component", "decision", "reason", "code"}),
		violations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_extproc_violations_total",
			Help: "Streams ended because the gateway is not configured for this picker, or breaks the protocol, by cause."},
			[]string{"cause"}),
		rewrites: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_model_rewrites_total",
			Help: "Picked requests whose model an InferenceModelRewrite or a header chose, and the model that answers; " +
				"empty for a header, since clients may send it."},
			[]string{"rewrite", "model"}),
	}
	buffered := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_buffered_bytes",
		Help: "Bytes of request bodies that are buffered now, over all requests; --buffer-limit is the bound."}, bodies.Bytes)
	for v := pd.Local; v <= pd.Refused; v++ {
		m.phases[v] = phases.WithLabelValues(pd.PhaseEPP.String(), v.String())
	}
	for f := range filters {
		m.streams[f] = streams.WithLabelValues(f.String())
	}
	for _, c := range []prometheus.Collector{m.requests, phases, streams, m.violations, m.rewrites, buffered} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// request counts a generate call by its result: the sidecar's report, or the plan if there is no report.
func (m *metrics) request(o *epp.Outcome) {
	d := pd.Result{Verdict: o.Plan.Verdict, Reason: o.Plan.Reason}
	if o.Happened != nil {
		d = *o.Happened
	}
	m.requests.WithLabelValues("epp", d.Verdict.String(), string(d.Reason), strconv.Itoa(o.Status)).Inc()
}

// answered observes the picker's own time.
func (m *metrics) answered(v pd.Verdict, took time.Duration) { m.phases[v].Observe(took.Seconds()) }

// rewritten counts a request whose model the policy chose. The operator names objects and their targets, so labels are few.
func (m *metrics) rewritten(r *epp.Request) {
	switch r.Rewrite {
	case "":
	case epp.HeaderTarget:
		m.rewrites.WithLabelValues(r.Rewrite, "").Inc()
	default:
		m.rewrites.WithLabelValues(r.Rewrite, r.Model).Inc()
	}
}

// violation counts a stream that was ended because of a violation. There are few causes.
func (m *metrics) violation(cause string) { m.violations.WithLabelValues(cause).Inc() }
