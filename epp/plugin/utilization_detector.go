package plugin

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// UtilizationDetector tells from the engines' metrics how full they are: the longer of queue / threshold and KV cache used /
// threshold. As saturationDetector it has requests of negative priority refused while that is 1 or more on average, of the
// prefill or of the decode endpoints. In a profile it drops endpoints that are above a threshold by the headroom.
//
// A queue is as long as the engine said last, without requests whose KV cache is on its way: those have their room. If that
// is up to the threshold, it is longer by what this picker has sent since, less what has ended: a page is a fifth of a second
// old, in which a burst may come. A shorter queue says nothing of a burst, which the engine may have room for.
type UtilizationDetector struct {
	// QueueDepthThreshold is how many requests may wait in an engine. Default 5.
	QueueDepthThreshold int `yaml:"queueDepthThreshold"`
	// QueueDepthPerRunning lets as many requests wait for each one that runs, if that is more than queueDepthThreshold: at
	// 1, a request waits about as long as others take. Engines whose batches are large so get long queues, and small ones
	// short queues, without a number for each. Default 0: the queue does not depend on the batch.
	QueueDepthPerRunning float64 `yaml:"queueDepthPerRunning"`
	// KVCacheUtilThreshold is how much of an engine's KV cache may be used, up to 1. Default 0.8.
	KVCacheUtilThreshold float64 `yaml:"kvCacheUtilThreshold"`
	// MetricsStalenessThreshold is the age from which on metrics do not count, and an endpoint is full, but not below that of
	// the flag metrics-staleness-threshold, since pages of idle engines are read once a second. Default 200ms.
	MetricsStalenessThreshold time.Duration `yaml:"metricsStalenessThreshold"`
	// Headroom is by how much of a threshold a profile lets endpoints be above it. With 1 or more, the KV cache is no reason
	// to drop an endpoint: a full one is used well. Default 0.
	Headroom float64 `yaml:"headroom"`
	// OnAllFull says what a profile does when it would drop all endpoints: keep, the default, drops none; refuse answers 429.
	// It then takes the last metrics for what they say until they are three times as old as the flag
	// metrics-staleness-threshold says, and ignores them after that: metrics that cannot be read are no reason to refuse all
	// requests.
	OnAllFull string `yaml:"onAllFull"`
}

func newUtilizationDetector() epp.Plugin {
	return &UtilizationDetector{QueueDepthThreshold: 5, KVCacheUtilThreshold: 0.8, MetricsStalenessThreshold: 200 * time.Millisecond,
		OnAllFull: allFullKeep}
}

// Problems implements epp.Plugin.
func (p *UtilizationDetector) Problems(report epp.Report) {
	atLeast(report, "queueDepthThreshold", p.QueueDepthThreshold, 1)
	within(report, "queueDepthPerRunning", p.QueueDepthPerRunning, 0, 1000)
	if !(p.KVCacheUtilThreshold > 0 && p.KVCacheUtilThreshold <= 1) {
		report("kvCacheUtilThreshold", "must be above 0 and at most 1, got %v", p.KVCacheUtilThreshold)
	}
	if p.MetricsStalenessThreshold <= 0 {
		report("metricsStalenessThreshold", "must be more than 0, got %v", p.MetricsStalenessThreshold)
	}
	checkHeadroom(report, p.Headroom)
	checkAllFull(report, p.OnAllFull)
}

// Build implements epp.Plugin.
func (p *UtilizationDetector) Build(*epp.Builder) (any, error) {
	return utilizationDetector{queue: float64(p.QueueDepthThreshold), perRunning: p.QueueDepthPerRunning, kv: p.KVCacheUtilThreshold,
		stale: p.MetricsStalenessThreshold, limit: 1 + p.Headroom, refuse: p.OnAllFull == allFullRefuse}, nil
}

type utilizationDetector struct {
	queue, perRunning, kv float64
	stale                 time.Duration
	limit                 float64 // of the load that a profile drops an endpoint at
	refuse                bool
}

// load is how full an endpoint's last metrics say it is: 1 = at a threshold. What they do not say is 0.
func (d *utilizationDetector) load(c *epp.Candidate) (queue, kv float64) {
	signals := &c.Load.Signals // all of them are from the page
	if waiting, known := signals.Value(epp.Waiting); known {
		threshold := d.queue
		delayed, _ := signals.Value(epp.Delayed)
		waiting -= delayed
		if running, known := signals.Value(epp.Running); known {
			threshold = max(threshold, d.perRunning*running)
		}
		if waiting >= threshold {
			waiting += float64(c.InFlight.Requests - c.Load.Sent)
		}
		queue = max(0, waiting/threshold)
	}
	if used, known := signals.Value(epp.KVUsage); known && used > 0 {
		kv = used / d.kv
	}
	return queue, kv
}

// isStale: beyond the picker's own bound Trust falls below 1, so that an age above both is what counts.
func (d *utilizationDetector) isStale(now time.Time, c *epp.Candidate) bool {
	return c.Trust < 1 && now.Sub(c.Load.At) > d.stale
}

// full tells whether a profile is to drop an endpoint, as far as its last metrics say. What had a queue when it was heard of
// last must not be full for ever.
func (d *utilizationDetector) full(c *epp.Candidate) bool {
	if c.Trust == 0 {
		return false
	}
	queue, kv := d.load(c)
	return queue >= d.limit || kv >= d.limit && d.kv*d.limit < 1
}

// Filter implements epp.Filter.
func (d utilizationDetector) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	if !sheds(r.Request) {
		return c
	}
	return spare(c, d.refuse, func(c *epp.Candidate) bool { return !d.full(c) && (d.refuse || !d.isStale(r.Now, c)) })
}

// Saturation implements epp.Detector.
func (d utilizationDetector) Saturation(now time.Time, c []epp.Candidate) float64 {
	return mean(c, func(c *epp.Candidate) float64 {
		if d.isStale(now, c) {
			return 1
		}
		return max(d.load(c))
	})
}
