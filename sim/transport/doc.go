// Package transport moves KV bytes and notifications between simulated engines: in one process ([Mem]) or over TCP ([TCP]).
//
// Both implement the contract of package transfer with the semantics of NIXL, so that the simulated engine and its peers can be
// tested without the library. Mem is the reference; TCP also serves the keeper that is built for simulated engines.
//
// What enters: memory that its owner registered, metadata that agents exported, spans of remote memory, and notifications.
// What leaves: bytes in the reader's buffers, notifications, and the errors of package transfer.
//
// The package does not authenticate or encrypt. Any program that reaches a TCP agent's port can read the memory that the agent
// registered, as with NIXL's side channel: listen on loopback (the default), or on a network that only the pods of one pool can
// reach.
package transport
