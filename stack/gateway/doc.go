// Package gateway is a minimal HTTP proxy in front of an endpoint picker, for tests, and for trials where Envoy is absent. It is
// not for production: it has no TLS, no limits, no access log and no health checks. cmd/tandem envoy-config writes the
// configuration of an Envoy that replaces it.
//
// Requests of clients enter. The gateway sends each to the picker over ext-proc in the layout that Envoy has, forwards it to the
// endpoints that the picker names, best first, and sends its answer to the accounting stream. Like Envoy it removes headers that
// clients must not send, streams bodies through the picker while they arrive, tries the next endpoint if no byte has reached the
// client, and goes on without an accounting stream that fails.
//
// It knows no pool: where Envoy would try any endpoint after the picker's list, the gateway starts the list again.
package gateway
