// Package client is the data plane's side of the ext-proc protocol, as Envoy 1.40 speaks it, and Baseline, a minimal server.
//
// The caller sends the headers of an HTTP request, its body in chunks, and later the headers and the trailers of its answer. It
// receives the endpoint picker's answers: changed headers, the body to send upstream, or a reply to the client. The package
// refuses every order of frames that Envoy refuses.
//
// The embedded gateway, benchmarks and tests use it without knowing Envoy's types. It proxies nothing (stack/gateway does), and
// Baseline does not choose between endpoints: it is the lower bound that benchmarks compare pickers with.
package client
