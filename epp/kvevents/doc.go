// Package kvevents reads what engines publish about their KV caches, and keeps an index up to date with it.
//
// Messages of vLLM and SGLang enter, in all forms that their versions have had: batches and events as arrays and as maps, block
// names as integers of any width and as bytes, sequence numbers with and without the identity of a stream. Blocks that engines
// store and drop leave, for epp/kvindex.
//
// Stream.Follow subscribes to one engine, or one rank of it, and notices when messages were lost and when another process publishes:
// engines number their messages, and some replay the last ones. A lost message is replayed; where that is not possible it is counted, and
// the holder has nothing, as after a restart. Live messages wait in the connection while a
// replay runs, so a Stream keeps one message at most.
//
// A [Decoder] reads one message. What it does not know it skips; an event that it cannot use is counted and costs only itself, and a
// message that is no batch is an error. It needs memory in proportion to the message. The package finds no engines: its caller says where
// they publish.
package kvevents
