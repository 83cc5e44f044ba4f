package sim

import (
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/metrics"
)

// Admitted implements core.Protocol. It counts where the KV of a prompt comes from.
func (c *connector) Admitted(s *core.Sequence) {
	s.Usage.Cached = s.Computed
	s.Usage.Created = s.Prompt/c.cfg.KV.BlockSize*c.cfg.KV.BlockSize - s.Computed
	m := c.metrics
	m.Add(metrics.PrefixQueries, float64(s.Prompt))
	m.Add(metrics.PrefixHits, float64(s.Computed))
	m.Add(metrics.ExternalQueries, float64(s.Prompt-s.Computed))
	m.AddTo(metrics.CachedBySource, "device", float64(s.Computed))
	if s.KV == core.Wanted {
		s.Usage.Created = 0
		hits := float64(max(0, c.toLoad(s)-s.Computed))
		m.Add(metrics.ExternalHits, hits)
		m.AddTo(metrics.CachedBySource, "p2p", hits)
	}
}

// Drew implements core.Protocol. The prompt is counted with the first token.
func (c *connector) Drew(s *core.Sequence, now time.Time) {
	m := c.metrics
	m.Add(metrics.GenerationTokens, 1)
	if !s.Times.First.IsZero() {
		m.Observe(metrics.InterTokenLatency, now.Sub(s.Times.Last).Seconds())
		s.Times.Last = now
		return
	}
	s.Times.First, s.Times.Last = now, now
	m.Observe(metrics.TimeToFirstToken, now.Sub(s.Times.Queued).Seconds())
	local := s.Prompt - s.Hit - legOf(s).external
	m.Add(metrics.PromptTokens, float64(s.Prompt))
	m.AddTo(metrics.PromptBySource, "local_compute", float64(local))
	m.AddTo(metrics.PromptBySource, "local_cache_hit", float64(s.Hit))
	m.AddTo(metrics.PromptBySource, "external_kv_transfer", float64(legOf(s).external))
	m.Add(metrics.PromptCached, float64(s.Hit+legOf(s).external))
}

// countFinished counts a sequence that ended by itself. The real engine does not count one whose client left, either.
func (c *connector) countFinished(s *core.Sequence, reason string, now time.Time) {
	m := c.metrics
	m.AddTo(metrics.RequestSuccess, reason, 1)
	m.Observe(metrics.RequestPromptTokens, float64(s.Prompt))
	m.Observe(metrics.RequestGenerationTokens, float64(s.Generated()))
	m.Observe(metrics.RequestKVComputed, float64(s.Prompt-max(0, s.Usage.Cached)))
	m.Observe(metrics.E2ELatency, now.Sub(s.Times.Queued).Seconds())
	m.Observe(metrics.QueueTime, s.Times.Started.Sub(s.Times.Queued).Seconds())
	m.Observe(metrics.InferenceTime, now.Sub(s.Times.Started).Seconds())
	if !s.Times.First.IsZero() {
		m.Observe(metrics.PrefillTime, s.Times.First.Sub(s.Times.Started).Seconds())
		m.Observe(metrics.DecodeTime, now.Sub(s.Times.First).Seconds())
	}
}

// countTransfer counts a transfer of KV to this engine.
func (c *connector) countTransfer(took time.Duration, bytes, descriptors int) {
	c.metrics.Observe(metrics.TransferSeconds, took.Seconds())
	c.metrics.Observe(metrics.PostSeconds, 0)
	c.metrics.Observe(metrics.TransferBytes, float64(bytes))
	c.metrics.Observe(metrics.TransferDescriptors, float64(descriptors))
}

// Load is how busy the engine is at one moment.
type Load struct {
	Running int // sequences in steps
	Waiting int // sequences in the queue
	ToLoad  int // of the waiting ones, those whose KV is at another engine and which have no blocks yet
	Loading int // sequences whose KV is being transferred; they are not in the queue
	Loaded  int // of the waiting ones, those whose KV has arrived
	// CacheUsage is the share of the blocks in use; 1 is all.
	CacheUsage float64
}

// Load returns how busy the engine is. An engine that has stopped reports zeros.
func (e *Engine) Load() (l Load) {
	e.core.Call(func() {
		pool := e.core.Pool()
		l = Load{Running: e.core.Runs(), Waiting: e.core.Waits(), CacheUsage: float64(pool.Used()) / float64(pool.Total())}
		for s := range e.core.Live() {
			switch s.KV {
			case core.Wanted:
				l.ToLoad++
			case core.Arriving:
				l.Loading++
			case core.Here:
				if s.Computed < s.Prompt { // it has not had its first step
					l.Loaded++
				}
			}
		}
	})
	return l
}

// MetricsPage returns the engine's metrics page, in the text format of Prometheus.
func (e *Engine) MetricsPage() []byte {
	l, m := e.Load(), e.connector.metrics
	m.Set(metrics.RequestsRunning, "", float64(l.Running))
	m.Set(metrics.RequestsWaiting, "", float64(l.Waiting+l.Loading))
	m.Set(metrics.WaitingByReason, "capacity", float64(l.Waiting))
	m.Set(metrics.WaitingByReason, "deferred", float64(l.Loading))
	m.Set(metrics.KVFetchByStage, "waiting_to_start", float64(l.ToLoad))
	m.Set(metrics.KVFetchByStage, "in_progress", float64(l.Loading))
	m.Set(metrics.KVFetchByStage, "completed_waiting", float64(l.Loaded))
	m.Set(metrics.KVCacheUsage, "", l.CacheUsage)
	return metrics.Render(m)
}
