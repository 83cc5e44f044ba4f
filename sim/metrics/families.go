package metrics

// The families of the page, in the real page's order. The table families has the name and help text of each. Package sim's
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

var families = []familyInfo{
	TransferSeconds:          {name: "vllm:nixl_xfer_time_seconds", kind: histogramKind, help: "Duration of KV reads.", bounds: transferBounds},
	PostSeconds:              {name: "vllm:nixl_post_time_seconds", kind: histogramKind, help: "Time to post KV reads.", bounds: transferBounds},
	TransferBytes:            {name: "vllm:nixl_bytes_transferred", kind: histogramKind, help: "Bytes of KV per read.", bounds: byteBounds},
	TransferDescriptors:      {name: "vllm:nixl_num_descriptors", kind: histogramKind, help: "Descriptors per KV read.", bounds: descriptorBounds},
	FailedTransfers:          {name: "vllm:nixl_num_failed_transfers", kind: counterKind, help: "KV reads that failed, with handshakes and notifications that failed."},
	FailedNotifications:      {name: "vllm:nixl_num_failed_notifications", kind: counterKind, help: "Notifications that failed."},
	KVExpired:                {name: "vllm:nixl_num_kv_expired_reqs", kind: counterKind, help: "Requests whose KV lease ran out."},
	NotificationsAfterExpiry: {name: "vllm:nixl_num_notifications_after_expiry", kind: counterKind, help: "Notifications for requests that no lease holds."},
	RequestsRunning:          {name: "vllm:num_requests_running", kind: gaugeKind, help: "Requests in execution batches."},
	RequestsWaiting:          {name: "vllm:num_requests_waiting", kind: gaugeKind, help: "Requests waiting to be processed."},
	WaitingByReason:          {name: "vllm:num_requests_waiting_by_reason", kind: gaugeKind, help: "Waiting requests by reason.", label: "reason", series: []string{"capacity", "deferred"}},
	KVFetchByStage:           {name: "vllm:num_requests_kv_fetch_by_stage", kind: gaugeKind, help: "Waiting requests by stage of their KV load.", label: "stage", series: []string{"waiting_to_start", "in_progress", "completed_waiting"}},
	SleepState:               {name: "vllm:engine_sleep_state", kind: gaugeKind, help: "Sleep state; always awake.", label: "sleep_state", series: []string{"awake", "weights_offloaded", "discard_all"}},
	KVCacheUsage:             {name: "vllm:kv_cache_usage_perc", kind: gaugeKind, help: "Share of KV blocks in use; 1 is all."},
	PrefixQueries:            {name: "vllm:prefix_cache_queries", kind: counterKind, help: "Tokens looked up in the prefix cache."},
	PrefixHits:               {name: "vllm:prefix_cache_hits", kind: counterKind, help: "Tokens found in the prefix cache."},
	ExternalQueries:          {name: "vllm:external_prefix_cache_queries", kind: counterKind, help: "Tokens looked up in other engines."},
	ExternalHits:             {name: "vllm:external_prefix_cache_hits", kind: counterKind, help: "Tokens found in other engines."},
	Preemptions:              {name: "vllm:num_preemptions", kind: counterKind, help: "Sequences that lost their blocks to others."},
	PromptTokens:             {name: "vllm:prompt_tokens", kind: counterKind, help: "Prompt tokens processed."},
	PromptBySource:           {name: "vllm:prompt_tokens_by_source", kind: counterKind, help: "Prompt tokens by where their KV came from.", label: "source", series: []string{"local_compute", "local_cache_hit", "external_kv_transfer"}},
	PromptCached:             {name: "vllm:prompt_tokens_cached", kind: counterKind, help: "Prompt tokens that were not computed here."},
	CachedBySource:           {name: "vllm:prompt_tokens_cached_by_source", kind: counterKind, help: "Cached prompt tokens by tier, at admission.", label: "source", series: []string{"device", "host", "p2p", "disk", "external_unspecified"}},
	GenerationTokens:         {name: "vllm:generation_tokens", kind: counterKind, help: "Tokens generated."},
	RequestSuccess:           {name: "vllm:request_success", kind: counterKind, help: "Requests that ended, by reason.", label: "finished_reason", series: []string{"stop", "length", "abort", "error", "repetition"}},
	AdmissionRejections:      {name: "vllm:admission_rejections", kind: counterKind, help: "Requests refused by a queue limit.", label: "reason", series: []string{"max_num_queued_reqs", "max_num_queued_tokens"}, frontEnd: true},
	RequestPromptTokens:      {name: "vllm:request_prompt_tokens", kind: histogramKind, help: "Prompt tokens per request.", bounds: lengthBounds},
	RequestGenerationTokens:  {name: "vllm:request_generation_tokens", kind: histogramKind, help: "Generated tokens per request.", bounds: lengthBounds},
	IterationTokens:          {name: "vllm:iteration_tokens_total", kind: histogramKind, help: "Tokens per engine step.", bounds: lengthBounds},
	TimeToFirstToken:         {name: "vllm:time_to_first_token_seconds", kind: histogramKind, help: "Time to first token.", bounds: latencyBounds},
	InterTokenLatency:        {name: "vllm:inter_token_latency_seconds", kind: histogramKind, help: "Time between tokens.", bounds: latencyBounds},
	E2ELatency:               {name: "vllm:e2e_request_latency_seconds", kind: histogramKind, help: "Time of whole requests.", bounds: latencyBounds},
	QueueTime:                {name: "vllm:request_queue_time_seconds", kind: histogramKind, help: "Time before the first step.", bounds: latencyBounds},
	InferenceTime:            {name: "vllm:request_inference_time_seconds", kind: histogramKind, help: "Time from the first step on.", bounds: latencyBounds},
	PrefillTime:              {name: "vllm:request_prefill_time_seconds", kind: histogramKind, help: "Time from the first step to the first token.", bounds: latencyBounds},
	DecodeTime:               {name: "vllm:request_decode_time_seconds", kind: histogramKind, help: "Time from the first token on.", bounds: latencyBounds},
	RequestKVComputed:        {name: "vllm:request_prefill_kv_computed_tokens", kind: histogramKind, help: "Prompt tokens less those reported as cached.", bounds: lengthBounds},
	CacheConfigInfo:          {name: "vllm:cache_config_info", kind: gaugeKind, help: "The cache's configuration, as labels.", label: "all"},
}

var (
	latencyBounds    = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120}
	transferBounds   = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5}
	byteBounds       = []float64{1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30}
	descriptorBounds = []float64{1, 4, 16, 64, 256, 1024, 4096}
	lengthBounds     = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
)
