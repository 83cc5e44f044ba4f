// Package passthrough proxies the calls that are not generate calls to the local engine.
//
// Requests of any path and method enter. The same requests leave, without the headers that clients may not set, and with
// bodies from which the intake has removed what clients may not send. Engines have more paths to generation than the APIs
// that Tandem knows, and will get others, so every body that an engine could read as JSON is cleaned.
//
// The package does not retry, does not buffer bodies, and never uses a prefill pod.
package passthrough
