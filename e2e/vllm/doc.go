// Package vllm runs real vLLM engines for tests: prefill, decode and plain ones, on CPU, with a tiny model, whose KV caches
// move by NIXL.
//
// In go a role and what differs from an ordinary engine; out come an address, and ways to do to the engine what happens to
// engines: it can be stopped in its tracks, go on, be killed, and come back at its address with a new engine id. Greedy
// answers of all engines are the same, so a plain one tells what is right.
//
// An engine is three processes and a good two gigabytes of memory, and needs a minute to start, or several on a busy
// machine. The programs come from .tools/vllm and the model from .tools/tinymodel, which `make .tools/vllm .tools/tinymodel`
// makes. Everything listens on loopback. Should the test's process be killed, Linux kills the engine with it.
//
// What differs from an engine in production, besides that: NIXL goes over TCP, prompts have at most 4,096 tokens, there are
// 512 blocks of 32 tokens, and testdata/site has two loops of the engine's pause that would starve a small machine.
package vllm
