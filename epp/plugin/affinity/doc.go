// Package affinity holds the plugins that keep a request close to certain endpoints: near the endpoint of another stage, to the
// endpoint that its session was sent to before, to endpoints that have encoded its images, or to those with a label that the client
// names. Its filters require that, its
// scorers prefer it.
//
// A round and its candidates enter, with the client's headers and the endpoints that were picked for earlier stages; candidates or
// scores leave, and headers of answers. The package knows no prefix caches (epp/plugin/producer and epp/prefix do).
package affinity
