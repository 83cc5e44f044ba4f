// Package sglang runs real SGLang engines for tests: prefill, decode and plain ones, on CPU, with the tiny model of package
// vllm, whose KV caches move by NIXL.
//
// A role and options enter; an [Engine] leaves, which also tells what it holds ([Engine.Load]). Greedy answers of all engines
// are equal, so those of a plain engine are the expected ones. A decode engine cannot compute a prompt.
//
// An engine is three processes, takes two gigabytes of memory, and needs half a minute to start, or several minutes on a busy
// machine. The programs come from .tools/sglang and the model from .tools/tinymodel, which
// `make .tools/sglang .tools/tinymodel` makes. An engine listens on loopback, but for one random port of torch's, which has no
// option for it.
//
// Other differences from an engine in production: prompts have at most 4,096 tokens, there are 1,024 pages of 16 tokens, an
// engine whose scheduler dies leaves at once, and testdata/site replaces what needs a GPU. Time-outs are shorter where options
// say so.
package sglang
