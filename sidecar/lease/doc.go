// Package lease renews and releases hand-offs by notices to prefill engines. Engines whose dialect is a [dialect.Noticer]
// take heartbeats and releases from any agent that can reach them.
//
// A [Registry] knows the engines, and notifies them over a [transfer.Notifier]. It connects to each one in the background: it
// asks the engine's side channel how its ranks are reached, and has the notifier load them. A [Hold] is one finished hand-off:
// heartbeats renew it until it ends, and it can be released.
//
// No request depends on this package. If a connection fails, the package does not try again for a while; the engine's
// hand-offs then last for one lease, and must be released in another way.
//
// The package decides nothing about requests, knows no metrics by name, opens connections only with the given dialer, and
// does not close the notifier.
package lease
