package main

import (
	"context"
	"sync"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
)

// lifecycle tells the plugins of the configuration in use what changes in the pool.
type lifecycle struct {
	keep   *epp.Keep            // told as well, of endpoints: what it holds may be used again by a later configuration
	shadow epp.EndpointObserver // told as well; nil: there is none. It is set before there are endpoints

	mu        sync.Mutex            // held while plugins are called: after use has returned, those before are not called any more
	members   map[int]*epp.Endpoint // by slot
	endpoints []epp.EndpointObserver
	snapshots []epp.SnapshotObserver
	watched   epp.Changes       // by any of snapshots
	changes   *epp.Subscription // to watched; nil before follow runs
}

// use replaces the plugins that are told by those of another configuration. The new ones are told all endpoints there are.
func (l *lifecycle) use(b *config.Built) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endpoints, l.snapshots = config.Of[epp.EndpointObserver](b), config.Of[epp.SnapshotObserver](b)
	l.watched = 0
	for _, o := range l.snapshots {
		l.watched |= o.Watches()
	}
	if l.changes != nil {
		l.changes.Want(l.watched)
	}
	for _, e := range l.members {
		for _, o := range l.endpoints {
			o.EndpointJoined(e)
		}
	}
}

// EndpointJoined implements epp.EndpointObserver.
func (l *lifecycle) EndpointJoined(e *epp.Endpoint) {
	l.keep.EndpointJoined(e)
	if l.shadow != nil {
		l.shadow.EndpointJoined(e)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.members == nil {
		l.members = make(map[int]*epp.Endpoint)
	}
	l.members[e.Slot] = e
	for _, o := range l.endpoints {
		o.EndpointJoined(e)
	}
}

// EndpointLeft implements epp.EndpointObserver.
func (l *lifecycle) EndpointLeft(e *epp.Endpoint) {
	l.keep.EndpointLeft(e)
	if l.shadow != nil {
		l.shadow.EndpointLeft(e)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.members[e.Slot].Is(e) {
		delete(l.members, e.Slot)
	}
	for _, o := range l.endpoints {
		o.EndpointLeft(e)
	}
}

// changing is a pool that tells of its changes.
type changing interface {
	Snapshot() *epp.Snapshot
	Subscribe(wanted epp.Changes) *epp.Subscription
}

// follow tells plugins of changes of the pool until ctx ends.
func (l *lifecycle) follow(ctx context.Context, pool changing) {
	l.mu.Lock()
	changes := pool.Subscribe(l.watched)
	l.changes = changes
	l.mu.Unlock()
	defer changes.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes.Ready():
		}
		if what := changes.Take(); what != 0 {
			l.tell(pool.Snapshot(), what)
		}
	}
}

func (l *lifecycle) tell(s *epp.Snapshot, what epp.Changes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.snapshots {
		if watched := what & o.Watches(); watched != 0 {
			o.SnapshotChanged(s, watched)
		}
	}
}
