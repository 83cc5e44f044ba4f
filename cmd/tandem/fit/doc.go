// Package fit measures how long the steps of an engine take, from outside.
//
// The address of an OpenAI-compatible engine enters, vLLM or SGLang; it must serve no other requests meanwhile. A Result leaves: a table of
// step times in the form that package replay/engine reads, with what else a replay must know of the engine, and how well the table
// describes what was measured.
//
// # What is measured
//
//   - prefill: the time to the first token of a prompt that is alone. Prompts are random token ids, so that no prefix cache knows them;
//     rows with context continue a prompt that was sent before.
//   - decode: the time from token to token while a number of answers are generated at once.
//   - mixed: how much longer a few such steps take when a prompt comes in, all of it counted as of one step. Not of SGLang, which computes
//     prompts in steps of their own.
//   - request: what the first token of a prompt of one token takes longer than a step of one answer: HTTP, the tokenizer, processes
//     that pass the request on. It delays requests, but takes no time of the engine.
//
// All steps are measured in rounds, until the time is over: what disturbs the machine for a while then disturbs a part of each
// measurement, and not some of them. The ends of a measurement's times are cut off before the mean is taken.
package fit
