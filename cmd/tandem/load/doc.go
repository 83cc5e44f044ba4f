// Package load is the command tandem load: it measures an OpenAI-compatible endpoint under load, and compares remote prefill with
// local prefill, or two endpoints.
//
// What enters are flags: an endpoint, a load, and what to compare. Rounds of requests follow; where two sides are compared they take
// turns, with the same lengths and arrivals and with prompts that no prefix cache has seen. What leaves is a Result: latencies,
// throughput, goodput, failures and decisions of each side, and the differences between them with what the noise allows to say. It is
// written as text, as JSON and as a page.
//
// Calls and prompts come from the package workload, exchanges from the package client, and the look of the page from the package
// report.
package load
