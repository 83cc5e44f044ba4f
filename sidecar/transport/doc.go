// Package transport carries requests to engines: connection pools, legs, and the headers of both directions.
//
// The client's headers and a body enter. Requests for one engine leave, made so that they may be sent again over another
// connection, and answer headers without those that only Tandem may write. Buffered bodies are written to the socket without
// a copy.
//
// The package does not decide where a leg goes, does not read answers, and knows no hand-off protocol.
package transport
