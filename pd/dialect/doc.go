// Package dialect knows what engines say to each other: one file per hand-off protocol, one row per protocol in table.go.
//
// A buffered request enters, and later the prefill engine's answer. What leaves are the bodies of the legs, as edits of the
// client's bytes: a dialect never re-encodes a request. It sends nothing itself: the sidecar sends the legs, keeps the
// deadlines and decides what a failure means. The sidecar asks for everything else that is an engine's: what a hand-off
// consists of and whether it may be used, for how long it is kept, how it is released, and what statuses mean.
//
// A [Dialect] declares its [Shape], and makes an [Attempt] for each try at each prefill pod. The attempt makes the prefill leg
// and reads its answer; its [Handoff] makes the decode leg. What else a protocol needs are small interfaces that the
// Dialect, the Attempt or the Handoff implements or not: [Releaser], [RequestReleaser], [Leased], [UsageCorrector], [Sized],
// [Aborter], [Stripper], [HeaderStripper], [Fitter], [Unfinisher], [Noticer].
//
// How protocols map on these:
//
//   - vLLM with NIXL (vllm_nixl.go): Serial. Accept validates kv_transfer_params. Releaser, RequestReleaser, Leased with notices.
//   - SGLang: Concurrent. Attempt mints bootstrap_room and a rid for each leg, and knows bootstrap_host and -port of the
//     target; the bodies are otherwise the client's. Accept takes any completion. Aborter posts /abort_request with the rid
//     of each leg. Stripper lists rid and the rank members, HeaderStripper the headers x-override-*.
//   - vLLM with Mooncake: Concurrent, since the engines take the legs in any order and prefill has to be watched. Attempt mints
//     a transfer_id and asks the pod for /query by Options.Ask, which the dialect caches by target; it asks again after an
//     Accept that failed. Accept rejects a finish_reason other than "length". The confirmed Handoff is a RequestReleaser and a
//     UsageCorrector with prefill's count.
//   - files, LMCache: Serial. Prefill is the one-token leg of [OneToken], Accept takes any answer, and Decode is the client's
//     body. The Handoff implements no other interface, so nothing is released.
//
// What an engine tells about itself on its side channel is read here too.
package dialect
