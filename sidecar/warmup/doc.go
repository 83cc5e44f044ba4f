// Package warmup prepares prefill engines before traffic reaches them.
//
// A list of prefill engines enters, from DNS or a file. The package asks their NIXL side channels for their agents, so that
// their first hand-offs can be renewed and released. With --warm-up it also has one tiny hand-off run through each new pair
// of the local engine and a prefill engine, so that no user's request waits for the engines' own handshake (60 to 200 ms
// measured on loopback, more over a network).
//
// The package does not route: no request depends on the list or waits for a warm-up, and every step may fail. It does not run
// the hand-off itself: the caller supplies that.
package warmup
