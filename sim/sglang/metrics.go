package sglang

import (
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/metrics"
)

// The families of the page that ranks write.
const (
	runningReqs metrics.Family = iota
	queueReqs
	tokenUsage
	usedTokens
	availableTokens
	evictableTokens
	kvUsedTokens
	cacheHitRate
	bootstrapQueue
	inflightQueue
	preallocQueue
	transferQueue
	deferredReleases
	bootstrapFailed
	transferFailed
	transferLatency
	transferBootstrap
	transferAlloc
	transferMegabytes
	transferSpeed
	maxTotalTokens
	pageSize
	numPages
	contextLen
)

var rankFamilies = []metrics.Info{
	runningReqs:       {Name: "sglang:num_running_reqs", Kind: metrics.Gauge, Help: "The number of running requests."},
	queueReqs:         {Name: "sglang:num_queue_reqs", Kind: metrics.Gauge, Help: "The number of requests in the waiting queue."},
	tokenUsage:        {Name: "sglang:token_usage", Kind: metrics.Gauge, Help: "The token usage."},
	usedTokens:        {Name: "sglang:num_used_tokens", Kind: metrics.Gauge, Help: "The number of used tokens."},
	availableTokens:   {Name: "sglang:kv_available_tokens", Kind: metrics.Gauge, Help: "Free tokens of the KV pool."},
	evictableTokens:   {Name: "sglang:kv_evictable_tokens", Kind: metrics.Gauge, Help: "Tokens of the KV pool that only the prefix cache has."},
	kvUsedTokens:      {Name: "sglang:kv_used_tokens", Kind: metrics.Gauge, Help: "Tokens of the KV pool that requests have."},
	cacheHitRate:      {Name: "sglang:cache_hit_rate", Kind: metrics.Gauge, Help: "The prefix cache hit rate."},
	bootstrapQueue:    {Name: "sglang:num_prefill_bootstrap_queue_reqs", Kind: metrics.Gauge, Help: "Prefill legs that wait for decode."},
	inflightQueue:     {Name: "sglang:num_prefill_inflight_queue_reqs", Kind: metrics.Gauge, Help: "Prefill legs whose KV is being transferred."},
	preallocQueue:     {Name: "sglang:num_decode_prealloc_queue_reqs", Kind: metrics.Gauge, Help: "Decode legs without pages."},
	transferQueue:     {Name: "sglang:num_decode_transfer_queue_reqs", Kind: metrics.Gauge, Help: "Decode legs that wait for KV."},
	deferredReleases:  {Name: "sglang:num_decode_deferred_kv_release_reqs", Kind: metrics.Gauge, Help: "Decode legs whose pages wait for prefill."},
	bootstrapFailed:   {Name: "sglang:num_bootstrap_failed_reqs", Kind: metrics.Counter, Help: "Legs that failed before their transfer."},
	transferFailed:    {Name: "sglang:num_transfer_failed_reqs", Kind: metrics.Counter, Help: "Legs that failed in their transfer."},
	transferLatency:   {Name: "sglang:kv_transfer_latency_ms", Kind: metrics.Histogram, Help: "Time of KV transfers in ms.", Bounds: msBounds},
	transferBootstrap: {Name: "sglang:kv_transfer_bootstrap_ms", Kind: metrics.Histogram, Help: "Time in which the legs met in ms.", Bounds: msBounds},
	transferAlloc:     {Name: "sglang:kv_transfer_alloc_ms", Kind: metrics.Histogram, Help: "Time in which pages were found in ms.", Bounds: msBounds},
	transferMegabytes: {Name: "sglang:kv_transfer_total_mb", Kind: metrics.Histogram, Help: "Size of KV transfers in MB.", Bounds: sizeBounds},
	transferSpeed:     {Name: "sglang:kv_transfer_speed_gb_s", Kind: metrics.Histogram, Help: "Speed of KV transfers in GB/s.", Bounds: sizeBounds},
	maxTotalTokens:    {Name: "sglang:max_total_num_tokens", Kind: metrics.Gauge, Help: "Maximum total number of tokens in the KV cache pool."},
	pageSize:          {Name: "sglang:page_size", Kind: metrics.Gauge, Help: "KV cache page size."},
	numPages:          {Name: "sglang:num_pages", Kind: metrics.Gauge, Help: "Total number of KV cache pages."},
	contextLen:        {Name: "sglang:context_len", Kind: metrics.Gauge, Help: "Maximum context length."},
}

// The families of the page that the front end writes.
const (
	timeToFirstToken metrics.Family = iota
	e2eLatency
	promptTokens
	generationTokens
	numRequests
	cachedTokens
	abortedRequests
	interTokenLatency
	httpRequests
)

var frontFamilies = []metrics.Info{
	timeToFirstToken:  {Name: "sglang:time_to_first_token_seconds", Kind: metrics.Histogram, Help: "Time to first token in seconds.", Label: "is_streaming", Bounds: latencyBounds},
	e2eLatency:        {Name: "sglang:e2e_request_latency_seconds", Kind: metrics.Histogram, Help: "End-to-end request latency in seconds.", Label: "is_streaming", Bounds: latencyBounds},
	promptTokens:      {Name: "sglang:prompt_tokens", Kind: metrics.Counter, Help: "Prefill tokens processed.", Label: "is_streaming"},
	generationTokens:  {Name: "sglang:generation_tokens", Kind: metrics.Counter, Help: "Generation tokens processed.", Label: "is_streaming"},
	numRequests:       {Name: "sglang:num_requests", Kind: metrics.Counter, Help: "Requests processed.", Label: "is_streaming"},
	cachedTokens:      {Name: "sglang:cached_tokens", Kind: metrics.Counter, Help: "Cached prompt tokens.", Label: "cache_source"},
	abortedRequests:   {Name: "sglang:num_aborted_requests", Kind: metrics.Counter, Help: "Requests aborted."},
	interTokenLatency: {Name: "sglang:inter_token_latency_seconds", Kind: metrics.Histogram, Help: "Inter-token latency in seconds.", Bounds: latencyBounds},
	httpRequests:      {Name: "sglang:http_requests", Kind: metrics.Counter, Help: "HTTP requests.", Raw: true},
}

var (
	latencyBounds = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1, 2, 4, 8, 10, 20, 40, 80, 200, 400}
	msBounds      = []float64{1, 5, 10, 50, 100, 500, 1000, 5000, 10000, 60000}
	sizeBounds    = []float64{0.01, 0.1, 1, 10, 100, 1000, 10000}
)

// engineType returns the mode as the page calls it.
func (m Mode) engineType() string {
	if m == Plain {
		return "unified"
	}
	return string(m)
}

func frontLabels(cfg *Config) []metrics.Label {
	return []metrics.Label{{Name: "engine_type", Value: cfg.Mode.engineType()}, {Name: "model_name", Value: cfg.ServedModelName}}
}

func newFrontPage(cfg *Config) *metrics.Page {
	return metrics.NewPage(frontFamilies, frontLabels(cfg)...)
}

// newPage makes the page of a rank. Only what does not change is on it before the first batch.
func newPage(cfg *Config, number int) *metrics.Page {
	labels := frontLabels(cfg)
	for _, name := range []string{"moe_ep_rank", "pp_rank", "tp_rank"} {
		labels = append(labels, metrics.Label{Name: name, Value: "0"})
	}
	if cfg.Ranks > 1 {
		labels = append(labels, metrics.Label{Name: "dp_rank", Value: strconv.Itoa(number)})
	}
	p := metrics.NewPage(rankFamilies, labels...)
	p.Set(maxTotalTokens, "", float64(cfg.pages()*cfg.PageSize))
	p.Set(pageSize, "", float64(cfg.PageSize))
	p.Set(numPages, "", float64(cfg.pages()))
	p.Set(contextLen, "", float64(cfg.ContextLength))
	return p
}

// Stepped implements core.Protocol. The gauges are those of the last batch: they say nothing of legs that wait while no batch runs.
func (r *rank) Stepped(int) {
	l, p := r.load(), r.page
	p.Set(queueReqs, "", float64(l.Waiting-l.Bootstrap-l.Inflight-l.Prealloc-l.Transfer))
	p.Set(bootstrapQueue, "", float64(l.Bootstrap))
	p.Set(preallocQueue, "", float64(l.Prealloc))
	p.Set(transferQueue, "", float64(l.Transfer))
	p.Set(deferredReleases, "", float64(l.Deferred))
	p.Set(cacheHitRate, "", r.hitRate())
	r.settle(l)
}

// settle writes the gauges of what a batch has used, which change as well when a request of that batch ends after it.
func (r *rank) settle(l Load) {
	p := r.page
	p.Set(runningReqs, "", float64(l.Running))
	p.Set(inflightQueue, "", float64(l.Inflight))
	p.Set(usedTokens, "", float64(l.Used))
	p.Set(kvUsedTokens, "", float64(l.Used))
	p.Set(availableTokens, "", float64(l.Total-l.Used-l.Cached))
	p.Set(evictableTokens, "", float64(l.Cached))
	p.Set(tokenUsage, "", l.Usage(2))
}

// hitRate returns which share of the prompts that were computed here was in the prefix cache.
func (r *rank) hitRate() float64 {
	if r.counts.prompt == 0 {
		return 0
	}
	return float64(r.counts.hit) / float64(r.counts.prompt)
}

// Drew implements core.Protocol.
func (r *rank) Drew(s *core.Sequence, now time.Time) {
	if s.Times.First.IsZero() {
		s.Times.First = now
	} else {
		r.engine.page.Observe(interTokenLatency, now.Sub(s.Times.Last).Seconds())
	}
	s.Times.Last = now
}

// countFinished counts a request that has its answer.
func (r *rank) countFinished(s *core.Sequence) {
	p, streaming := r.engine.page, strconv.FormatBool(legOf(s).req.Stream)
	now := time.Now()
	if r.cfg.Mode != Prefill {
		p.ObserveIn(timeToFirstToken, streaming, s.Times.First.Sub(s.Times.Queued).Seconds())
	}
	p.ObserveIn(e2eLatency, streaming, now.Sub(s.Times.Queued).Seconds())
	p.AddTo(promptTokens, streaming, float64(s.Prompt))
	p.AddTo(generationTokens, streaming, float64(s.Generated()))
	p.AddTo(numRequests, streaming, 1)
	p.AddTo(cachedTokens, "device", float64(s.Usage.Cached))
}

// countFailure counts a leg that failed at a stage.
func (r *rank) countFailure(at stage) {
	switch at {
	case bootstrapping, handshaking, preallocating:
		r.page.Add(bootstrapFailed, 1)
	case prefilling, inflight, transferring:
		r.page.Add(transferFailed, 1)
	}
}

// countTransfer counts a transfer from this rank.
func (r *rank) countTransfer(took time.Duration, bytes int) {
	r.counts.kvBytesServed += int64(bytes)
	r.page.Observe(transferLatency, milliseconds(took))
	r.page.Observe(transferMegabytes, float64(bytes)/1e6)
	r.page.Observe(transferSpeed, float64(bytes)/1e9/max(took.Seconds(), 1e-9))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// CountCall counts a call of the data port.
func (e *Engine) CountCall(method, path string) {
	e.page.AddTo(httpRequests, `endpoint=`+strconv.Quote(path)+`,method=`+strconv.Quote(method), 1)
}

// MetricsPage returns the engine's metrics page, in the text format of Prometheus.
func (e *Engine) MetricsPage() []byte {
	pages := make([]*metrics.Page, len(e.ranks))
	for i, r := range e.ranks {
		pages[i] = r.page
	}
	return append(metrics.Render(e.page), metrics.Render(pages...)...)
}
