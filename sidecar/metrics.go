package sidecar

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/handoff"
	"github.com/tandem-serving/tandem/sidecar/lease"
	"github.com/tandem-serving/tandem/sidecar/relay"
)

// seconds are the buckets of phases and legs: from the sidecar's own work (100 µs) to a long prefill (2 min).
var seconds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}

// The buckets of what clients see. Prometheus interpolates a quantile within a bucket, so the ratio of two bounds is the largest
// error of a quantile: about 1.5 where SLOs usually lie, and 2 or more outside, where only the order of magnitude matters.
var (
	// ttftBuckets are close between 100 ms and 10 s.
	ttftBuckets = []float64{.01, .025, .05, .1, .15, .2, .3, .45, .7, 1, 1.5, 2, 3, 4.5, 7, 10, 20, 40, 80, 160}
	// itlBuckets are close between 10 and 200 ms: a decode step takes 5 to 50 ms, and a prefill on the same engine adds its
	// own time to one.
	itlBuckets = []float64{.0025, .005, .0075, .01, .015, .02, .03, .04, .05, .075, .1, .15, .2, .3, .5, 1, 2.5, 10}
	// e2eBuckets are close between 1 and 60 s.
	e2eBuckets = []float64{.1, .25, .5, 1, 1.5, 2, 3, 4.5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 240, 480, 960}
	// tokenBuckets are powers of 2: numbers of tokens spread over six orders of magnitude, and block sizes are powers of 2.
	tokenBuckets = []float64{0, 1, 4, 16, 64, 128, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20}
)

// metrics are the sidecar's metrics. No label holds an address but that of the prefill pods in handoff.Links.
type metrics struct {
	requests *prometheus.CounterVec
	phases   *prometheus.HistogramVec
	ttft     *relay.ByVerdict
	e2e      *relay.ByVerdict
	tokens   map[string]*relay.ByVerdict
	handoff  handoff.Metrics
	warmups  *prometheus.CounterVec
}

// gauges are the numbers that are read when metrics are collected.
type gauges struct {
	fallbackTokens, open, buffered func() float64
	mismatches                     func(pd.Role) float64
}

func newMetrics(reg prometheus.Registerer, g gauges, links *handoff.Links) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_requests_total",
			Help: "Generate calls by result, reason and the status that the client got; code 0 = none."}, []string{"component", "decision", "reason", "code"}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_phase_seconds", Buckets: seconds,
			Help: "Time of a generate call in each phase of the sidecar's clock, and overlap: how long prefill and first ran at the same time."}, []string{"phase", "decision"}),
	}
	m.warmups = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_warmup_total",
		Help: "Warm-up hand-offs, by result. No other metric counts them."}, []string{"result"})
	inflight := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_inflight",
		Help: "Legs in progress."}, []string{"component", "role"})
	m.handoff = handoff.Metrics{
		Legs: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_leg_seconds", Buckets: seconds,
			Help: "Time from sending a leg to the end of its answer (encode, prefill) or to its headers (decode, local), by status; code 0 = none."}, []string{"leg", "code"}),
		HandoffAge: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tandem_handoff_age_seconds", Buckets: seconds,
			Help: "Age of a hand-off when decode was asked to read it."}),
		Retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_retries_total",
			Help: "Legs that were sent again, to another candidate or without the hand-off, by cause."}, []string{"leg", "cause"}),
		Releases: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_kv_release_total",
			Help: "Releases of hand-offs that decode will not read, by way and result."}, []string{"way", "result"}),
		Stranded: prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_kv_stranded_total",
			Help: "Hand-offs that could not be released for certain: their blocks may stay pinned until the lease expires."}),
		Continued: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_continuations_total",
			Help: "Streams that broke off, and answers that were lost before they began, by cause and whether another engine went on (ok) or was asked anew (anew), or why not. With the cause none: streams that have begun and could not."}, []string{"cause", "result"}),
		Hedges: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_hedges_total",
			Help: "Prefill legs that were late (--hedge-ratio), by what came of the second one: won: it was the first to answer; lost: the first leg was; failed: both failed; budget: it was not sent."}, []string{"result"}),
		Inflight: inflight.MustCurryWith(prometheus.Labels{"component": component}),
		Encodes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_encode_requests_total",
			Help: "Generate calls for which the picker named encoders, by result: encoded; fallback: the engine that computes the prompt encodes; no-media."}, []string{"result"}),
		Pulls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_kv_pull_requests_total",
			Help: "Legs for whose prompts the picker named a pod with cached blocks, by result: asked: the engine is told to fetch them; unreachable: that pod's memory accepts no connections; not-needed. With --read-back also failed: the local engine hands nothing over; unread: the prefill engine, which was asked, computes it."}, []string{"result"}),
	}
	m.handoff.Links = links
	m.observeClients(reg)
	reg.MustRegister(m.requests, m.phases, m.warmups, inflight, m.handoff.Legs, m.handoff.HandoffAge, m.handoff.Retries, m.handoff.Releases, m.handoff.Continued, m.handoff.Hedges,
		m.handoff.Stranded, m.handoff.Encodes, m.handoff.Pulls, links,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_fallback_tokens",
			Help: "Requests planned remote that may still be prefilled locally now."}, g.fallbackTokens),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_open_requests",
			Help: "Generate calls that have begun and not ended, and hand-offs that are being released: while it is above 0, " +
				"the decode engine is needed."}, g.open),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_buffered_bytes",
			Help: "Bytes of request bodies that are buffered now, over all requests; --buffer-limit is the bound."}, g.buffered))
	for _, role := range []pd.Role{pd.RolePrefill, pd.RoleDecode} {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_protocol_mismatch", ConstLabels: prometheus.Labels{"role": role.String()},
			Help: "Engines that do not speak the hand-off protocol of this sidecar (--kv-connector): requests to them are served without hand-offs."},
			func() float64 { return g.mismatches(role) }))
	}
	return m
}

// The kinds of tokens in tandem_request_tokens.
const (
	tokensPrompt     = "prompt"
	tokensCached     = "cached"
	tokensCompletion = "completion"
)

// observeClients makes and registers the metrics of what clients see. Quantiles of phases cannot be added up, so these are
// measured as they are.
func (m *metrics) observeClients(reg prometheus.Registerer) {
	ttft := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_ttft_seconds", Buckets: ttftBuckets,
		Help: "Time from the first byte of a request to the first token of its stream."}, []string{"decision"})
	itl := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_itl_seconds", Buckets: itlBuckets,
		Help: "Pauses of streams: time between two arrivals of tokens. Tokens that arrive together count once."}, []string{"decision"})
	e2e := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_e2e_seconds", Buckets: e2eBuckets,
		Help: "Time from the first byte of a request to the last of its answer, for complete answers with status 200."}, []string{"decision"})
	tokens := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_request_tokens", Buckets: tokenBuckets,
		Help: "Tokens of a request as the engine reports them, by kind: prompt, cached (of the prompt), completion."}, []string{"kind", "decision"})
	m.ttft, m.handoff.ITL, m.e2e = relay.NewByVerdict(ttft), relay.NewByVerdict(itl), relay.NewByVerdict(e2e)
	m.tokens = map[string]*relay.ByVerdict{}
	for _, kind := range []string{tokensPrompt, tokensCached, tokensCompletion} {
		m.tokens[kind] = relay.NewByVerdict(tokens.MustCurryWith(prometheus.Labels{"kind": kind}))
	}
	reg.MustRegister(ttft, itl, e2e, tokens)
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

// request observes a call that has ended.
func (m *metrics) request(x *handoff.Exchange, phases *pd.Phases) {
	verdict := x.Decision.Verdict.String()
	m.requests.WithLabelValues(component, verdict, string(x.Decision.Reason), strconv.Itoa(x.Status)).Inc()
	for ph := range pd.PhaseOverlap + 1 {
		if took, ok := phases.Get(ph); ok {
			m.phases.WithLabelValues(ph.String(), verdict).Observe(took.Seconds())
		}
	}
	if x.Status == http.StatusOK {
		m.answered(x, phases)
	}
}

// answered observes what the client of a served call has seen.
func (m *metrics) answered(x *handoff.Exchange, phases *pd.Phases) {
	verdict, sum := x.Decision.Verdict, phases.Sum()
	if x.Streamed {
		decode, _ := phases.Get(pd.PhaseDecode)
		m.ttft.Observe(verdict, (sum - decode).Seconds(), x.Trace)
	}
	if x.Client.End == pd.EndDone {
		m.e2e.Observe(verdict, sum.Seconds(), x.Trace)
	}
	for _, t := range [...]struct {
		kind string
		n    int64
	}{{tokensPrompt, x.Usage.Prompt}, {tokensCached, x.Usage.Cached}, {tokensCompletion, x.Usage.Completion}} {
		if t.n >= 0 {
			m.tokens[t.kind].Observe(verdict, float64(t.n), x.Trace)
		}
	}
}
