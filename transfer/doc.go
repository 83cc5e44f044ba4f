// Package transfer moves KV cache blocks from the agent that computed them to the agent that continues with them, and
// carries the short messages that go with it ("I have read it", "keep it", "let it go").
//
// What enters: memory that its owner registered, metadata that agents exported, and spans of remote memory to read.
// What leaves: the bytes, in the buffers of the reader, notifications, and errors that say what to do.
//
// An agent is one end: [Transport] for those with KV memory, [Notifier] for those without. Reads are one-sided: the reader
// names spans, and the owner's program is not asked. A restart is never silent: each life of an agent has a generation, and
// metadata of an earlier life is refused with [ErrRestarted]. Names and rules follow NIXL, so that one contract covers:
//
//   - [Mem], agents inside one process: the reference that others are compared with.
//   - [TCP], agents on a network, in pure Go.
//   - transfer/nixl, the binding to the NIXL library behind the build tag nixl; it has a package of its own because it
//     needs cgo and must stay out of programs that do not ask for it.
//
// Today only the simulated engine (sim) moves bytes with this package. Real engines move their KV among themselves,
// by NIXL; what Tandem does there is to send notifications to them.
//
// What it does not do: it does not choose who reads from whom, knows nothing of requests, blocks or leases, and does not
// authenticate or encrypt. Whoever reaches a TCP agent's port can read what it registered, exactly as with NIXL's side
// channel: listen on loopback (the default), or on a network that only the pods of one pool can reach.
package transfer
