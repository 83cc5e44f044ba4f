package epp

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Changes is a set of kinds of changes of a pool.
type Changes uint32

// The kinds of changes.
const (
	MembersChanged Changes = 1 << iota // endpoints joined, left, or became new versions
	LoadsChanged                       // metrics pages were read
	HealthChanged                      // endpoints became unreachable, or reachable again
	InFlightFell                       // requests ended, or their prompts are computed: there is capacity
)

// Publisher notifies subscribers of changes. Publish never waits: changes that a slow subscriber has not taken yet are merged
// with later ones, and take no more memory. The zero value is ready for use.
type Publisher struct {
	wanted        atomic.Uint32 // by any subscription: what none wants costs one read
	mu            sync.Mutex
	subscriptions []*Subscription
}

// Subscription is one subscriber's view of a Publisher. Its methods are safe for concurrent use.
type Subscription struct {
	publisher *Publisher
	wanted    Changes // guarded by the publisher's mu
	pending   atomic.Uint32
	ready     chan struct{} // holds one
}

// Subscribe begins a subscription to the wanted kinds of changes. A subscriber that reads the state after it has subscribed,
// and again after every receive from Ready, misses no change.
func (p *Publisher) Subscribe(wanted Changes) *Subscription {
	s := &Subscription{publisher: p, wanted: wanted, ready: make(chan struct{}, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subscriptions = append(p.subscriptions, s)
	p.noteWanted()
	return s
}

// noteWanted notes what all subscriptions want. The caller holds mu.
func (p *Publisher) noteWanted() {
	var all Changes
	for _, s := range p.subscriptions {
		all |= s.wanted
	}
	p.wanted.Store(uint32(all))
}

// Publish tells subscribers of changes that are already visible.
func (p *Publisher) Publish(c Changes) {
	if p.wanted.Load()&uint32(c) != 0 {
		p.publish(c)
	}
}

func (p *Publisher) publish(c Changes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.subscriptions {
		if c&s.wanted == 0 {
			continue
		}
		s.pending.Or(uint32(c & s.wanted))
		select {
		case s.ready <- struct{}{}:
		default:
		}
	}
}

// Ready returns a channel that gets a value after changes were published. One value may stand for many changes.
func (s *Subscription) Ready() <-chan struct{} { return s.ready }

// Take returns the kinds of changes since the last Take. It may be empty after a receive from Ready.
func (s *Subscription) Take() Changes { return Changes(s.pending.Swap(0)) }

// Want changes the kinds of changes that the subscription is for.
func (s *Subscription) Want(wanted Changes) {
	s.publisher.mu.Lock()
	defer s.publisher.mu.Unlock()
	s.wanted = wanted
	s.publisher.noteWanted()
}

// Close ends the subscription: Ready gets no further value.
func (s *Subscription) Close() {
	p := s.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subscriptions = slices.DeleteFunc(p.subscriptions, func(other *Subscription) bool { return other == s })
	p.noteWanted()
}
