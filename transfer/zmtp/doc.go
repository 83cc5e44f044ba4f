// Package zmtp sends and answers requests over ZeroMQ, as REQ and ROUTER sockets do. A prefill engine serves the NIXL
// metadata that reaches it on a ROUTER socket. [Ask] is a client of it, [Serve] is for the simulated engine.
//
// Ask takes an address, a message and a deadline, and returns the answer. Each request has a connection of its own, so a
// peer that died, came back, or never answered leaves no state behind, which is a known problem of the REQ sockets of
// libraries. The package implements the part of ZMTP 3.0 and 3.1 that one request needs, without a security mechanism
// (NULL), since engines offer none.
//
// It does not interpret messages, reuse connections, or authenticate peers.
package zmtp
