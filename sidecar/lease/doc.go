// Package lease renews and releases hand-offs by notices to prefill engines: those whose dialect is a [dialect.Noticer] take
// heartbeats and releases from any agent that knows how to reach them.
//
// What enters are finished hand-offs; what leaves are notices over a [transfer.Notifier]. A [Book] knows the engines. It meets
// each one in the background: it asks the engine's side channel how its ranks are reached, and has the notifier load them. A
// [Hold] is one hand-off: heartbeats renew it until it ends, and it can be released.
//
// No request depends on this package. An engine that cannot be met, or is not understood, is not asked again for a while; its
// hand-offs then last for one lease, and must be released in another way.
//
// It decides nothing about requests, knows no metrics by name, opens only connections of the dialer it was given, and does not
// close the notifier.
package lease
