// Package engine models one inference engine in virtual time: which requests each step runs, how long the step takes, and which
// blocks of the KV cache they hold.
//
// A Table has the step times of one model on one kind of GPU. It is read from CSV, which may have Settings of the engine; ten
// tables are part of the package. Requests enter an Engine by Add, and Advance carries it to a moment. It calls a Listener when a
// request has its first token, when a request is done, and when the blocks of a request are reserved whose KV cache comes from
// another engine.
//
// The scheduler is that of vLLM's engine core: a step has a budget of tokens and of sequences; running requests come first, then
// waiting ones in their order; long prompts are computed in chunks; if blocks are missing, the youngest running request is preempted
// and computed again. A request waits until there are blocks for all its tokens. With PrefillFirst it is like SGLang's default: prompts
// are computed in steps of their own, while answers pause; TokenArrives has the first token of a Remote request come with its KV
// cache. Steps in which the batch stays the same are one event, however many they are.
//
// testdata has what vLLM's scheduler decided for scripted requests: chunks, budgets, shared prefixes, eviction, preemption. The engine
// decides the same in every step: which requests run, how many tokens of each, which ones wait, and how many blocks are free.
//
// With Config.Adapters, requests with a LoRA adapter wait while as many other adapters run as can be loaded, a step that needs one that is not
// loaded waits for it, and steps with adapters take longer.
//
// With Config.HostTokens, what enters the prefix cache is copied to the host's memory at once, and the least recently used part goes when that is
// full. What a request finds there behind the parts in the prefix cache is loaded by the step that it joins. What comes from another engine is
// not loaded, as with vLLM's MultiConnector where that connector comes first.
//
// # Approximations
//
//   - Prompts are compared in the parts that a trace names (512 tokens in Mooncake's), not in the engine's blocks. The last,
//     incomplete part is not shared. Answers are shared if Request.Parts go on behind the prompt.
//   - With asynchronous scheduling, vLLM schedules a step before the one before it has ended. So there a request starts, and the blocks
//     of one that has ended are free, up to one step later than here.
//   - One block of vLLM's KV cache is never used; here all are.
//   - A step that computes several prompts takes as long as one prompt of as many new tokens, behind the mean of what was computed
//     before each.
//   - Sampling, tokenizers and HTTP take the stated overhead of a step, whatever the step.
//   - A step waits for what it loads from the host's memory. vLLM has the request wait and goes on with others; SGLang overlaps loading with the
//     first layers. Copying to the host's memory takes no time.
//   - SGLang retracts the requests that have generated least; here the youngest is preempted in both.
//
// The package knows no pool, no picker and no network: package replay has them.
package engine
