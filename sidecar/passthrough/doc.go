// Package passthrough proxies the calls that are not generate calls to the local engine.
//
// What enters are requests of any path and method. What leaves is the same request, less the headers that only Tandem may
// set, and with a body from which the intake has removed what clients may not send. Engines have more paths to generation
// than the APIs that Tandem knows (and will have others), so every body that an engine could read as JSON is cleaned.
//
// It does not retry, does not buffer bodies, and never uses a prefill pod.
package passthrough
