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
// missing, stale or another request's gives others, and goes on doing so wherever the prefix cache offers it again. KV that
// was recomputed instead of loaded shows in vllm:prompt_tokens_by_source_total{source="local_compute"}.
//
// # Time
//
// A step takes what the model file says (model.go), times Config.TimeScale, and so does the first hand-off of a pair of
// engines, unless Config says how long that is. Leases, handshake time-outs and keep-alive are real time. All clocks are
// the standard library's, so testing/synctest replaces them.
//
// # Faults
//
// POST /sim/faults {"leg","fault","arg","at","count","match"} makes something go wrong, DELETE /sim/faults ends it, and
// GET /sim/state shows the blocks; all on the admin port. Fault and State document the members.
//
// # Known differences from the real engine, and why
//
// What is not listed is the same: `make test-vllm` sends the recorded requests to both and compares the shapes of the
// answers, and runs the same end-to-end suite on both.
//
//   - Header names begin with capitals and come in alphabetical order: net/http writes them so, and HTTP does not care.
//   - Text splits into other tokens, and generated text is noise: there are no weights and no trained vocabulary (tokens.go
//     says what there is instead). Token counts of text differ, those of token ids do not. "<|start|>" in a prompt is text.
//   - Temperature, top_p, penalties and the like have no influence, because tests need answers that repeat: without a seed
//     an answer is that of a greedy request; seed and the index of the choice shift the draw.
//   - Log probabilities have the right shape and no meaning. prompt_logprobs outside of echo are null, and none of them
//     bypasses the prefix cache: the programs that coordinate engines treat such requests as not splittable anyway.
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
//   - There are no KV events: /kv_event_sources is empty, as with the real engine when they are off, for nothing here
//     subscribes to them.
//   - One engine per server: no data parallelism, and one KV cache group. A coordinator sees each rank as an engine of its
//     own anyway, and groups only as an opaque list.
//   - The side channel is real in form, and so are notifications, but the metadata in it is of the transfer package's TCP
//     transport, which NIXL does not read, and nothing else is told of the cache. With a transport of transfer/nixl
//     (Config.Transfer.Open) agents, notifications and reads are those of the real library; only the list of regions in
//     front of its metadata is ours. In both cases KV is copied into place after it has arrived, not read in place.
//   - Compatibility hashes are not compared: engines of different models, or block sizes, read each other's KV as garbage, which
//     the state counts as foreign, where the real handshake fails.
//   - Bidirectional reuse and the push connector are not simulated: no coordinator here asks for them.
//   - remote_block_ids with more than one group kill the engine, like every other shape it does not expect: a model with
//     one group cannot tell what it would do otherwise.
//   - A request that is given up while its KV is on the way keeps its blocks until the transfer ends, and the number of
//     waiting requests still counts it: a transfer cannot be called back, and the real one has ended within a step.
//   - A closed port during a handshake is tried again every 200 ms until 5 s are over, and concurrent handshakes do not
//     delay each other: with the real engine a second one took up to 9 s, which only makes tests slower.
//   - Blocks of a running step that was aborted are free at once, not at the end of the step: the step's end is when its
//     results are due, and no engine waits for those.
//   - /load is always 0, as without load tracking. /metrics has no python_*, process_* and http_* families, and lacks
//     vllm:estimated_*, vllm:mm_cache_*, vllm:request_params_*, vllm:request_max_num_generation_tokens,
//     vllm:request_time_per_output_token_seconds and vllm:request_num_preemptions: nothing here reads them. Histograms have
//     fewer buckets, help texts are our own, and cache_config_info has only the labels that the simulator has a value for.
//   - When it is told to stop, whole answers under way get 500. The real one gives 200 to some, finish_reason "abort" and the
//     tokens that there are, as a race has it; TestAbortedAnswer of the sidecar has that.
//   - Leases that ran out are noticed to the millisecond, not at the next step, so that tests can rely on the time.
//
// What it does not do: it decides nothing about where requests go, and it authenticates no client, on no port. Like the real
// engine it dies of hand-offs that are incomplete.
package sim
