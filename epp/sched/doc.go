// Package sched picks: which endpoint decodes a request, whether its prompt is computed there or elsewhere, and where.
//
// In come an epp.Request and the pool's snapshot of this moment; out comes an epp.Decision whose load is reserved on the
// endpoints it names, or a *pd.Refusal that says what was missing. A Pipeline is one configuration, checked; a Scheduler
// picks with the one it was given last, and a pick that runs while it is replaced ends with the one it began with.
//
// The decode profile runs first. Then the client's word counts, then whether the request can be split at all, then the
// decider, which sees how much of the prompt the chosen decode endpoint has cached. Only what shall go remote runs the
// prefill profile, in which the chosen decode endpoint is no candidate. A profile is a chain: filters drop candidates,
// scorers rate them, weights add the ratings up to totals, and the picker orders by these.
//
// The gateway's subset holds for both stages, as in llm-d: gateways keep a request to one version or zone by it, and KV
// caches must not leave those either. One that names decode endpoints only has all prompts computed on them (no-prefill).
//
// There is no queue: what cannot be served soon is refused. A profile whose detector leaves nobody refuses as saturated (429),
// and a detector over the whole pool refuses requests of negative priority sooner. What should go remote while prefill is full,
// or not there, must not all become decode's work: it stays local only within the fallback budget.
//
// A pick is optimistic. It charges its endpoints only if their load in flight still is what it saw, and is made again
// otherwise, the last time with no other last try beside it, so that a burst spreads over idle endpoints instead of running
// to the first of them. Chance decides between equals, reproducibly under a seed.
//
// Explain takes the same way with somebody writing along, and reserves and learns nothing.
//
// The package does not know any plugin, waits for nothing but other picks, starts no goroutine and holds no state between
// picks but a counter: queues are in epp/flow, loads in epp/pool, prefix caches behind epp.Matcher.
package sched
