// Package zmtp speaks ZeroMQ's protocol to engines. Prefill engines serve the NIXL metadata that reaches it on a ROUTER socket:
// [Ask] is a client of it, and [Serve] is for the simulated engine. A [Conn] is one connection of a socket of any kind: engines publish
// their KV events on PUB sockets, as the simulated one does with a [Publisher], and send them again as [Reply] does.
//
// Ask takes an address, a message and a deadline, and returns the answer. Each request has a connection of its own, so a
// peer that died, came back, or never answered leaves no state behind, which is a known problem of the REQ sockets of
// libraries. A Conn neither connects again nor queues: its caller knows when a connection ends, and what may be lost then. The
// package implements the part of ZMTP 3.0 and 3.1 that these need, without a security mechanism (NULL), since engines offer none.
//
// It does not interpret messages, reuse connections, or authenticate peers.
package zmtp
