// Package flow decides when requests may be picked for: while the pool is full they wait, and the most important one goes as
// soon as there is capacity.
//
// A Controller is an epp.Admission. A request passes at once while no request waits and the Gate finds capacity for it: three
// atomic operations and one look at the gate. Otherwise it waits in a queue, in three steps:
//
//   - Bands. Requests of one priority form a band. A higher band always goes first. A band may use the pool only up to a
//     ceiling, which may be lower for lower bands, so that capacity is left for higher ones.
//   - Flows. Within a band, requests with one fairness id form a flow. The band's Fairness says which flow is next.
//   - Order. Within a flow, the band's Ordering says which request is next.
//
// Each flow has two lines: requests that the first stage alone serves, and requests that need the stage that splits them as
// well. A full prefill pool stops only the second line. It does so for all lower bands too: a less important request must not
// take the capacity that a more important one waits for.
//
// No goroutine polls. Dispatching happens when a request arrives, when the pool reports a change (SnapshotChanged), and when a
// pick that was let pass has ended (Settled). Only requests that SoftReflective makes wait for a later turn are looked at again
// after a millisecond. Between a dispatch and the end of its pick the request is pending: the gate counts it, although no endpoint
// is charged yet. So a burst of waiting requests never exceeds the capacity that the gate measures.
//
// A request leaves the queue when it is dispatched, when its client leaves, when its time to live ends, when it is evicted for
// a more important one, or when the controller closes. All of them take O(log n).
//
// Queues are limited in requests and in bytes of their bodies: all of them together, each band, and each flow. A request that
// would exceed a limit is refused, with its position in the queue and how long it would have waited. Before that, requests of
// negative priority are evicted for it, the lowest band first and there the newest request, if its own priority is higher and
// only the limit of all queues is exceeded.
//
// Fairness by served tokens counts only requests that waited: what a flow got while the pool had capacity left took nothing from the
// others. Fairness by least attained service counts all requests, as in llm-d. A request is charged
// when it is dispatched: for the tokens of its prompt, and for those that the answers of its flow had lately. When it has ended, the
// charge becomes what it has cost (Observe). Without the estimate a flow would look served too little until its first answers end, and
// then too much: flows would take turns of seconds.
//
// With Eviction, running requests of negative priority end for more important ones that wait for the first stage: see Running. Few
// end at a time, and others only when the capacity that this has freed shows at the gate.
package flow
