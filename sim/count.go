package sim

import (
	"time"

	"github.com/tandem-serving/tandem/sim/metrics"
)

// countAdmission counts where the KV of a prompt comes from. A sequence that was preempted has been counted before.
func (e *Engine) countAdmission(s *sequence) {
	if !s.times.started.IsZero() {
		return
	}
	s.times.started = time.Now()
	s.hit = s.computed
	s.usage.Cached = s.computed
	s.usage.Created = s.prompt/e.cfg.KV.BlockSize*e.cfg.KV.BlockSize - s.computed
	m := e.metrics
	m.Add(metrics.PrefixQueries, float64(s.prompt))
	m.Add(metrics.PrefixHits, float64(s.computed))
	m.Add(metrics.ExternalQueries, float64(s.prompt-s.computed))
	m.AddTo(metrics.CachedBySource, "device", float64(s.computed))
	if s.load == loadWanted {
		s.usage.Created = 0
		m.Add(metrics.ExternalHits, float64(s.prompt-s.computed))
		m.AddTo(metrics.CachedBySource, "p2p", float64(s.prompt-s.computed))
	}
}

// countToken counts a drawn token. The prompt is counted with the first.
func (e *Engine) countToken(s *sequence, now time.Time) {
	m := e.metrics
	m.Add(metrics.GenerationTokens, 1)
	if !s.times.first.IsZero() {
		m.Observe(metrics.InterTokenLatency, now.Sub(s.times.last).Seconds())
		s.times.last = now
		return
	}
	s.times.first, s.times.last = now, now
	m.Observe(metrics.TimeToFirstToken, now.Sub(s.times.queued).Seconds())
	local := s.prompt - s.hit - s.external
	m.Add(metrics.PromptTokens, float64(s.prompt))
	m.AddTo(metrics.PromptBySource, "local_compute", float64(local))
	m.AddTo(metrics.PromptBySource, "local_cache_hit", float64(s.hit))
	m.AddTo(metrics.PromptBySource, "external_kv_transfer", float64(s.external))
	m.Add(metrics.PromptCached, float64(s.hit+s.external))
}

// countFinished counts a sequence that ended by itself. The real engine does not count one whose client left, either.
func (e *Engine) countFinished(s *sequence, reason string, now time.Time) {
	m := e.metrics
	m.AddTo(metrics.RequestSuccess, reason, 1)
	m.Observe(metrics.RequestPromptTokens, float64(s.prompt))
	m.Observe(metrics.RequestGenerationTokens, float64(s.generated()))
	m.Observe(metrics.RequestKVComputed, float64(s.prompt-max(0, s.usage.Cached)))
	m.Observe(metrics.E2ELatency, now.Sub(s.times.queued).Seconds())
	m.Observe(metrics.QueueTime, s.times.started.Sub(s.times.queued).Seconds())
	m.Observe(metrics.InferenceTime, now.Sub(s.times.started).Seconds())
	if !s.times.first.IsZero() {
		m.Observe(metrics.PrefillTime, s.times.first.Sub(s.times.started).Seconds())
		m.Observe(metrics.DecodeTime, now.Sub(s.times.first).Seconds())
	}
}

// countTransfer counts a transfer of KV to this engine.
func (e *Engine) countTransfer(took time.Duration, bytes, descriptors int) {
	e.metrics.Observe(metrics.TransferSeconds, took.Seconds())
	e.metrics.Observe(metrics.PostSeconds, 0)
	e.metrics.Observe(metrics.TransferBytes, float64(bytes))
	e.metrics.Observe(metrics.TransferDescriptors, float64(descriptors))
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
	e.call(func() {
		l = Load{Running: len(e.running), Waiting: len(e.waiting), CacheUsage: float64(e.pool.Used()) / float64(e.pool.Total())}
		for s := range e.live {
			switch s.load {
			case loadWanted:
				l.ToLoad++
			case loadRunning, loadStuck:
				l.Loading++
			case loaded:
				if s.computed < s.prompt { // it has not had its first step
					l.Loaded++
				}
			}
		}
	})
	return l
}

// MetricsPage returns the engine's metrics page, in the text format of Prometheus.
func (e *Engine) MetricsPage() []byte {
	l, m := e.Load(), e.metrics
	m.Set(metrics.RequestsRunning, "", float64(l.Running))
	m.Set(metrics.RequestsWaiting, "", float64(l.Waiting+l.Loading))
	m.Set(metrics.WaitingByReason, "capacity", float64(l.Waiting))
	m.Set(metrics.WaitingByReason, "deferred", float64(l.Loading))
	m.Set(metrics.KVFetchByStage, "waiting_to_start", float64(l.ToLoad))
	m.Set(metrics.KVFetchByStage, "in_progress", float64(l.Loading))
	m.Set(metrics.KVFetchByStage, "completed_waiting", float64(l.Loaded))
	m.Set(metrics.KVCacheUsage, "", l.CacheUsage)
	return m.Render()
}

// ResetPrefixCache empties the prefix cache.
func (e *Engine) ResetPrefixCache() { e.call(e.pool.Reset) }
