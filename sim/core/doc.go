// Package core is what simulated engines of every protocol have in common: the loop that computes batches, the queues, the blocks
// of sequences, and the drawing of tokens.
//
// Requests enter (Submit); tokens leave (Generation.Next). A Protocol says what else happens to a sequence: when it may start, how
// its KV gets to or from another engine, and what is counted. Package sim has vLLM's, package sglang SGLang's. The package opens no
// ports, speaks no HTTP and does not know what a hand-off is.
package core
