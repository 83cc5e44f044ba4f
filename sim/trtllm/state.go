package trtllm

import (
	"context"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/metrics"
)

// State is what GET /sim/state answers.
type State struct {
	Blocks BlockState `json:"blocks"`
	// Requests counts submissions, Held requests and answers that a slow fault holds back at the moment.
	Requests int64 `json:"requests"`
	Held     int64 `json:"held"`
	// Live counts requests that have not ended, Unasked those of them that no generation engine has asked for, Fetching those that wait
	// for their KV. Kept counts context legs that have ended, whose KV no generation engine has read.
	Live     int `json:"live"`
	Unasked  int `json:"unasked"`
	Fetching int `json:"fetching"`
	Kept     int `json:"kept"`
	// Expired counts context legs whose KV was not read in time, ForeignReads transfers to this engine whose bytes were not the KV of the
	// prompt.
	Expired      int64 `json:"expired"`
	ForeignReads int64 `json:"foreign_reads"`
	// KVBytesRead is how many bytes of KV this engine has read from others, KVBytesServed how many others have read.
	KVBytesRead   int64 `json:"kv_bytes_read"`
	KVBytesServed int64 `json:"kv_bytes_served"`
}

// BlockState counts blocks.
type BlockState struct {
	Total int `json:"total"`
	Used  int `json:"used"`
}

// Idle reports whether the engine holds nothing.
func (s State) Idle() bool { return s.Live == 0 && s.Kept == 0 && s.Blocks.Used == 0 }

// State reports the engine at one moment. One that has died counts nothing.
func (e *Engine) State() (st State) {
	e.core.Call(func() { st = e.transceiver.state() })
	return st
}

func (t *transceiver) state() State {
	counted, pool := t.core.Counts(), t.core.Pool()
	st := State{Blocks: BlockState{Total: pool.Total(), Used: pool.Used()}, Requests: counted.Requests, Held: counted.Held, Expired: t.counts.expired,
		ForeignReads: t.counts.foreign, KVBytesRead: t.counts.kvBytesRead, KVBytesServed: t.counts.kvBytesServed}
	for s := range t.core.Live() {
		switch stage := legOf(s).stage; {
		case stage == kept:
			st.Kept++
		case s.Done:
		case stage == unasked:
			st.Unasked++
		case stage == fetching:
			st.Fetching++
		}
		if !s.Done {
			st.Live++
		}
	}
	return st
}

// WaitState returns the first state that satisfies ok, which must not call the engine. The error is the context's, with the state at
// that time, or core.ErrDead.
func (e *Engine) WaitState(ctx context.Context, ok func(State) bool) (State, error) {
	var found State
	err := e.core.WaitFor(ctx, func() bool {
		found = e.transceiver.state()
		return ok(found)
	})
	if err == nil {
		return found, nil
	}
	return e.State(), err
}

// The families of the metrics page.
const (
	requestsRunning metrics.Family = iota
	requestsWaiting
	cacheUtilization
	cacheHitRate
	cacheMaxBlocks
	cacheFreeBlocks
	cacheUsedBlocks
	tokensPerBlock
	requestSuccess
	promptTokens
	generationTokens
	timeToFirstToken
	e2eLatency
)

var (
	firstTokenBounds = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	latencyBounds    = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

var families = []metrics.Info{
	requestsRunning:  {Name: "trtllm_num_requests_running", Kind: metrics.Gauge, Help: "Number of active requests"},
	requestsWaiting:  {Name: "trtllm_num_requests_waiting", Kind: metrics.Gauge, Help: "Number of queued requests"},
	cacheUtilization: {Name: "trtllm_kv_cache_utilization", Kind: metrics.Gauge, Help: "KV cache utilization"},
	cacheHitRate:     {Name: "trtllm_kv_cache_hit_rate", Kind: metrics.Gauge, Help: "KV cache hit rate"},
	cacheMaxBlocks:   {Name: "trtllm_kv_cache_max_blocks", Kind: metrics.Gauge, Help: "Blocks in the KV cache"},
	cacheFreeBlocks:  {Name: "trtllm_kv_cache_free_blocks", Kind: metrics.Gauge, Help: "Free blocks in the KV cache"},
	cacheUsedBlocks:  {Name: "trtllm_kv_cache_used_blocks", Kind: metrics.Gauge, Help: "Used blocks in the KV cache"},
	tokensPerBlock:   {Name: "trtllm_kv_cache_tokens_per_block", Kind: metrics.Gauge, Help: "Tokens in a block of the KV cache"},
	requestSuccess:   {Name: "trtllm_request_success_total", Kind: metrics.Counter, Help: "Count of successfully processed requests.", Label: "finished_reason"},
	promptTokens:     {Name: "trtllm_prompt_tokens_total", Kind: metrics.Counter, Help: "Cumulative number of prompt (input) tokens processed."},
	generationTokens: {Name: "trtllm_generation_tokens_total", Kind: metrics.Counter, Help: "Cumulative number of generation (output) tokens produced."},
	timeToFirstToken: {Name: "trtllm_time_to_first_token_seconds", Kind: metrics.Histogram, Help: "Histogram of time to first token in seconds.", Bounds: firstTokenBounds},
	e2eLatency:       {Name: "trtllm_e2e_request_latency_seconds", Kind: metrics.Histogram, Help: "Histogram of end to end request latency in seconds.", Bounds: latencyBounds},
}

func newPage(cfg *Config) *metrics.Page {
	p := metrics.NewPage(families, metrics.Label{Name: "engine_type", Value: "undefined"}, metrics.Label{Name: "model_name", Value: "undefined"})
	p.Set(cacheMaxBlocks, "", float64(cfg.Blocks))
	p.Set(tokensPerBlock, "", float64(cfg.TokensPerBlock))
	p.Set(cacheHitRate, "", 0)
	return p
}

// MetricsPage returns the engine's metrics page, in the text format of Prometheus. The real one is of the last finished request.
func (e *Engine) MetricsPage() []byte {
	e.core.Call(func() {
		p, pool, loading := e.transceiver.page, e.core.Pool(), 0
		for s := range e.core.Live() {
			if legOf(s).stage == fetching && s.KV == core.Arriving {
				loading++
			}
		}
		p.Set(requestsRunning, "", float64(e.core.Runs()))
		p.Set(requestsWaiting, "", float64(e.core.Waits()+loading))
		p.Set(cacheUsedBlocks, "", float64(pool.Used()))
		p.Set(cacheFreeBlocks, "", float64(pool.Total()-pool.Used()))
		p.Set(cacheUtilization, "", float64(pool.Used())/float64(pool.Total()))
	})
	return metrics.Render(e.transceiver.page)
}

// Drew implements core.Protocol.
func (t *transceiver) Drew(s *core.Sequence, now time.Time) {
	if s.Times.First.IsZero() {
		s.Times.First = now
		t.page.Observe(timeToFirstToken, now.Sub(s.Times.Queued).Seconds())
	}
	s.Times.Last = now
}

// Stepped implements core.Protocol.
func (t *transceiver) Stepped(int) {}

// countFinished counts a request that has its answer.
func (t *transceiver) countFinished(s *core.Sequence, reason string) {
	t.page.AddTo(requestSuccess, reason, 1)
	t.page.Add(promptTokens, float64(s.Prompt))
	t.page.Add(generationTokens, float64(s.Generated()))
	t.page.Observe(e2eLatency, time.Since(s.Times.Queued).Seconds())
}
