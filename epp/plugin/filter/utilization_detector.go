package filter

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// UtilizationDetector measures how full engines are by their metrics: the larger of queue / threshold and KV cache used /
// threshold. As saturationDetector it has requests of negative priority refused while the mean over all prefill endpoints, or
// over all decode endpoints, is 1 or more. In a profile it drops endpoints that exceed a threshold by the headroom.
//
// The queue is the number of waiting requests on the engine's last metrics page, less those that wait for their KV cache. If
// it has reached the threshold, the requests that this picker has sent since the page are added, and those that have ended
// are subtracted: the page may be 0.2 s old. A shorter queue is taken as it is, because the engine may have room for the new
// ones. llm-d counts all that is in flight and not on the page, so that a burst to an idle engine looks like a queue.
type UtilizationDetector struct {
	// QueueDepthThreshold is how many requests may wait in an engine. Default 5.
	QueueDepthThreshold int `yaml:"queueDepthThreshold"`
	// QueueDepthPerRunning is how many requests may wait for each running one, if that is more than queueDepthThreshold. With
	// 1, a request waits about as long as another takes. An engine with a large batch so gets a long queue, and one with a
	// small batch a short queue. Default 0: the queue does not depend on the batch.
	QueueDepthPerRunning float64 `yaml:"queueDepthPerRunning"`
	// KVCacheUtilThreshold is the share of an engine's KV cache that may be used, above 0 and at most 1. Default 0.8.
	KVCacheUtilThreshold float64 `yaml:"kvCacheUtilThreshold"`
	// MetricsStalenessThreshold is the age of metrics above which an endpoint counts as full. The larger of this and the flag
	// --metrics-staleness-threshold applies, because pages of idle engines are read once a second. Default 200ms.
	MetricsStalenessThreshold time.Duration `yaml:"metricsStalenessThreshold"`
	// Headroom is the share of a threshold by which an endpoint may exceed it in a profile. If the KV cache threshold and the
	// headroom reach the whole KV cache, no endpoint is dropped for its KV cache. Default 0.
	Headroom float64 `yaml:"headroom"`
	// OnAllFull says what a profile does when it would drop all endpoints: keep (the default) drops none; refuse answers 429.
	// With refuse, metrics count until they are three times as old as --metrics-staleness-threshold, and older ones are
	// ignored: unreadable metrics are no reason to refuse all requests.
	OnAllFull string `yaml:"onAllFull"`
}

// NewUtilizationDetector returns the parameters with their defaults.
func NewUtilizationDetector() epp.Plugin {
	return &UtilizationDetector{QueueDepthThreshold: 5, KVCacheUtilThreshold: 0.8, MetricsStalenessThreshold: 200 * time.Millisecond,
		OnAllFull: allFullKeep}
}

// Problems implements epp.Plugin.
func (p *UtilizationDetector) Problems(report epp.Report) {
	param.AtLeast(report, "queueDepthThreshold", p.QueueDepthThreshold, 1)
	param.Within(report, "queueDepthPerRunning", p.QueueDepthPerRunning, 0, 1000)
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
	limit                 float64 // load at which a profile drops an endpoint
	refuse                bool
}

// load returns how full an endpoint's last metrics say it is: 1 = at the threshold, 0 = unknown.
func (d *utilizationDetector) load(c *epp.Candidate) (queue, kv float64) {
	signals := &c.Load.Signals // all three are read from the page
	waiting, threshold := d.waiting(signals)
	if waiting >= threshold {
		waiting += float64(c.InFlight.Requests - c.Load.Sent.Requests)
	}
	if waiting > 0 {
		queue = waiting / threshold
	}
	if used, known := signals.Value(epp.KVUsage); known && used > 0 {
		kv = used / d.kv
	}
	return queue, kv
}

// waiting returns the length of the queue on an endpoint's page, 0 if it is unknown, and the one that is full.
func (d *utilizationDetector) waiting(signals *epp.Values) (waiting, threshold float64) {
	threshold = d.queue
	waiting, known := signals.Value(epp.Waiting)
	if !known {
		return 0, threshold
	}
	delayed, _ := signals.Value(epp.Delayed)
	if d.perRunning > 0 {
		running, _ := signals.Value(epp.Running)
		threshold = max(threshold, d.perRunning*running)
	}
	return waiting - delayed, threshold
}

// isStale reports whether metrics are too old. Trust falls below 1 at the picker's own limit, so the larger limit applies.
func (d *utilizationDetector) isStale(now time.Time, c *epp.Candidate) bool {
	return c.Trust < 1 && now.Sub(c.Load.At) > d.stale
}

// full reports whether a profile drops an endpoint for its load. Unknown load (Trust 0) does not drop it: an endpoint whose
// last page showed a queue must not stay full for ever.
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

// Step implements epp.StepDetector. A request counts only once a queue has the length that is full.
func (d utilizationDetector) Step(c []epp.Candidate) float64 {
	for i := range c {
		if waiting, threshold := d.waiting(&c[i].Load.Signals); waiting >= threshold {
			return 1 / d.queue / float64(len(c))
		}
	}
	return 0
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
