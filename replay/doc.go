// Package replay runs a trace of requests through the endpoint picker in virtual time.
//
// A checked EndpointPickerConfig, a pool, an engine and the requests of a trace enter Run. A Result leaves: what became of each
// request, and what the run cost. The scheduler and all plugins are those of the picker, built as the picker builds them; only what they
// read of the world is made up: the clock, the loads of endpoints, the ends of requests.
//
// One event loop carries everything: arrivals, picks, steps of engines (package replay/engine), transfers of KV caches, readings of
// metrics pages. Nothing runs beside it, so the same seed gives the same result, to the last bit.
//
// # What the picker sees
//
// Loads are as old as in production: pages are read at the picker's intervals, more often while an endpoint has requests. The load in
// flight is reserved at the pick, and ends with the request. Prompts have as many tokens as the trace says, as prompts of token ids
// have; their blocks are hashed from the identities in the trace, in the length that the configuration wants.
//
// Where a plugin listens to KV events, engines tell what enters and leaves their prefix caches (events.go), and prompts have token ids.
//
// # Who waits for whom
//
// Requests arrive when the trace says (open loop). The later turns of a session arrive a think time after the answer before them, and with
// a fixed concurrency the next session begins when another one ends (closed loops): then a slow system receives fewer requests.
//
// While the pool is full, requests wait in the production queue (package epp/flow): it tells when one may pass, and the event loop has that
// one picked for. The queue looks for capacity when a page is read and when load ends, as in the picker.
//
// # A remote request
//
// The prefill engine computes the prompt and one token, and keeps the blocks. Then the decode engine reserves blocks for the prompt; only
// what its own prefix cache lacks crosses the link. When it has arrived, the prefill engine frees its blocks, and the decode engine
// computes the last token of the prompt, which gives the first token of the answer.
//
// Of engines like SGLang (TokenArrives), both legs begin together: the decode engine reserves blocks, then the prefill engine computes,
// and the first token comes with the KV cache.
//
// If the transfer fails, or if the first token does not come in time, the request goes the way that the sidecar gives it: prefill frees its
// blocks, and decode computes the prompt, if the fallback budget of its sidecar has something left.
//
// # What it does not do
//
// No engine fails, and no client leaves but one whose request is evicted. Preparers that ask something outside the picker are refused, see
// Options.Supported.
// It reads no files; it has no HTTP, no sidecar and no Envoy, which take the stated latency.
package replay
