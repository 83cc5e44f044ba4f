// Package client is the data plane's side of ext-proc, as Envoy 1.40 speaks it, and the least server there can be.
//
// In go the head of an HTTP request, its body chunk by chunk, and later the head and the trailers of its answer; out come
// what the endpoint picker makes of them: changed headers, the body as it shall go upstream, or an answer of its own. An
// order of frames that Envoy refuses is refused here too, so what passes here passes there.
//
// It serves the embedded gateway, benchmarks and tests, none of which need to know Envoy's types. It proxies nothing
// (stack/gateway does) and picks nothing: Floor, which benchmarks measure pickers against, knows one answer.
package client
