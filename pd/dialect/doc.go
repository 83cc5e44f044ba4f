// Package dialect speaks the engines' hand-off protocols: one row of table.go and one file for each, of SGLang's three.
//
// A buffered request enters, and later the prefill engine's answer. The bodies of the legs leave, as edits of the client's
// bytes: a dialect never re-encodes a request. The package sends nothing. The sidecar sends the legs, keeps the deadlines and
// decides what a failure means. The dialect answers all questions that depend on the engine: what a hand-off consists of,
// whether and how long it may be used, how it is released, and what statuses mean.
//
// A [Dialect] declares its [Shape], and makes an [Attempt] for each try at each prefill pod. The attempt makes the prefill
// leg and reads its answer; its [Handoff] makes the decode leg. Small interfaces, which a Dialect, Attempt or Handoff may
// implement, hold everything else: [Releaser], [RequestReleaser], [OnceReleaser], [Leased], [UsageCorrector], [Completer], [Sized], [Ranked], [LocalRanker],
// [Rerouter], [Aborter], [HeaderSetter], [Stripper], [Controller], [Pusher], [HeaderStripper], [Fitter], [PerChoice], [Checker],
// [EncodingReader], [Moded], [Splitter], [Finisher], [IdleLimiter], [AfterTransfer], [Prober], [Caller], [PathLimiter], [LimitKeeper], [Unfinisher], [StatusReader], [RankRefuser], [Noticer]. A [Recognizer] tells by an engine's pages
// that the engine speaks another protocol (recognize.go); [TestAlone] finds out by a request whether it serves requests alone (alone.go).
//
// Protocols map to these interfaces as follows:
//
//   - vLLM with NIXL (vllm_nixl.go): Serial. Accept validates kv_transfer_params. Releaser, RequestReleaser, Leased with notices.
//   - vLLM with NIXL, pushed (vllm_push.go): Serial, with most of the above. HeaderSetter gives each attempt an X-Request-Id, by which the
//     engines match its legs. Pusher has prefill watched until decode answers. A Releaser, and no RequestReleaser.
//   - SGLang (sglang.go): Concurrent, PerChoice. Attempt mints bootstrap_room and a rid for each leg, and asks the target for
//     bootstrap_port and ranks; the bodies are otherwise the client's. Accept takes any completion. Aborter posts /abort_request
//     with the rid of each leg. Stripper lists rid and the rank members, HeaderStripper the headers x-override-*. Moded tells
//     that a decode engine serves no request alone, Checker refuses what ends engines, PathLimiter what no client may call.
//   - vLLM with Mooncake (vllm_mooncake.go): Concurrent, since the engines take the legs in any order. Attempt mints a transfer_id,
//     and asks the pod's bootstrap server for the engine's id, which it keeps for seconds. Accept rejects a leg that did not end by its
//     limit. Pusher has prefill watched until decode answers. The Handoff is a Releaser and a RequestReleaser, and a UsageCorrector
//     with prefill's count.
//   - vLLM with offloading to peers (vllm_offloading.go): Concurrent. Attempt mints a kv_request_id. Accept takes any
//     completion. Nothing is released. Pusher has prefill watched, since decode does not notice one
//     that hangs. The Handoff is a UsageCorrector with prefill's count.
//   - MoRI-IO (vllm_moriio.go): Serial, or Concurrent. Attempt mints a transfer_id, and both legs name the pod, the ports and the rank of
//     the other engine; Accept validates kv_transfer_params, which must name the same transfer. Releaser, RequestReleaser, and a
//     OnceReleaser if prefill writes. Leased if Serial. Pusher. Moded: a decode engine that reads serves no request alone. UsageCorrector with prefill's count.
//   - files, LMCache (vllm_files.go): Serial. Prefill is the one-token leg of [OneToken], Accept takes any completion, and Decode is the
//     client's body. Nothing is released.
//   - TensorRT-LLM (trtllm.go): Serial, context first. Attempt mints the id of the request at both engines. Accept checks
//     disaggregated_params, and Decode gives them back with another type and the ids of the prompt. An answer that ended with its first
//     token is a Finisher (trtllm_finished.go). A Releaser and a OnceReleaser.
//   - TensorRT-LLM, generation first (trtllm_generation_first.go): Concurrent. Attempt asks /server_info for the endpoint of the context
//     engine. Pusher; a context leg that ends early ends the generation leg, and is the answer.
//
// The package also reads what an engine answers on its side channel.
package dialect
