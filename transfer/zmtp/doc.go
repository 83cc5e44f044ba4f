// Package zmtp asks and answers questions over ZeroMQ, as REQ and ROUTER sockets do: prefill engines tell over a ROUTER
// socket how they are reached by NIXL. [Ask] is for those who want to know, [Serve] for the simulated engine.
//
// In go an address, a message and a deadline; out comes the answer. Each question has a connection of its own, which is
// closed with it: there is no state in which a peer that died, came back, or never answered could leave anything behind,
// which is what REQ sockets of libraries are known for. It speaks ZMTP 3.0 and what 3.1 adds to it that concerns one
// question, without a security mechanism (NULL), since the engines offer none.
//
// What it does not do: it knows nothing of what is asked, keeps no connections to be asked over again, and authenticates nobody.
package zmtp
