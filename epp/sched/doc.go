// Package sched picks the endpoints of a request: the one that decodes it, and those of every other stage that runs.
//
// Pick takes a Request and the pool's Snapshot of this moment and returns an epp.Decision whose load is reserved on the
// endpoints it names, or a *pd.Refusal that says what was missing. A Pipeline is one configuration, checked; a Scheduler
// picks with the one it was given last, and a pick that runs while it is replaced ends with the one it began with.
//
// A request goes through these steps:
//
//  1. Preparers add to it what has to be looked up (epp.Preparer). They run at once, each with a deadline, and fail open.
//  2. The admission (epp.Admission) lets it pass, makes it wait, or refuses it. This is the place for queues.
//  3. The snapshot is taken. While the detector of the pool says full, requests of negative priority are refused. That comes
//     after the wait of step 2, on the loads that the pick itself sees. An admission that sheds by itself needs no detector.
//  4. The stages are picked for, in the order of epp.Stages. The first one always runs: the decode profile. For the stage
//     that splits requests, prefill, the client's P/D mode counts first, then whether the request can be split at all, then
//     the decider, which sees how much of the prompt the chosen decode endpoint has cached. Other stages run as their
//     decider says. A stage's profile runs only when the stage is wanted, or to be compared by its decider (epp.Comparer).
//  5. The load is charged to the first endpoint of each stage, and the matcher learns who computes the prompt.
//
// A caller that leaves ends steps 1 and 2; the others wait for nothing. A profile is a chain: filters drop candidates,
// scorers rate them, weights add the ratings up to totals, and the picker orders by these.
//
// The gateway's subset holds for all stages, as in llm-d: gateways keep a request to one version or zone by it, and KV
// caches must not leave those either. One that names decode endpoints only has all prompts computed on them (no-prefill).
//
// A profile whose detector leaves no candidate refuses as saturated (429). What should be prefilled remotely while the
// prefill endpoints are full or missing must not all become decode's work: it stays local only within the fallback budget.
//
// A pick is optimistic. It charges its endpoints only if their load in flight still is what it saw, and is made again
// otherwise. The last try runs alone, so that a burst spreads over idle endpoints instead of running to the first of them.
// Ties are broken at random, reproducibly under a seed.
//
// Explain takes the same steps and records them. It reserves, learns and counts nothing.
//
// Outcomes go from Observe through a queue to the observers of the configuration in use, on the goroutine of Run. If the
// queue is full they are dropped and counted.
//
// The package does not know any plugin and holds no state between picks but counters, the fallback budget and the queue of
// outcomes. Loads are in epp/pool, prefix caches behind epp.Matcher.
package sched
