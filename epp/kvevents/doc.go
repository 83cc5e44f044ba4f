// Package kvevents reads what engines publish about their KV caches, and keeps an index up to date with it.
//
// Messages of vLLM and SGLang enter, in all forms that their versions have had: batches and events as arrays and as maps, block
// names as integers of any width and as bytes, sequence numbers with and without the identity of a stream. Blocks that engines
// store and drop leave, for epp/kvindex.
//
// A [Decoder] reads one message. What it does not know it skips; an event that it cannot use is counted and costs only itself, and a
// message that is no batch is an error. It needs memory in proportion to the message.
package kvevents
