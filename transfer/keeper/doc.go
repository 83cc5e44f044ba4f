// Package keeper runs a notifier in a process of its own (the keeper), because that process may crash: NIXL's library
// crashes on some messages of hostile or confused peers, and a sidecar must not.
//
// In the sidecar, a [Keeper] starts the process, sends it calls over an unnamed Unix socket, and restarts it when it dies,
// hangs, or violates the protocol. A Keeper is a [transfer.Notifier]. In the process, [Serve] executes the calls.
//
// Each start of the process begins with no peers: a caller that loaded a peer before the restart gets
// [transfer.ErrUnknownPeer] and has to load it again, from metadata fetched anew. Nothing is replayed, because the call that
// killed one process would also kill the next.
//
// The package knows nothing of NIXL, engines or leases, and passes no memory.
package keeper
