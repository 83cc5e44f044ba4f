// Package envoy runs the real Envoy, for tests and trials.
//
// A bootstrap enters, as cmd/tandem envoy-config writes it; the addresses of its listeners and its counters leave. Ports may be
// 0. The caller that starts an Envoy stops it. If the parent is killed instead, Linux kills the child with it.
//
// The package fetches no Envoy (make .tools/envoy does) and writes no bootstrap (epp/extproc/envoyconf does).
package envoy
