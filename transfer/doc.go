// Package transfer has the interfaces for moving KV cache blocks from the engine that computed them to the engine that continues
// with them, and for the short notifications that belong to it (heartbeats, releases).
//
// An agent is one end: a [Notifier] sends and receives notifications, a [Transport] also registers memory and reads that of
// others. Reads are one-sided: the reader names spans, and the owner's program does nothing. Every start of an agent is a
// new generation, and metadata of an earlier generation is refused with [ErrRestarted]. Names and rules follow NIXL.
//
// The packages below this one implement it for production: transfer/nixl binds the NIXL library (behind the build tag nixl,
// because it needs cgo), transfer/keeper runs that binding in a process of its own, transfer/zmtp speaks ZeroMQ. The
// transports of the simulated engine are in sim/transport. Every transport passes the suite in transfer/transfertest. Real
// engines move their KV among themselves; Tandem only sends them notifications.
//
// What enters: registered memory, metadata that agents exported, and spans of remote memory. What leaves: bytes in the
// reader's buffers, notifications, and errors that say what to do.
//
// What it does not do: it does not choose which engine reads from which, knows nothing of requests, blocks or leases, and does
// not authenticate or encrypt.
package transfer
