// Package lease keeps hand-offs alive, and gives them back, by telling prefill engines directly: a vLLM engine with the NIXL
// connector takes heartbeats and releases as notifications from any agent that knows how to reach it.
//
// In go finished hand-offs; out go notifications over a [transfer.Notifier]. A [Book] knows the engines. It meets each one
// beside the requests: it asks the engine's side channel how its ranks are reached, and has the notifier load them. A [Hold]
// is one hand-off: it is held by heartbeats until it ends, and can be released.
//
// Nothing here is needed for a request to be served. An engine that cannot be met, or is not understood, is left alone for a
// while, and its hand-offs are what they are without this package: good for one lease, and to be given back in another way.
//
// What it does not do: it decides nothing about requests, knows no metrics by name, opens no connection but those of the
// dialer it was given, and does not close the notifier.
package lease
