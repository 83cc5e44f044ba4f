// Package sidecar is the routing sidecar that stands before one decode engine.
//
// What enters are HTTP requests for the engine. A generate call whose headers name prefill pods is run in two legs: the
// prefill leg on one of those pods, then the decode leg on the engine behind this sidecar, which pulls the KV cache over.
// Every other request is passed through. What leaves is the engine's answer, with what was decided and where the time
// went in its headers.
//
// The sidecar keeps three promises. A prefill pod that fails costs the client at most time: the next candidate is tried, then
// the engine prefills itself, within a budget that protects decode during an outage of prefill. No leg is sent again once a
// token has gone to the client. A hand-off that decode does not read is released at once, and does not stay pinned until its
// lease expires.
//
// Its packages: intake reads and limits requests, handoff runs the legs, transport carries them, relay sends answers to
// clients, passthrough proxies all other calls, warmup prepares new prefill engines, lease renews and releases hand-offs.
// They do not import this package, which wires them.
//
// It does not choose pods, does not move KV bytes, and keeps no state between requests but connections, the budget and
// counters. It knows the picker only by pd's headers.
package sidecar
