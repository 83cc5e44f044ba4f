// Package sidecar is the routing sidecar in front of one decode engine.
//
// HTTP requests for the engine enter. If the headers of a generate call name prefill pods, the sidecar runs it in two legs:
// the prefill leg on one of those pods, then the decode leg on the local engine, which pulls the KV cache. It passes every
// other request through. The engine's answer leaves, with headers that say what was decided and where the time went.
//
// The sidecar keeps three promises. If a prefill pod fails, it costs the client only time: the sidecar tries the next
// candidate, then the engine prefills itself, within a budget that protects decode during an outage of prefill. No leg is
// sent again once a token has gone to the client: if so configured, another engine goes on from the token ids that were sent. A hand-off that decode does not read is released at once, before its lease
// expires.
//
// Its packages: intake reads and limits requests, handoff runs the legs, transport carries them, relay sends answers to
// clients, continuation has streams go on at other engines, passthrough proxies all other calls, warmup prepares new prefill engines, lease renews and releases hand-offs.
// They do not import this package, which wires them.
//
// It does not choose pods, does not move KV bytes, and keeps no state between requests but connections, the budget and
// counters. It knows the picker only by the headers of package pd.
package sidecar
