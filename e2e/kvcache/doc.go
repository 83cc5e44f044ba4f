// Package kvcache tests from outside that what engines tell about their KV caches drives picks: conversations and P/D, on simulated engines
// in the normal tests, and on real vLLM and SGLang engines with `make test-kvcache`. The package has tests only.
package kvcache
