// Package kv is the KV cache of one simulated engine: a pool of blocks with a prefix cache, and the memory of the blocks, whose
// bytes prove what they were computed from.
//
// Tokens enter; blocks, and bytes that other engines can read through a transport, leave. The KV of a token is a digest of
// the KV of the token before, as it is in memory, and of the token, so an error in memory reaches everything that is computed
// from it, as in a real model. The package does not decide which request gets blocks, and does no locking: the engine's loop
// owns it.
package kv
