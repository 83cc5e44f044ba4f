// Package dialect knows what engines say to each other: one file per hand-off protocol, one row per protocol in table.go.
//
// What enters is a request as it came, held in segments and scanned once, and later the prefill engine's answer. What
// leaves are the bodies of the legs, as edits of the bytes that came in: a dialect never re-encodes a request. What an engine
// tells about itself on its side channel is read here too. It speaks to no one itself: the sidecar sends the legs, keeps the
// deadlines and decides what a failure means.
package dialect
