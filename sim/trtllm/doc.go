// Package trtllm is a simulated engine of TensorRT-LLM, as trtllm-serve runs it: a context or generation engine of a disaggregated pair,
// or a plain one. Each request says what is computed of it.
//
// Requests enter (Submit), and messages of other engines; tokens, KV and failures leave. The KV moves and proves itself as package
// sim describes. Package trtllm/api is the HTTP surface, package sim/server the ports.
//
// # The hand-off
//
// Both legs have one id, of 64 bits. A context leg computes the prompt and the first token, answers, and keeps its blocks for the
// generation engine, or until Times.Transfer has passed; nothing else frees them, and a closed connection does not, either. A generation
// leg asks the context engine at its endpoint for the KV of an id, reads it, and goes on after the first token. An id that the context
// engine does not have is waited for until Times.Transfer.
//
// With schedule_style 1 (generation first) a context leg is not computed before a generation engine has asked for it. A context leg that
// ends by a stop token hands nothing over; a generation engine that has asked for it waits for its time-out. A generation leg whose client
// has left frees its blocks when its KV has come, or at the time-out: it cannot withdraw its question.
//
// # Known differences from the real engine, and why
//
//   - No recording of a real one is here: it needs a GPU. The surface follows the source of TensorRT-LLM 1.2.
//   - The generation engine reads the KV, which the real context engine writes. The transports of this repository read.
//   - encoded_opaque_state has the endpoint of the context engine, whose real form no other program reads.
//   - Everything that package sim says of text, tokens, sampling parameters and log probabilities is so here too.
//   - No beam search, no LoRA, no grammar, no images, one rank. Of the APIs, completions and chat.
//   - The page /prometheus/metrics has the families that scrapers of ours read, and is always there; the real one has it with
//     return_perf_metrics. /metrics has the iterations as JSON, here always an empty list.
package trtllm
