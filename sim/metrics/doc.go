// Package metrics is the metrics page of a simulated engine, in the real engine's text format.
//
// Counts, gauges and observations enter; the page leaves. It is written without a client library because its format is part of
// the protocol: label order, the `_created` gauges and the content type are those of the real engines, and a scraper of the real
// page must be able to read this one. The package does not know what an engine is doing: package sim counts, and package
// api sets the gauges before it shows the page.
package metrics
