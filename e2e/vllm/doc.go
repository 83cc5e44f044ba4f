// Package vllm runs real vLLM engines for tests: prefill, decode and plain ones, on CPU, with a tiny model, whose KV caches
// move by NIXL.
//
// A role and options enter; a [realengine.Engine] leaves. Greedy answers of all engines are equal, so those of a plain engine
// are the expected ones.
//
// An engine is three processes, takes two gigabytes of memory, and needs a minute to start, or several on a busy machine. The
// programs come from .tools/vllm and the model from .tools/tinymodel, which `make .tools/vllm .tools/tinymodel` makes.
// Everything listens on loopback.
//
// Other differences from an engine in production: NIXL uses TCP, prompts have at most 4,096 tokens, there are 512 blocks of
// 32 tokens, and testdata/site has two loops of the engine's pause that would starve a small machine.
package vllm
