// Package envoy runs the real Envoy, for tests and trials.
//
// In goes a bootstrap, as cmd/tandem envoy-config writes it; out come the addresses of its listeners and its counters.
// Ports may be 0. The caller that starts an Envoy stops it; should the parent be killed instead, Linux kills the child with it.
//
// It fetches no Envoy (make .tools/envoy does) and writes no bootstrap (epp/extproc/envoyconf does).
package envoy
