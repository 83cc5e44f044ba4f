// Package handoff runs the legs of generate calls: the prefill leg on a candidate, the decode leg on the local engine, and
// the hand-off between them.
//
// An Exchange takes a call whose headers intake has read, with its body: buffered if both legs are to run, else as it arrives.
// Its result is the engine's answer, which relay sends, or a refusal. A dialect of package pd/dialect makes both bodies and
// says in which order the legs run: one after the other (decode.go), or at the same time (concurrent.go).
//
// What happens when a leg fails depends on how far the call has come:
//
//   - While prefill runs, the next candidate is tried, then local prefill within the budget. If the client leaves, the
//     prefill leg is ended so that its hand-off is not lost (hangup.go).
//   - Once a hand-off exists, it is released, and the call is prefilled locally.
//   - When the decode leg has been sent and nothing has gone to the client, the hand-off is released, by way of decode if
//     decode may be reading it, and the call is prefilled locally. If the client leaves, the leg is cancelled only after the
//     engine has taken it: an engine that reads a request and its end at once may not learn of the hand-off in it.
//   - Once the answer has begun, no leg is sent again. A stream goes on at another engine if it may (continue.go), and else ends with
//     an error event.
//   - When the drain deadline has passed, nothing is tried again: the call is refused, or its stream ends.
//
// A request for several choices, of a dialect whose hand-off is for one, is run as several exchanges whose answers package merge
// makes into one (choices.go).
//
// The package does not choose candidates, and does not decide which calls are admitted.
package handoff
