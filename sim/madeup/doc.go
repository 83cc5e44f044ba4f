// Package madeup has two hand-off protocols that no engine speaks: Ticket, which is serial, and Meeting, which is concurrent.
// They prove that a dialect is one file, and that the sidecar knows nothing of vLLM's.
//
// What enters are legs in these protocols. A Translator stands before each simulated engine and turns them into the simulator's
// own protocol, so that KV blocks really move and the tokens prove it. Nothing here is in a table of dialects: tests pass a
// dialect to the sidecar.
package madeup
