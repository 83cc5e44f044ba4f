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

// LoadObserver is a plugin that is told when the load of an endpoint was read. The pool calls it after the load has become
// part of its snapshot: in order for one endpoint, at once for several. Its method must return quickly, must not change
// load, and must not wait for the pool.
type LoadObserver interface {
	LoadChanged(e *Endpoint, load *Load)
}
