// Package extproc is the ext-proc server of the endpoint picker. Envoy, or a gateway that speaks the same protocol, opens one
// gRPC stream for each HTTP request and sends the request's headers and body as frames.
//
// Frames of a request enter; the headers that change, and the body, leave. The server scans the body as it arrives and keeps the
// slices it came in. When the request is complete, a Scheduler picks. A request that cannot be served is answered at once, in
// the shape of the API that was called. Observers are told the outcome.
//
// The stream's metadata x-tandem-filter says which of three ext-proc filters it comes from:
//
//   - none: the only filter, as gateways configure it today. The stream picks, and lives as long as the answer, because the
//     reservation made at the pick ends with it.
//   - picker: the first of a pair. It picks, leaves the reservation with the ledger under the plan's id, and ends.
//   - acct: the second of a pair. It takes the reservation over, sees headers and trailers of the answer, and ends with it.
//     Envoy is configured to continue without it, so a picker that dies cuts no answer.
//
// Each direction of a stream is a small state machine (request.go, response.go). They share one rule: once the answer has begun,
// this server no longer answers the request itself. A request may end with its headers, with a body frame that may be empty, or
// with trailers; all three are one event. A stream may end by EOF, cancellation or a lost connection; all three mean that the
// request is over, and none of them is an error. A handler never returns while a frame of the request is unanswered, because
// Envoy would send the rest of the request without it.
//
// # Killed pickers
//
// Envoy sends a request that it still has to another picker when the one that read it dies, but only until the answer has begun.
// An answer is two or more gRPC messages, which may leave in more than one write. If the picker is killed between two of them, the
// client gets a 503 with Retry-After. Two benchmarks measure how often:
//
//	go test -run '^$' -bench ExposedAnswer -benchtime 10000x ./epp/extproc
//	go test -run '^$' -bench PickerKilled -benchtime 100x ./epp/extproc
//
// On two cores, overloaded tenfold by other work, the first and the last write of an answer to a 1 kB request were 6 to 20 µs
// apart on average: at 1,000 picks per second, 50 to 150 kills for one failed request. Behind a real Envoy, 2 requests failed in
// below gRPC. We had one. It cost 3 allocations per request. No request failed in 120 kills, but it did not help where
// answers are exposed longest: with 24 kB bodies and 32 concurrent streams they were exposed for 17 µs with it and for 21 µs
// without. So it was removed.
//
// # Rewritten models
//
// Where the pool's policy has another model answer, the server replaces the name in the request's body, leaves all other bytes
// as they came, and corrects a declared length. The sidecar is told the client's name and puts it back into the answer; where the
// gateway sends answers through this server, so does this package. With another vendor's sidecar behind a gateway that does not,
// or behind the pair, the answer has the engine's name. The name is recognised as the one that was put into the request: vLLM
// answers with the first of its --served-model-name, so a rewrite to a later one of them is not undone. Paths that generate
// nothing, such as /tokenize and /v1/models, know the engine's names only.
//
// The server reads no other answers. Where the gateway sends them, it echoes them. A stream has no goroutine but its handler;
// deadlines are timers. The package does not pick, queue or shed requests, and keeps no state between streams but in the
// ledger. Package envoyconf writes the configuration with which Envoy uses this server.
package extproc
