package metrics

import "fmt"

// VLLMContentType is the content type of vLLM's page.
const VLLMContentType = "text/plain; version=1.0.0; charset=utf-8"

// Cache describes vLLM's KV cache for its page.
type Cache struct {
	Blocks    int // with the null block
	BlockSize int // tokens
}

// VLLMPage makes the page of a vLLM engine that serves a model.
func VLLMPage(servedModel string, c Cache) *Page {
	p := NewPage(vllmFamilies, Label{"engine", "0"}, Label{"model_name", servedModel})
	p.showAll()
	p.Set(CacheConfigInfo, c.labels(), 1)
	p.Set(SleepState, "awake", 1)
	return p
}

func (c Cache) labels() string {
	return fmt.Sprintf(`block_size="%d",cache_dtype="auto",enable_prefix_caching="True",engine="0",hash_block_size="None",kv_cache_size_tokens="%d",num_gpu_blocks="%d",prefix_caching_hash_algo="sha256"`,
		c.BlockSize, c.Blocks*c.BlockSize, c.Blocks)
}

// The families of vLLM's page, in the real page's order. The table vllmFamilies has the name and help text of each. Package sim's
// documentation lists the real engine's families that are missing here.
const (
	TransferSeconds Family = iota
	PostSeconds
	TransferBytes
	TransferDescriptors
	FailedTransfers
	FailedNotifications
	KVExpired
	NotificationsAfterExpiry
	RequestsRunning
	RequestsWaiting
	WaitingByReason
	KVFetchByStage
	SleepState
	KVCacheUsage
	PrefixQueries
	PrefixHits
	ExternalQueries
	ExternalHits
	Preemptions
	PromptTokens
	PromptBySource
	PromptCached
	CachedBySource
	GenerationTokens
	RequestSuccess
	AdmissionRejections
	RequestPromptTokens
	RequestGenerationTokens
	IterationTokens
	TimeToFirstToken
	InterTokenLatency
	E2ELatency
	QueueTime
	InferenceTime
	PrefillTime
	DecodeTime
	RequestKVComputed
	CacheConfigInfo
)

var vllmFamilies = []Info{
	TransferSeconds:          {Name: "vllm:nixl_xfer_time_seconds", Kind: Histogram, Help: "Duration of KV reads.", Bounds: transferBounds},
	PostSeconds:              {Name: "vllm:nixl_post_time_seconds", Kind: Histogram, Help: "Time to post KV reads.", Bounds: transferBounds},
	TransferBytes:            {Name: "vllm:nixl_bytes_transferred", Kind: Histogram, Help: "Bytes of KV per read.", Bounds: byteBounds},
	TransferDescriptors:      {Name: "vllm:nixl_num_descriptors", Kind: Histogram, Help: "Descriptors per KV read.", Bounds: descriptorBounds},
	FailedTransfers:          {Name: "vllm:nixl_num_failed_transfers", Kind: Counter, Help: "KV reads that failed, with handshakes and notifications that failed."},
	FailedNotifications:      {Name: "vllm:nixl_num_failed_notifications", Kind: Counter, Help: "Notifications that failed."},
	KVExpired:                {Name: "vllm:nixl_num_kv_expired_reqs", Kind: Counter, Help: "Requests whose KV lease ran out."},
	NotificationsAfterExpiry: {Name: "vllm:nixl_num_notifications_after_expiry", Kind: Counter, Help: "Notifications for requests that no lease holds."},
	RequestsRunning:          {Name: "vllm:num_requests_running", Kind: Gauge, Help: "Requests in execution batches."},
	RequestsWaiting:          {Name: "vllm:num_requests_waiting", Kind: Gauge, Help: "Requests waiting to be processed."},
	WaitingByReason:          {Name: "vllm:num_requests_waiting_by_reason", Kind: Gauge, Help: "Waiting requests by reason.", Label: "reason", Series: []string{"capacity", "deferred"}},
	KVFetchByStage:           {Name: "vllm:num_requests_kv_fetch_by_stage", Kind: Gauge, Help: "Waiting requests by stage of their KV load.", Label: "stage", Series: []string{"waiting_to_start", "in_progress", "completed_waiting"}},
	SleepState:               {Name: "vllm:engine_sleep_state", Kind: Gauge, Help: "Sleep state; always awake.", Label: "sleep_state", Series: []string{"awake", "weights_offloaded", "discard_all"}},
	KVCacheUsage:             {Name: "vllm:kv_cache_usage_perc", Kind: Gauge, Help: "Share of KV blocks in use; 1 is all."},
	PrefixQueries:            {Name: "vllm:prefix_cache_queries", Kind: Counter, Help: "Tokens looked up in the prefix cache."},
	PrefixHits:               {Name: "vllm:prefix_cache_hits", Kind: Counter, Help: "Tokens found in the prefix cache."},
	ExternalQueries:          {Name: "vllm:external_prefix_cache_queries", Kind: Counter, Help: "Tokens looked up in other engines."},
	ExternalHits:             {Name: "vllm:external_prefix_cache_hits", Kind: Counter, Help: "Tokens found in other engines."},
	Preemptions:              {Name: "vllm:num_preemptions", Kind: Counter, Help: "Sequences that lost their blocks to others."},
	PromptTokens:             {Name: "vllm:prompt_tokens", Kind: Counter, Help: "Prompt tokens processed."},
	PromptBySource:           {Name: "vllm:prompt_tokens_by_source", Kind: Counter, Help: "Prompt tokens by where their KV came from.", Label: "source", Series: []string{"local_compute", "local_cache_hit", "external_kv_transfer"}},
	PromptCached:             {Name: "vllm:prompt_tokens_cached", Kind: Counter, Help: "Prompt tokens that were not computed here."},
	CachedBySource:           {Name: "vllm:prompt_tokens_cached_by_source", Kind: Counter, Help: "Cached prompt tokens by tier, at admission.", Label: "source", Series: []string{"device", "host", "p2p", "disk", "external_unspecified"}},
	GenerationTokens:         {Name: "vllm:generation_tokens", Kind: Counter, Help: "Tokens generated."},
	RequestSuccess:           {Name: "vllm:request_success", Kind: Counter, Help: "Requests that ended, by reason.", Label: "finished_reason", Series: []string{"stop", "length", "abort", "error", "repetition"}},
	AdmissionRejections:      {Name: "vllm:admission_rejections", Kind: Counter, Help: "Requests refused by a queue limit.", Label: "reason", Series: []string{"max_num_queued_reqs", "max_num_queued_tokens"}, Without: "engine"},
	RequestPromptTokens:      {Name: "vllm:request_prompt_tokens", Kind: Histogram, Help: "Prompt tokens per request.", Bounds: lengthBounds},
	RequestGenerationTokens:  {Name: "vllm:request_generation_tokens", Kind: Histogram, Help: "Generated tokens per request.", Bounds: lengthBounds},
	IterationTokens:          {Name: "vllm:iteration_tokens_total", Kind: Histogram, Help: "Tokens per engine step.", Bounds: lengthBounds},
	TimeToFirstToken:         {Name: "vllm:time_to_first_token_seconds", Kind: Histogram, Help: "Time to first token.", Bounds: latencyBounds},
	InterTokenLatency:        {Name: "vllm:inter_token_latency_seconds", Kind: Histogram, Help: "Time between tokens.", Bounds: latencyBounds},
	E2ELatency:               {Name: "vllm:e2e_request_latency_seconds", Kind: Histogram, Help: "Time of whole requests.", Bounds: latencyBounds},
	QueueTime:                {Name: "vllm:request_queue_time_seconds", Kind: Histogram, Help: "Time before the first step.", Bounds: latencyBounds},
	InferenceTime:            {Name: "vllm:request_inference_time_seconds", Kind: Histogram, Help: "Time from the first step on.", Bounds: latencyBounds},
	PrefillTime:              {Name: "vllm:request_prefill_time_seconds", Kind: Histogram, Help: "Time from the first step to the first token.", Bounds: latencyBounds},
	DecodeTime:               {Name: "vllm:request_decode_time_seconds", Kind: Histogram, Help: "Time from the first token on.", Bounds: latencyBounds},
	RequestKVComputed:        {Name: "vllm:request_prefill_kv_computed_tokens", Kind: Histogram, Help: "Prompt tokens less those reported as cached.", Bounds: lengthBounds},
	CacheConfigInfo:          {Name: "vllm:cache_config_info", Kind: Gauge, Help: "The cache's configuration, as labels.", Raw: true},
}

var (
	latencyBounds    = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120}
	transferBounds   = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5}
	byteBounds       = []float64{1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30}
	descriptorBounds = []float64{1, 4, 16, 64, 256, 1024, 4096}
	lengthBounds     = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
)
