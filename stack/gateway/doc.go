// Package gateway is a minimal HTTP proxy in front of an endpoint picker, for trying Tandem out where Envoy is absent, and
// for tests. It is not for serving: it has no TLS, no limits, no access log and no health checks. cmd/tandem envoy-config
// writes what takes its place.
//
// In come requests of clients; each is told to the picker over ext-proc in the same layout as Envoy would, goes to the
// endpoints that the picker names, best first, and its answer is told to the stream that accounts. Like Envoy it removes
// what clients must not say, streams bodies through the picker while they arrive, tries the next endpoint where nothing
// has reached the client, and lets an accounting stream fail without harm.
//
// It knows no pool: where Envoy would try any endpoint after the picker's list, it begins the list again.
package gateway
