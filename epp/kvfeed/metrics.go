package kvfeed

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kvevents"
	"github.com/tandem-serving/tandem/epp/kvindex"
	"github.com/tandem-serving/tandem/epp/prefix"
)

// by returns the labels of a metric: the producer, and these.
func by(labels ...string) []string { return append([]string{"producer"}, labels...) }

var (
	sourcesDesc = prometheus.NewDesc("tandem_prefix_sources", "Streams of KV events, of engines or their ranks, by whether they are connected.", by("state"), nil)
	unaskedDesc = prometheus.NewDesc("tandem_prefix_engines_unknown", "Endpoints of which it is not known where their engines publish KV events.", by(), nil)
	eventsDesc  = prometheus.NewDesc("tandem_prefix_event_blocks_total", "Blocks that engines told of, by what they told; of cleared, events.", by("kind"), nil)
	skippedDesc = prometheus.NewDesc("tandem_prefix_events_skipped_total", "KV events that could not be used.", by("reason"), nil)
	earlierDesc = prometheus.NewDesc("tandem_prefix_events_earlier_total", "Messages that engines published before the picker listened, and that were not replayed.", by(), nil)
	lostDesc    = prometheus.NewDesc("tandem_prefix_events_lost_total", "Messages of engines that were missed and could not be had again.", by(), nil)
	restartDesc = prometheus.NewDesc("tandem_prefix_restarts_total", "Restarts of engines, as the numbers of their messages show.", by(), nil)
	replaysDesc = prometheus.NewDesc("tandem_prefix_replays_total", "Replays of KV events that were asked for.", by("result"), nil)
	tiersDesc   = prometheus.NewDesc("tandem_prefix_tier_blocks", "KV blocks that engines have told of, by the memory that they are in; one may be in several.", by("tier"), nil)
	lagDesc     = prometheus.NewDesc("tandem_prefix_event_lag_seconds", "Time from when an engine published KV events, by its clock, until they were applied; without those that were replayed.", by(), nil)
	foundDesc   = prometheus.NewDesc("tandem_prefix_mismatch_total", "What did not fit together between the picker and engines.", by("kind"), nil)
	promptsDesc = prometheus.NewDesc("tandem_prefix_prompts_total", "Prompts that were picked for, by whether their token ids were known.", by("ids"), nil)
	cachedDesc  = prometheus.NewDesc("tandem_prefix_cached_tokens_total", "Cached tokens of requests, as the picker predicted and as engines reported.", by("by"), nil)
	hitsDesc    = prometheus.NewDesc("tandem_prefix_checked_total", "Requests whose cached tokens were predicted and reported, by how the prediction compares.", by("result"), nil)
	errorDesc   = prometheus.NewDesc("tandem_prefix_error", "How far the predicted number of cached tokens is from what the engine reports, as a share of the prompt.", by(), nil)
	unknownDesc = prometheus.NewDesc("tandem_prefix_strangers_total", "Messages of engines that are no endpoints of the pool.", by(), nil)
)

// lagBounds are the upper bounds of the lags (seconds).
var lagBounds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60}

// histogram counts values by upper bounds. Make it with newHistogram.
type histogram struct {
	bounds []float64
	below  []atomic.Int64
	sum    atomic.Int64 // in millionths
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, below: make([]atomic.Int64, len(bounds)+1)}
}

// observe notes a value. Clocks differ, so a lag may be negative.
func (h *histogram) observe(value float64) {
	value = min(max(value, 0), 1e6)
	i := 0
	for i < len(h.bounds) && value > h.bounds[i] {
		i++
	}
	h.below[i].Add(1)
	h.sum.Add(int64(value * 1e6))
}

func (h *histogram) collect(ch chan<- prometheus.Metric, desc *prometheus.Desc, producer string) {
	buckets, count := make(map[float64]uint64, len(h.bounds)), uint64(0)
	for i := range h.below {
		count += uint64(h.below[i].Load())
		if i < len(h.bounds) {
			buckets[h.bounds[i]] = count
		}
	}
	ch <- prometheus.MustNewConstHistogram(desc, count, float64(h.sum.Load())/1e6, buckets, producer)
}

// totals are the sums of the counts of several sources.
type totals struct {
	stored, removed, cleared, earlier, lost, restarts, replays, failed int64
	skipped                                                            []int64
}

func (t *totals) add(c *kvevents.Counts) {
	t.stored += c.Stored.Load()
	t.removed += c.Removed.Load()
	t.cleared += c.Cleared.Load()
	t.earlier += c.Earlier.Load()
	t.lost += c.Lost.Load()
	t.restarts += c.Restarts.Load()
	t.replays += c.Replays.Load()
	t.failed += c.ReplayErrors.Load()
	if t.skipped == nil {
		t.skipped = make([]int64, len(c.Skipped))
	}
	for i := range c.Skipped {
		t.skipped[i] += c.Skipped[i].Load()
	}
}

// CollectAs collects the metrics under the name of a producer.
func (f *Feed) CollectAs(producer string, ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{producer}, labels...)...)
	}
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{producer}, labels...)...)
	}
	f.mu.Lock()
	sum := f.gone
	sum.skipped = append([]int64(nil), f.gone.skipped...)
	var connected, waiting, unasked int64
	var tiers [epp.Tiers]int
	for _, m := range f.members {
		if m.asked.Load() != nil {
			unasked++
		}
		for _, s := range *m.sources.Load() {
			sum.add(&s.counts)
			for t := range kvindex.Tiers {
				tiers[t] += s.stream.Holder.In(t)
			}
			if s.counts.Connected.Load() > 0 {
				connected++
			} else {
				waiting++
			}
		}
	}
	f.mu.Unlock()
	gauge(prefix.BlocksDesc, f.index.Blocks())
	tiers[epp.SharedTier] = f.shared.Len()
	for t, n := range tiers {
		gauge(tiersDesc, int64(n), epp.Tier(t).String())
	}
	gauge(sourcesDesc, connected, "connected")
	gauge(sourcesDesc, waiting, "waiting")
	gauge(unaskedDesc, unasked)
	counter(eventsDesc, sum.stored, "stored")
	counter(eventsDesc, sum.removed, "removed")
	counter(eventsDesc, sum.cleared, "cleared")
	for i, n := range sum.skipped {
		counter(skippedDesc, n, kvevents.Reason(i).String())
	}
	counter(earlierDesc, sum.earlier)
	counter(lostDesc, sum.lost)
	counter(restartDesc, sum.restarts)
	counter(replaysDesc, sum.replays-sum.failed, "ok")
	counter(replaysDesc, sum.failed, "failed")
	counter(unknownDesc, f.unknown.Load())
	f.lag.collect(ch, lagDesc, producer)
	c := &f.checks
	for i := range c.found {
		counter(foundDesc, c.found[i].Load(), Mismatch(i).String())
	}
	counter(promptsDesc, c.known.Load(), "known")
	counter(promptsDesc, c.unknown.Load(), "unknown")
	counter(cachedDesc, c.predicted.Load(), "picker")
	counter(cachedDesc, c.reported.Load(), "engine")
	for i := range c.compared {
		counter(hitsDesc, c.compared[i].Load(), hit(i).String())
	}
	c.errors.collect(ch, errorDesc, producer)
}
