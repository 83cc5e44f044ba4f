// Package latency learns, while requests are served, how long engines take: to compute a prompt, to hand its KV cache to another
// engine, and for each further token of an answer.
//
// In go the outcomes of requests (Model.Observe), with what the pick knew of the engines, and what is sent to them (Model.Sent). Out
// come expected times for a request that is not picked for yet (Prompt, Handoff, Token). Each is a sum of a few terms, such as the
// tokens to be computed and those that are computed before, whose weights are fitted to the latest outcomes: of each engine, and
// of all engines together where little is known of one. Before there are any outcomes, the weights are those of a usual GPU.
//
// The package decides nothing, asks no engine, and keeps nothing about prompts but their lengths.
package latency
