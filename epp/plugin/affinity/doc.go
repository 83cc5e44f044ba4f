// Package affinity holds the plugins that keep a request close to certain endpoints: near the endpoint of another stage, or to
// endpoints with a label that the client names. Its filters require that, its scorers prefer it.
//
// A round and its candidates enter, with the endpoints that were picked for earlier stages; candidates or scores leave. The
// package knows no prefix caches (epp/plugin/producer and epp/prefix do).
package affinity
