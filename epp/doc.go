// Package epp holds the nouns of the endpoint picker and the interfaces of its plugins.
//
// A Request is what a client asks, as epp/read understands it; the pool's Policy says how urgent it is and which model
// answers it. A Snapshot holds the Endpoints it may go to. A Decision says where it goes and why, a Reservation charges the
// chosen endpoints with its load until it ends, and an Outcome tells how it ended.
//
// Requests, snapshots and decisions do not change once they are made, so any number of goroutines may read them. The load
// in flight of an Endpoint does change: it is one atomic word, charged at the moment of the pick.
//
// # Stages
//
// A request is served in stages: decode, which always runs and whose endpoint gets the request, then prefill, and whatever
// other stages a Handler lists. Stages is that list, and a StageRow says all there is to know of one: its profile, its role,
// when it runs, whose endpoint it must not take, how it is charged, and which header tells the sidecar. Decisions,
// reservations, traces, explanations and plans hold one entry for each stage, so a further stage is a further row.
//
// # The way of a request
//
// Preparer → Admission → snapshot → for each stage: Decider, Filter, Scorer, Picker → Reservation → Outcome → Observer.
// Only the first two may wait, and both stop waiting when the client leaves: epp/sched describes the steps.
//
// # Adding a plugin
//
// A plugin is one file and one row in epp/plugin's Table, as that package describes. What Build returns is used for every
// interface of this package that it implements:
//
//   - Filter, Scorer and Picker run in profiles. They allocate nothing, work on the candidates of one Round, and rate what is
//     not known like the middle.
//   - Decider rules whether a stage runs. It gets the endpoints chosen before, with their loads, and the prompt. If it also
//     implements Comparer it gets the ranked candidates of the stage and what is known of their links, at the cost of running
//     the stage's profile for every request. Its reason must be one of pd.Reasons, and its costs show in explanations.
//   - LinkEstimator tells Comparers what is known of the network between two endpoints.
//   - Producer computes signals for the candidates of every pick, for scorers and explanations.
//   - Preparer looks something up before the pick, within its own timeout, and returns a function that adds it to the request:
//     exact tokens in Request.Prompt, or a value of a type of its own by Attach, which others read by Attached. If it fails
//     the request goes on without.
//   - Admission lets requests wait or refuses them. There is at most one. If it also implements SnapshotObserver, it is told
//     when requests end on endpoints (InFlightFell), so that it needs no timer to let the next one pass.
//   - Observer gets the outcome of every request with its Decision: what was picked, what was seen of it (StagePick.Seen),
//     what the decider expected (Decision.Costs). It runs apart from all streams, so it may take a lock, but not seconds.
//   - EndpointObserver and SnapshotObserver are told of changes in the pool.
//
// A reload builds new plugins and closes the old ones. Observers of all kinds are not called any more when the reload is
// done; the new ones are told all endpoints there are, and the outcomes of requests that the old configuration picked. State
// that must survive belongs in Builder.Keep.
//
// The package reads no requests (epp/read does), picks nothing (epp/sched does), speaks no protocol (epp/extproc does) and
// finds no endpoints (epp/pool does). Only its ledger starts timers, on the Clock that it is given.
package epp
