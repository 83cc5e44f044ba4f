// Package sched picks the endpoints of a request: the one that decodes it, and those of every other stage that runs.
//
// Pick takes a Request and the pool's current Snapshot and returns an epp.Decision whose load is reserved on its endpoints,
// or a *pd.Refusal that says what was missing. A Pipeline is one checked configuration. A Scheduler picks with its latest
// Pipeline; a pick that runs while it is replaced ends with the old one.
//
// A request goes through these steps:
//
//  1. Preparers look things up and add them to it (epp.Preparer). They run at once, each with a deadline; if one fails the
//     request continues without its result.
//  2. The admission (epp.Admission) lets it pass, makes it wait, or refuses it. This is the place for queues.
//  3. The snapshot is taken. While the detector finds the pool full, requests of negative priority are refused: after the wait
//     of step 2, and by the loads that the pick itself reads. An admission that sheds load itself needs no detector. Admitters
//     (epp.Admitter) may refuse further ones.
//  4. The stages are picked for, in the order of epp.Stages. The first one, decode, always runs. For the stage that splits
//     requests, prefill, the client's P/D mode comes first, then whether the request can be split, then the decider, which
//     sees how much of the prompt the chosen decode endpoint has cached. The decider of each other stage says whether it runs.
//     A stage's profile runs only if the stage runs, or if its decider compares (epp.Comparer). Where engines compute only a part
//     of a request (epp.EngineMode), only those are candidates that compute what the stage is for; if the decision does not fit
//     the first stage's endpoint, another one is chosen that it fits, or the request is split, or refused (decode-only).
//  5. The load is charged to the first endpoint of each stage, and the matcher learns which endpoints compute the prompt.
//
// If the client leaves, steps 1 and 2 end; the other steps do not wait. A profile is a chain: filters drop candidates,
// scorers rate them, weighted ratings are summed to totals, and the picker chooses by the totals.
//
// The gateway's subset holds for all stages, as in llm-d: gateways use it to keep a request to one version or zone, which KV
// caches must not leave either. If a subset has only decode endpoints, prompts are computed there (no-prefill).
//
// If a profile's detector leaves no candidate, the request is refused as saturated (429). Requests planned for remote prefill
// stay local only within the fallback budget while the prefill endpoints are full or missing, so that decode is not
// overloaded too.
//
// A pick charges its endpoints only if their load in flight is still what it saw, and is made again otherwise. The last try
// runs alone, so that a burst spreads over idle endpoints. Ties are broken at random, reproducibly under a seed.
//
// Explain takes the same steps and records them. It reserves, learns and counts nothing.
//
// Outcomes go from Observe through a queue to the observers of the configuration in use, on the goroutine of Run. If the
// queue is full they are dropped and counted.
//
// The package does not know any plugin and keeps no state between picks but counters, the fallback budget and the queue of
// outcomes. epp/pool has the loads, and an epp.Matcher the prefix caches.
package sched
