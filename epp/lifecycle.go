package epp

// EndpointObserver is a plugin, or something it keeps, that is told which endpoints the pool has. The pool calls it, from
// one goroutine at a time. Its methods must return quickly and must not wait for the pool.
type EndpointObserver interface {
	// EndpointJoined is told of every endpoint that the pool has when the observer is added, and of each that joins later. A
	// new version of an endpoint (see Endpoint.With) joins without the old one leaving.
	EndpointJoined(e *Endpoint)
	// EndpointLeft is told of an endpoint that has left the pool, and once more just before its slot is given to another
	// endpoint, because a pick that was under way may have taught the observer something about it in between. The slot is
	// given away only after all observers have returned.
	EndpointLeft(e *Endpoint)
}

// SnapshotObserver is a plugin that is told when endpoints joined or left, loads were read, or endpoints became unreachable
// or reachable again. It is called from one goroutine, after the changes show in the pool's snapshot. If it is slower than
// changes come, one call stands for several of them. It must not change the snapshot.
type SnapshotObserver interface {
	SnapshotChanged(s *Snapshot, what Changes)
}
