package sched

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// seconds are the buckets of a pick: some microseconds in a small pool, half a millisecond in one of thousands.
var seconds = []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 1e-2, 1e-1}

// Metrics are the metrics of picks. They outlive pipelines.
type Metrics struct {
	seconds          prometheus.Histogram
	retries          prometheus.Counter
	outdated         prometheus.Counter
	noPrefillLocal   prometheus.Counter
	noPrefillRefused prometheus.Counter
	saturated        *prometheus.CounterVec
	unprepared       *prometheus.CounterVec
	dropped          prometheus.Counter
	compared         compared
}

// compared are the metrics of decisions that were made by cost.
type compared struct {
	seconds [3]prometheus.Counter // by choice
	tokens  [2]prometheus.Observer
}

// Choices whose costs are counted.
const (
	choiceLocal = iota
	choiceRemote
	choiceTaken
)

// uncached are the buckets of the tokens that a remote prefill would compute, twice as long each.
var uncached = prometheus.ExponentialBuckets(16, 2, 14)

// NewMetrics makes the metrics and registers them, unless reg is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	noPrefill := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_no_prefill_total",
		Help: "Requests planned for remote prefill while no prefill pod was available, by decision: local or refused."},
		[]string{"decision"})
	cost := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_compared_cost_seconds_total",
		Help: "What decisions by cost expected of computing each prompt locally, of computing it remotely, and of what was taken."}, []string{"choice"})
	tokens := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tandem_compared_tokens", Buckets: uncached,
		Help: "Tokens of prompts that were not cached on the decode endpoint, by the decision that cost less."}, []string{"decision"})
	m := &Metrics{
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tandem_pick_seconds", Buckets: seconds,
			Help: "Time of a pick, from the pool's snapshot to the reservation."}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_pick_retries_total",
			Help: "Picks made again because another request changed the load of the chosen endpoint meanwhile."}),
		outdated: prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_pick_outdated_total",
			Help: "Picks kept after the last try although another request changed the load of the chosen endpoint meanwhile."}),
		saturated: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_saturated_total",
			Help: "Requests refused because all endpoints of a stage were full."}, []string{"stage"}),
		unprepared: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_preparer_failures_total",
			Help: "Requests for which a preparer failed or was too slow, and that were picked for without its result."}, []string{"plugin"}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_outcomes_dropped_total",
			Help: "Outcomes that observers did not get because they were too slow."}),
		noPrefillLocal:   noPrefill.WithLabelValues(pd.Local.String()),
		noPrefillRefused: noPrefill.WithLabelValues(pd.Refused.String()),
		compared: compared{
			seconds: [...]prometheus.Counter{cost.WithLabelValues("local"), cost.WithLabelValues("remote"), cost.WithLabelValues("taken")},
			tokens:  [...]prometheus.Observer{tokens.WithLabelValues(pd.Local.String()), tokens.WithLabelValues(pd.Remote.String())},
		},
	}
	if reg != nil {
		reg.MustRegister(m.seconds, m.retries, m.outdated, noPrefill, m.saturated, m.unprepared, m.dropped, cost, tokens)
	}
	return m
}

// picked counts one pick. A pipeline without a prefill stage is not counted as without prefill pods.
func (m *Metrics) picked(took time.Duration, k *pick, refused error) {
	m.seconds.Observe(took.Seconds())
	if refused == nil && len(k.costs) > 1 {
		cached, _ := k.cached()
		m.compared.add(k.costs, k.verdict, k.round.Request.Prompt.Tokens-cached)
	}
	reason := k.reason
	if refused != nil {
		reason = pd.AsRefusal(refused).Reason
	}
	switch {
	case reason == pd.Saturated:
		m.saturated.WithLabelValues(string(k.round.Stage)).Inc()
	case !k.pipeline.splits():
	case refused == nil && reason == pd.NoPrefill:
		m.noPrefillLocal.Inc()
	case reason == pd.NoPrefill, reason == pd.Budget, refused != nil && reason == pd.DecodeOnly && k.verdict == pd.Remote:
		m.noPrefillRefused.Inc()
	}
}

// add counts a decision between a local and a remote prefill, and what both were expected to cost.
func (c *compared) add(costs []epp.Cost, verdict pd.Verdict, tokens int) {
	local, remote := costs[0].Total(), costs[1].Total()
	for i := range costs[2:] {
		remote = min(remote, costs[2+i].Total())
	}
	count := func(choice int, cost time.Duration) { c.seconds[choice].Add(max(0, cost.Seconds())) } // a counter panics at less
	count(choiceLocal, local)
	count(choiceRemote, remote)
	if verdict == pd.Remote {
		count(choiceTaken, remote)
		c.tokens[choiceRemote].Observe(float64(tokens))
		return
	}
	count(choiceTaken, local)
	c.tokens[choiceLocal].Observe(float64(tokens))
}
