// Package sidecar is the routing sidecar that stands before one decode engine.
//
// What enters are HTTP requests for the engine. A generate call whose headers name prefill pods is run in two legs: the
// prefill leg on one of those pods, then the decode leg on the engine behind this sidecar, which pulls the KV cache over.
// Every other request is passed through. What leaves is the engine's answer, with what was decided and where the time
// went in its headers.
//
// The sidecar keeps three promises. A prefill pod that fails costs the client nothing: the next candidate is tried, then
// the engine prefills itself, within a budget that keeps an outage of prefill from melting decode. Nothing is sent to an
// engine twice once a token has gone to the client. A hand-off that nobody takes up is released at once, not left to its
// lease.
//
// Where the picker had another model answer than the client asked for, the client's name stands in the answer again, in JSON
// and in every event, while it streams. The texts of errors are left as the engine wrote them, and so are answers that it
// compressed.
//
// It does not choose pods, does not move KV bytes, and holds no state between requests but connections, the budget and
// counters. It knows the picker by pd's headers only.
package sidecar
