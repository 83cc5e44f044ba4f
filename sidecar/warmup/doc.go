// Package warmup prepares prefill engines before traffic reaches them.
//
// What enters is a list of prefill engines, from DNS or a file. Their NIXL side channels are asked for their agents, so that
// their first hand-offs can be renewed and released. With --warm-up the package also has one tiny hand-off run through each
// new pair of the local decode engine and a prefill engine, so that no user's request pays for the engines' own handshake
// (measured on loopback 60 to 200 ms, more over a network).
//
// It does not route: no request depends on the list, no request waits for a warm-up, and every step may fail. It does not
// run the hand-off itself: the caller supplies that.
package warmup
