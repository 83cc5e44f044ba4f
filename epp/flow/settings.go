package flow

import (
	"cmp"
	"slices"
	"time"
)

// Settings say how requests wait.
type Settings struct {
	All  Limits // of all queues together
	Flow Limits // of each flow of a band
	// TTL is how long a request waits at most; 0 = until its client leaves.
	TTL time.Duration
	// EmptyTTL replaces TTL for requests that arrive while the pool has no endpoints, so that a pool can be started for them.
	EmptyTTL time.Duration
	// Usage says how full the pool may be when a request passes.
	Usage    Usage
	Eviction Eviction
	// Bands are the bands with settings of their own.
	Bands []Band
	// Other and Negative are the settings of the bands that Bands does not list, of priority 0 and more, and of less. Their
	// Priority is ignored.
	Other, Negative Band
}

// Limits limit a queue. 0 = no limit.
type Limits struct {
	Requests int
	Bytes    int64 // of the requests' bodies
}

// exceeded reports whether a queue of these sizes exceeds the limits.
func (l Limits) exceeded(requests int, bytes int64) bool {
	return l.Requests > 0 && requests > l.Requests || l.Bytes > 0 && bytes > l.Bytes
}

// Band are the settings of one priority.
type Band struct {
	Priority int
	Limits   Limits
	TTL      *time.Duration // in place of Settings.TTL; nil = that
	Fairness Fairness
	Attained Attained // of LeastAttained
	Depth    Depth    // of DeepestFirst
	Ordering Ordering
}

// Fairness says which flow of a band is next.
type Fairness uint8

// The fairness policies.
const (
	// GlobalStrict ignores flows: the first request in the order of the band is next.
	GlobalStrict Fairness = iota
	// RoundRobin gives every flow with waiting requests one request in turn.
	RoundRobin
	// ServedTokens gives every flow with waiting requests an equal share of the tokens of requests that waited, whatever the sizes
	// of its requests. A flow that was idle gets no credit for it.
	ServedTokens
	// LeastAttained prefers the flow that got the fewest tokens lately, also of requests that did not wait.
	LeastAttained
	// DeepestFirst prefers the flow with the most requests so far: a long session, whose prompt is most likely cached.
	DeepestFirst
)

// charges reports whether flows are charged what their requests cost: tokens, those of answers twice, or turns. The tokens that a request
// is charged when it is dispatched are an estimate, which is corrected when it has ended.
func (f Fairness) charges() bool { return f == ServedTokens || f == LeastAttained || f == DeepestFirst }

// Sharing is a fairness policy with its parameters.
type Sharing interface {
	Share(b *Band) // makes it the policy of a band
}

// Share implements Sharing.
func (f Fairness) Share(b *Band) { b.Fairness = f }

// Attained are the parameters of LeastAttained. They are a Sharing too.
type Attained struct {
	HalfLife time.Duration // after which tokens count half; 0 = one minute
	Keep     time.Duration // how long flows without requests are remembered; 0 = one hour
}

// Share implements Sharing.
func (a Attained) Share(b *Band) { b.Fairness, b.Attained = LeastAttained, a }

func (a Attained) halfLife() time.Duration { return cmp.Or(a.HalfLife, time.Minute) }

// keep returns how long the turn of a flow without requests is remembered.
func (b *Band) keep() time.Duration {
	switch b.Fairness {
	case LeastAttained:
		return cmp.Or(b.Attained.Keep, time.Hour)
	case DeepestFirst:
		return cmp.Or(b.Depth.Keep, time.Hour)
	}
	return restServed
}

// Depth are the parameters of DeepestFirst. They are a Sharing too.
type Depth struct {
	PerSecond float64       // requests that one second of waiting counts as
	Idle      time.Duration // after which the next request of a flow counts as its first one; 0 = never
	Keep      time.Duration // how long flows without requests are remembered; 0 = one hour
}

// Share implements Sharing.
func (d Depth) Share(b *Band) { b.Fairness, b.Depth = DeepestFirst, d }

// Ordering says which request of a flow is next. Requests that are equal go in the order of their arrival.
type Ordering uint8

// The orderings.
const (
	FCFS        Ordering = iota // the first that came
	EDF                         // the one whose time to live ends first
	SLODeadline                 // the one whose first token is due first; requests without a target come last
)

// unlimitedWait stands for no limit where one is needed: clients leave long before.
const unlimitedWait = 24 * time.Hour

// LongestWait returns how long a request may wait at most.
func (s *Settings) LongestWait() time.Duration {
	longest := time.Duration(0)
	for _, ttl := range append([]time.Duration{s.EmptyTTL, s.ttl(&s.Other), s.ttl(&s.Negative)}, s.listed()...) {
		if ttl == 0 {
			return unlimitedWait
		}
		longest = max(longest, ttl)
	}
	return longest
}

// ttl returns how long a request of a band waits at most; 0 = until its client leaves.
func (s *Settings) ttl(b *Band) time.Duration {
	if b.TTL != nil {
		return *b.TTL
	}
	return s.TTL
}

// listed returns the times to live of Bands.
func (s *Settings) listed() (all []time.Duration) {
	for i := range s.Bands {
		all = append(all, s.ttl(&s.Bands[i]))
	}
	return all
}

// Charges reports whether the flows of any band are charged, so that the controller must observe outcomes.
func (s *Settings) Charges() bool {
	charges := func(b Band) bool { return b.Fairness.charges() }
	return charges(s.Other) || charges(s.Negative) || slices.ContainsFunc(s.Bands, charges)
}

// band returns the settings of a priority.
func (s *Settings) band(priority int) *Band {
	if i := slices.IndexFunc(s.Bands, func(b Band) bool { return b.Priority == priority }); i >= 0 {
		return &s.Bands[i]
	}
	if priority < 0 {
		return &s.Negative
	}
	return &s.Other
}
