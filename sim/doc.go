// Package sim is a simulated vLLM engine for tests and trials of prefill/decode disaggregation: its configuration, its leases, and
// the transfer of KV between engines.
//
// What enters: requests (Submit), the KV of other engines, and notifications about its own. What leaves: tokens, hand-offs, KV,
// metrics and the state of its blocks. Package server runs an engine with its ports open, in a test (server.Start) or as a
// process (cmd/sim). Packages below this one:
//
//	core       what engines of every protocol have in common: batches, queues, the drawing of tokens
//	model      sizes, speeds and token ids of models
//	kv         the block pool, the prefix cache, and the bytes of the KV
//	metrics    the metrics page
//	fault      what goes wrong on purpose
//	web        what the HTTP surfaces of all protocols have in common
//	api        vLLM's HTTP surface, compared with recordings of the real engine (vLLM 0.32.0, api/testdata/golden)
//	sglang     a simulated SGLang engine, with its own documentation
//	server     the ports
//	pyjson     JSON as the real engine's language writes it
//	transport  moves KV and notifications, in memory or over TCP
//	simtest    starts engines for the tests of these packages
//
// # KV that proves itself
//
// The KV of a token is a digest of the KV of the token before, as it is in memory, and of the token. The next token is drawn from
// a digest of all KV bytes that the sequence attends to (kv/memory.go, core/sequence.go). So the answer is a function of the bytes in
// the blocks: a plain engine and an undisturbed pair generate the same tokens. KV that is wrong, missing, stale or another
// request's gives other tokens, also in later requests that find it in the prefix cache. KV that was recomputed instead of loaded
// shows in vllm:prompt_tokens_by_source_total{source="local_compute"}.
//
// # Time
//
// A step takes as long as the model file says (package model), times Config.TimeScale. So does the first hand-off of a pair of
// engines, unless Config says how long that is. Leases, handshake time-outs and keep-alive are real time. All clocks are the
// standard library's, so testing/synctest replaces them.
//
// # Faults
//
// POST /sim/faults {"leg","fault","arg","at","count","match"} makes something go wrong, DELETE /sim/faults ends it, and
// GET /sim/state shows the blocks; all on the admin port. fault.Fault and State document the members.
//
// # Known differences from the real engine, and why
//
// Everything else is the same: `make test-vllm` sends the recorded requests to both and compares the shapes of the
// answers, and runs the same end-to-end suite on both.
//
//   - Header names begin with capitals and come in alphabetical order: net/http writes them so, and HTTP does not care.
//   - Text splits into other tokens, and generated text is noise: there are no weights and no trained vocabulary
//     (model/tokens.go has the token ids). Token counts of text differ, those of token ids do not. "<|start|>" in a prompt is
//     text.
//   - Temperature, top_p, penalties and the like have no influence, because tests need answers that repeat: without a seed
//     an answer is that of a greedy request; seed and the index of the choice shift the draw.
//   - Log probabilities have the right shape and no meaning. prompt_logprobs outside of echo are null, and none of them
//     bypasses the prefix cache: the programs that coordinate engines treat such requests as not splittable anyway.
//   - A path that ends with a slash too many is 404 instead of a redirect: no client of ours relies on one.
//   - Tools, structured output, LoRA, audio, video, beam search and WebSocket endpoints are not there: they do not change the hand-off.
//     Unknown members are ignored, as the real engine ignores them.
//   - Images are not decoded. Each has four tokens, which come before those of the conversation and are drawn from its content, so that
//     an answer proves which encoding was read; the real engine has the same placeholders for all. Chat alone takes images. An encoder
//     (EncodingConfig) answers chat as an encoder, and other calls as any engine does. Encodings that are fetched (ECCPUConnector) follow
//     the source of vLLM, since that connector needs a GPU; a message over TCP has them, in place of NIXL.
//   - Validation errors inside of prompts and messages name the first thing that is wrong instead of every alternative of
//     the union type; status and envelope agree, and the type but for messages that are a number, a boolean or null.
//   - max_tokens below 1 never releases a hand-off; with the real engine it did in one run and not in another, and a
//     coordinator must not rely on it.
//   - /invocations refuses what the API that it stands for refuses, unknown models as well; the real one accepts those.
//   - Routes to stored responses, batches of chats, scoring, sleep, pause, weights and the like are not there, and /metrics
//     takes GET only: no test needs them.
//   - /reset_prefix_cache needs no developer mode, so that tests of a poisoned cache can go on.
//   - Scale-out endpoints (render, generate, abort) always answer 403, as by default.
//   - The host's memory (KVConfig.HostBlocks) gets each block at the end of the step that computes it, and a step waits for what it loads
//     from there; with the real OffloadingConnector both happen beside the steps. Hand-offs do not use it, and no metric tells of it.
//   - KV events have the names of blocks that the simulator computes in its own way. Names are integers, never digests. There is no
//     limit to what waits to be published: a step never waits for it.
//   - One engine per server: no data parallelism, and one KV cache group. A coordinator sees each rank as an engine of its
//     own anyway, and groups only as an opaque list.
//   - The side channel is real in form, and so are notifications, but the metadata in it is of the transfer package's TCP
//     transport, which NIXL does not read, and says nothing else of the cache. With a transport of transfer/nixl
//     (Config.Transfer.Open) agents, notifications and reads are those of the real library; only the list of regions before
//     its metadata is ours. In both cases KV is copied into place after it has arrived, not read in place.
//   - Compatibility hashes are not compared: engines of different models, or block sizes, read each other's KV as garbage, which
//     the state counts as foreign, where the real handshake fails.
//   - A decode engine keeps no blocks of a turn for the next one, as the real one does with bidirectional_kv_xfer. A prefill engine
//     reads back what a leg names (KVConfig.Bidirectional), by whatever engine it is. One that pushes (KVConfig.Push) has the
//     decode engine read what the real one writes, and the messages for that have another encoding.
//   - remote_block_ids with more than one group kill the engine, like every other shape it does not expect: a model with
//     one group cannot tell what it would do otherwise.
//   - A request whose client leaves during the transfer of its KV keeps its blocks until the transfer ends, and the number of
//     waiting requests still counts it: a transfer cannot be cancelled. The real engine's transfers end within a step.
//   - A handshake with a closed port connects again every 200 ms for 5 s, and concurrent handshakes do not delay each other: with
//     the real engine a second one took up to 9 s, which would only make tests slower.
//   - Blocks of a sequence that is aborted during a step are free at once, not at the end of the step: nothing waits for the
//     results of that step.
//   - An encoder writes its files anew at each request, and tells no metric of it.
//   - /load is always 0, as without load tracking. /metrics has no python_*, process_* and http_* families, and lacks
//     vllm:estimated_*, vllm:mm_cache_*, vllm:request_params_*, vllm:request_max_num_generation_tokens,
//     vllm:request_time_per_output_token_seconds and vllm:request_num_preemptions: nothing here reads them. Histograms have
//     fewer buckets, help texts are our own, and cache_config_info has only the labels that the simulator has a value for.
//   - At SIGTERM, whole answers in progress end with 500. The real engine answers some of them, by a race, with 200, finish_reason
//     "abort" and the tokens so far; TestAbortedAnswer of the sidecar tests that.
//   - Leases expire to the millisecond, not at the next step, so that tests can rely on the time.
//
// What it does not do: it does not decide where requests go, and it authenticates no client, on no port. Like the real engine, it
// dies of incomplete hand-offs.
package sim
