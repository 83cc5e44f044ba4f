// Package epp holds the nouns of the endpoint picker and the interfaces of its plugins.
//
// A Request is what a client asks for, as epp/read understands it; the pool's Policy gives it a priority and the model that
// answers. A Snapshot holds the Endpoints it may go to. A Decision says where it goes and why, a Reservation adds its load to
// the chosen endpoints until it ends, and an Outcome says how it ended.
//
// Requests, snapshots and decisions do not change after they were made, so any number of goroutines may read them. The load
// in flight of an Endpoint does change: it is one atomic word, which a pick charges.
//
// # Stages
//
// A request is served in stages: decode, which always runs and whose endpoint gets the request, then prefill, and further
// stages that a Handler lists. Stages is that list, and a StageRow describes one stage: its profile, its role, when it runs,
// whose endpoint it must not take, how it is charged, and which header names it to the sidecar. Decisions, reservations,
// traces, explanations and plans hold one entry for each stage, so a further stage is a further row.
//
// # The way of a request
//
// Preparer → Admission → snapshot → for each stage: Decider, Filter, Scorer, Picker → Reservation → Outcome → Observer.
// Only the first two may wait, and both stop waiting when the client leaves: epp/sched describes the steps.
//
// # Adding a plugin
//
// A plugin is one file and one row in epp/plugin's Table, as that package describes. The instance that Build returns is used
// for every interface of this package that it implements:
//
//   - Filter, Scorer and Picker run in profiles. They allocate nothing, work on the candidates of one Round, and give the middle
//     score for unknown values.
//   - Decider rules whether a stage runs. It gets the endpoints chosen before, with their loads, and the prompt. If it also
//     implements Comparer it gets the ranked candidates of the stage and their links; the stage's profile then runs for every
//     request. Its reason must be one of pd.Reasons. Explanations show its costs.
//   - LinkEstimator estimates the network between two endpoints, for Comparers.
//   - Producer computes signals for the candidates of every pick, for scorers and explanations.
//   - Preparer looks something up before the pick, within its own timeout, and returns a function that adds it to the request:
//     exact tokens in Request.Prompt, or a value of a type of its own by Attach, which others read by Attached. If it fails
//     the request goes on without.
//   - Admission lets requests wait or refuses them. There is at most one. If it also implements SnapshotObserver, it is told
//     when requests end on endpoints (InFlightFell), so that it needs no timer to let the next one pass.
//   - Observer gets the outcome of every request with its Decision: what was picked, what was seen of it (StagePick.Seen),
//     what the decider expected (Decision.Costs). It runs apart from all streams, so it may take a lock, but not seconds.
//   - EndpointObserver and SnapshotObserver are called at changes of the pool.
//
// A reload builds new plugins and closes the old ones. When the reload is done, no observer of the old configuration is
// called any more. The new ones get all endpoints of the pool, and the outcomes of requests that the old configuration picked
// for. State that must survive belongs in Builder.Keep.
//
// The package reads no requests (epp/read does), picks nothing (epp/sched does), speaks no protocol (epp/extproc does) and
// finds no endpoints (epp/pool does). Only its ledger starts timers, on the Clock that it is given.
package epp
