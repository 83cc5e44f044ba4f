// Package sglang is a simulated SGLang engine: its data-parallel ranks, its bootstrap server, and the hand-off between a prefill and a
// decode engine that meet by the number of a bootstrap room.
//
// Requests enter (Submit), and messages of other engines; tokens, KV and failures leave. The KV moves and proves itself as package
// sim describes, and the times are real or modelled as there. Package sglang/api is the HTTP surface, package sim/server the ports.
//
// # The hand-off
//
// Both legs of a request name a bootstrap room, which is a number that the coordinator draws. The decode engine asks the bootstrap server of the prefill
// engine for the port of a rank, takes pages for the whole prompt, and sends the room to that port. Only then does prefill compute
// the prompt, draw one token, and hand both over. It answers its own request after decode has the KV. Each side waits for the other
// up to a time-out: there is no other way to learn that the other leg will not come, except that a decode leg which ends early says
// so to prefill.
//
// # Known differences from the real engine, and why
//
//   - Prefill notifies decode, which reads the KV; the real prefill engine writes it. The transports of this repository read.
//   - The messages between ranks have a form of our own, over ZeroMQ as those of the real ones: no program but an engine reads them.
//   - Everything that package sim says of text, tokens, sampling parameters and log probabilities is so here too.
//   - Requests with n > 1 on a pair always end as they most often did in the recordings: prefill answers, decode hangs.
//   - An engine whose bootstrap port is taken does not start. The real one starts, says that it is healthy, and fails every pair.
//   - A decode engine that has to take a request's pages away computes its KV again, which the real one copies to the host.
//   - Ranks of a decode or plain engine take requests in turn.
//   - Only the policy `early` of allocation, one tensor-parallel rank, and the NIXL backend are simulated; and no LoRA, no grammar, no
//     priority, no KV events, no profiling.
//   - The metrics page lacks the families that no scraper of ours reads; api/golden_test.go lists them. Its histograms have fewer
//     buckets.
//   - A request that kills a scheduler kills the engine after Config.CrashHang, of which the real one spends 5 s before it stops to
//     answer at all.
package sglang
