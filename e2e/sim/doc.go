// Package sim is a simulated vLLM engine for tests and trials of prefill/decode disaggregation. It is protocol-true: its
// HTTP surface is held to recordings of the real engine (vLLM 0.32.0, testdata/golden), and its KV is real bytes that
// move between engines.
//
// What enters: HTTP requests, the KV of other engines, notifications about its own, and faults. What leaves: answers,
// hand-offs, KV, metrics and the state of its blocks. It runs inside a test (Start), or as a process (cmd/sim).
//
// # KV that proves itself
//
// The KV of a token is a digest of the KV of the token before, as it is in memory, and of the token; the next token is
// drawn from a digest of all KV bytes that the sequence attends to (kv.go, sequence.go). So the answer is a function of
// the bytes in the blocks: a plain engine and an undisturbed pair generate the same tokens, while KV that is wrong,
// missing, stale or somebody else's gives others, and goes on doing so wherever the prefix cache offers it again. KV that
// was recomputed instead of loaded shows in vllm:prompt_tokens_by_source_total{source="local_compute"}.
//
// # Time
//
// A step takes what the model file says (model.go), times Config.TimeScale. Leases, handshake time-outs and keep-alive are
// real time. All clocks are the standard library's, so testing/synctest replaces them.
//
// # Faults
//
// POST /sim/faults {"leg","fault","arg","count","match"} makes something go wrong, DELETE /sim/faults ends it, and
// GET /sim/state shows the blocks; all on the admin port. Fault and State document the members.
//
// # Known differences from the real engine, and why
//
//   - Header names begin with capitals and come in alphabetical order: net/http writes them so, and HTTP does not care.
//   - Text splits into other tokens, and generated text is noise: there are no weights and no trained vocabulary (tokens.go
//     says what there is instead). Token counts of text differ, those of token ids do not. "<|start|>" in a prompt is text.
//   - Temperature, top_p, penalties and the like have no influence, because tests need answers that repeat: without a seed
//     an answer is that of a greedy request; seed and the index of the choice shift the draw.
//   - Log probabilities have the right shape and no meaning. prompt_logprobs outside of echo are null, and none of them
//     bypasses the prefix cache: whoever coordinates engines treats such requests as not splittable anyway.
//   - A path that ends with a slash too many is 404 instead of a redirect: no client of ours relies on one.
//   - Tools, structured output, LoRA, several modalities, embeddings, beam search and WebSocket endpoints are not there:
//     they do not change how KV is handed off. Unknown members are ignored, as the engine ignores them.
//   - Validation errors inside of prompts and messages name the first thing that is wrong instead of every alternative of
//     the union type; status and envelope agree, and the type but for messages that are a number, a boolean or null.
//   - max_tokens below 1 never releases a hand-off; with the real engine it did in one run and not in another, and a
//     coordinator must not rely on it.
//   - /invocations refuses what the API that it stands for refuses, unknown models as well; the real one lets those pass.
//   - Routes to stored responses, batches of chats, scoring, sleep, pause, weights and the like are not there, and /metrics
//     takes GET only: what is tested here needs none of them.
//   - /reset_prefix_cache needs no developer mode, so that tests of a poisoned cache can go on.
//   - Scale-out endpoints (render, generate, abort) always answer 403, as by default.
//   - There are no KV events: /kv_event_sources is empty, as with the real engine when they are off.
//   - One engine per server: no data parallelism, and one KV cache group.
//   - The side channel is the transfer package's, not ZMQ and msgpack: remote_host and remote_port are the TCP address of
//     the transport. Notifications have the real form. KV is copied into place after it has arrived, not read in place.
//   - There is no compatibility hash: engines of different models, or block sizes, read each other's KV as garbage, which
//     the state counts as foreign, where the real handshake fails. The transport's metadata has no room for one.
//   - Bidirectional reuse and the push connector are not simulated: the hand-off is prefill to decode, by pull.
//   - remote_block_ids with more than one group kill the engine, like every other shape it does not expect; not measured.
//   - A request that is given up while its KV is on the way keeps its blocks until the transfer ends, and the number of
//     waiting requests still counts it.
//   - A closed port during a handshake is tried again every 200 ms until 5 s are over; concurrent handshakes do not
//     delay each other.
//   - Blocks of a running step that was aborted are free at once, not at the end of the step.
//   - /load is always 0, as without load tracking. /metrics has no python_*, process_* and http_* families, and lacks
//     vllm:estimated_*, vllm:mm_cache_*, vllm:request_params_*, vllm:request_max_num_generation_tokens,
//     vllm:request_time_per_output_token_seconds and vllm:request_num_preemptions: nothing here reads them. Histograms have
//     fewer buckets, help texts are our own, and cache_config_info has only the labels that the simulator has a value for.
//   - Leases that ran out are noticed to the millisecond, not at the next step.
//
// What it does not do: it decides nothing about where requests go, and it authenticates nobody, on no port. Like the real
// engine it dies of hand-offs that are incomplete.
package sim
