package api_test

import "github.com/tandem-serving/tandem/sim/simtest"

// recordings are those of vLLM.
var recordings = simtest.Recordings{
	Free: []string{"id", "item_id", "request_id", "created", "created_at", "text", "content", "delta", "system_fingerprint", "logprobs", "prompt_logprobs",
		"tokens", "token_strs", "count", "token_ids", "prompt_token_ids", "root", "prompt", "input_tokens", "original_input_tokens",
		"token", "logprob", "rank", "decoded_token", "text_offset", "token_logprobs",
		"remote_block_ids", "remote_engine_id", "remote_request_id", "remote_port"},
	Counts: []string{"prompt_tokens", "total_tokens", "completion_tokens", "cached_tokens", "created_cache_tokens", "cache_write_tokens",
		"cache_read_input_tokens", "cache_creation_input_tokens", "remote_num_tokens", "remote_prefill_cached_tokens"},
}
