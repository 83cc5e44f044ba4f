// Package replica has pickers that serve one pool act as one: what one of them knows only because it picked, the others learn some
// milliseconds later.
//
// The state of this picker leaves, as lines of JSON on one HTTP response for each replica that asks: what has changed, at most once in
// every interval, and a heartbeat. The state of the others enters the same way: an Exchange follows every address that the names of
// the replicas resolve to. What a replica has told of counts until it tells otherwise, closes the connection or is silent for three
// seconds. So the requests of a replica that dies stop counting, and one that comes back is counted from its first line on.
//
//   - Loads in flight, by endpoint: Endpoint.InFlight is the load of all replicas, for scorers, limits of concurrency and reservations
//     alike. A load that has fallen is told one interval later, because requests that wait here may take what has become free.
//   - What waits in queues, by priority, for limits of queues (Waiting).
//   - Endpoints that it finds unreachable, which the others then check themselves, at once (Options.Check).
//   - Prompts that matchers have learned (epp.SharedMatcher), as hashes of their blocks and the endpoint, if all replicas hash prompts with one
//     secret. A journal of 8 MiB holds those that are yet to be told; each replica is told of at most 8 MiB of hashes in a second.
//   - How many replicas of engines it wants (SetSizes), so that all of them tell autoscalers the same: the largest number that any of them
//     wants (Largest).
//
// What others have sent since their last line is not known. Endpoint.Untold is how much this picker has sent that the others cannot know yet:
// who measures what is free takes each of the others to have sent as much, so that two replicas do not both take the same last slot
// (epp/flow's PoolGate).
//
// Streams were chosen over gossip because replicas are few, every one needs all loads of all others, and milliseconds of age matter:
// n replicas hold n·(n-1) connections, and nothing is told twice. They were chosen over a store such as Redis because a pick must not wait for
// one, and because a dead replica's connection ends by itself, while its entries in a store would have to expire.
//
// # What it does not do
//
// The package elects no leader and agrees on nothing: of n replicas, n-1 may each send one or two requests more than a limit of concurrency allows,
// for an instant. It does not tell what KV events say, which every replica hears itself, nor sessions, nor which requests wait. It sends no text of
// prompts. It finds no replicas but by the names that it is given.
package replica
