// Package extproc is the front door of the endpoint picker: an ext-proc server for Envoy and what speaks like it.
//
// In come the frames of one HTTP request on one gRPC stream. The body is read while it arrives and kept as the slices it
// came in; at its end a Scheduler picks. Out go the few headers that change, and the same slices. A request that cannot be
// served is answered at once, in the shape of the API that was called. What becomes of the answer goes to Observers.
//
// A stream says by its metadata x-tandem-filter which of three filters it comes from:
//
//   - none: one filter, as gateways configure it today. The stream picks, and lives as long as the answer, because the load
//     charged at the pick ends with it.
//   - picker: the first of a pair. It picks, leaves the reservation with the ledger under the plan's id, and ends.
//   - acct: the second of a pair. It takes the reservation over, sees headers and trailers of the answer, and ends with it.
//     Envoy is told to do without it, so a picker that dies cuts no answer.
//
// The two directions of a stream are two small state machines (request.go, response.go) that know nothing of each other
// but one thing: once the answer has begun, the request is not answered from here any more. The end of a request is one
// event, be it on the headers, on a body frame that may be empty, or trailers. The end of a stream is one event too: EOF,
// cancellation and a lost connection all mean that the request is over, and none of them is an error. A handler never
// returns while a frame of the request is unanswered, for Envoy would send the rest of the request without it.
//
// A short answer leaves in one write (whole.go): Envoy asks another picker if one dies before it has begun to answer, and only
// then.
//
// Where the pool's policy has another model answer, the name in the request's body is replaced, with all other bytes as they
// came, and a declared length is corrected. The sidecar is told the client's name and puts it back into the answer; where the
// gateway sends answers this way, so does this package. With another sidecar behind a gateway that does not, or behind the
// pair, the answer has the engine's name. It is known by the name that was put into the request: vLLM answers with the first
// of its --served-model-name, so a rewrite to a later one of them is not undone. Paths that generate nothing, such as
// /tokenize and /v1/models, know the engine's names only.
//
// Other answers of engines are never read. Where the gateway sends them, they are echoed. A stream has no goroutine but its
// handler; deadlines are timers. Nothing is picked here, and no state is held between streams but in the ledger. Priorities
// are noted and shown; nothing is queued or shed by them.
//
// Beside the Server stands what Envoy needs to use it: Bootstrap writes its configuration, EDS tells it the endpoints.
package extproc
