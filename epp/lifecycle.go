package epp

import "time"

// PickObserver is a plugin that learns which endpoints requests are sent to. It must be safe for concurrent use.
type PickObserver interface {
	// Picked is called after every pick, on the goroutine of the request, which waits for it. all are the candidates of the
	// pick. It must not keep its arguments, but for the endpoints.
	Picked(r *Round, all []Candidate, d *Decision)
}

// SourceFinder is a plugin that names an endpoint from whose memory the engine that computes a prompt fetches blocks which it lacks. It must
// be safe for concurrent use.
type SourceFinder interface {
	// Source returns that endpoint, nil if there is none, and how many tokens of the prompt it has cached. It is called after a pick that has found endpoints, on the goroutine of the
	// request. all are the candidates of the pick. It must not keep its arguments.
	Source(r *Round, all []Candidate, d *Decision) (source *Endpoint, tokens int)
}

// Stamper is a plugin that adds headers to answers. It must be safe for concurrent use.
type Stamper interface {
	// Stamp calls set for each header. It must not keep the answer.
	Stamp(a *Answer, set func(name, value string))
}

// Answer is what is known of an answer when its headers arrive.
type Answer struct {
	Decision *Decision // for the request
	By       *Endpoint // that the answer comes from: usually the first of the decision; never nil
	Reported string    // ip:port of the metadata HeaderServed, as the gateway wrote it; "" = it reports none
	// TTFT is the time to the first token (see Outcome.TTFT); 0 if it has not come yet, or the sidecar is not ours.
	TTFT time.Duration
}

// EndpointObserver is a plugin, or a value that it keeps, that learns which endpoints the pool has. The pool calls it, one
// call at a time. Its methods must return quickly and must not wait for the pool.
type EndpointObserver interface {
	// EndpointJoined is called for every endpoint that the pool has when the observer is added, and for each that joins
	// later. A new version of an endpoint (see Endpoint.With) joins without the old one leaving.
	EndpointJoined(e *Endpoint)
	// EndpointLeft is called for an endpoint that has left the pool, and again just before another endpoint gets its slot,
	// because a pick in progress may have taught the observer something about it in between. The slot is reused only after
	// all observers have returned.
	EndpointLeft(e *Endpoint)
}

// SnapshotObserver is a plugin that is told of changes of the pool. An Admission that makes requests wait for capacity learns
// by it when to look again, without a timer.
type SnapshotObserver interface {
	// Watches returns the kinds of changes that it is told of. They must not vary.
	Watches() Changes
	// SnapshotChanged is called from one goroutine, after the changes show in the pool's snapshot, or, if it is InFlightFell,
	// at its endpoints. If it is slower than changes come, one call stands for several of them. It must not change the
	// snapshot.
	SnapshotChanged(s *Snapshot, what Changes)
}
