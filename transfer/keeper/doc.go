// Package keeper runs a notifier in a process of its own, which may die: NIXL's library crashes with what a hostile or
// confused peer sends it, and a sidecar must not.
//
// In the sidecar, a [Keeper] starts the process, gives it calls over a Unix socket that has no name, and starts it again
// when it has died, hangs, or speaks nonsense. It is a [transfer.Notifier] itself. In the process, [Serve] does the calls.
//
// Each life of the process begins with nothing: whoever loaded a peer in an earlier one gets [transfer.ErrUnknownPeer] and
// has to load it again, from metadata that is fetched anew. Nothing is replayed, or what killed one life would kill all.
//
// What it does not do: it knows nothing of NIXL, of engines or of leases, and passes no memory.
package keeper
