// Package transport carries requests to engines: connection pools, legs, and the headers of both directions.
//
// What enters are the client's headers and a body. What leaves are requests for one engine, made so that they may be sent
// again over another connection, and answer headers without those that only Tandem may write. Buffered bodies are written
// to the socket from where they lie, without a copy.
//
// It does not decide where a leg goes, does not read answers, and knows no hand-off protocol.
package transport
