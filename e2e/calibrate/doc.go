// Package calibrate compares tandem replay with real engines.
//
// Its test starts a pair of engines on CPU, vLLM or SGLang, fits the table of their steps by tandem replay --fit, puts tandem up before
// them, and sends a trace of small requests by tandem load. Then tandem replay runs the requests that were measured through the model,
// and prints both. `make calibrate-vllm` and `make calibrate-sglang` run it: 7 GB of disk, 5 GB of memory, a quarter of an hour, and a
// machine on which nothing else runs.
//
// Each engine is pinned to one processor, so that a step of one does not slow the other. Proxy, picker, sidecar and load generator take
// what is left of both.
package calibrate
