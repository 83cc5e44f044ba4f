package scale

import (
	"slices"
	"time"
)

const (
	latestStarts = 9         // of a role, whose median counts
	leastStarts  = 3         // fewer say less than the configuration
	longestStart = time.Hour // a wish that is older was not granted: no node has a free GPU, or a limit holds
)

// starts learns how long replicas of a role take from the wish for them until requests can be sent to them: an autoscaler that asks, a node, the
// image, the weights. The zero value knows none.
type starts struct {
	replicas map[string]bool // that there are, by namespace and name of the pod
	wishes   []time.Time     // of those that have not come, the earliest first
	took     []time.Duration // of the latest starts, the latest last
}

// wish says how many replicas are wanted now.
func (s *starts) wish(now time.Time, wanted int) {
	s.wishes = slices.DeleteFunc(s.wishes, func(at time.Time) bool { return now.Sub(at) > longestStart })
	missing := max(0, wanted-len(s.replicas))
	for len(s.wishes) < missing {
		s.wishes = append(s.wishes, now)
	}
	s.wishes = s.wishes[:missing] // the latest wishes are the first to be given up
}

// join says that a replica can be sent requests. One that replaces another, or that was not wished for, tells nothing.
func (s *starts) join(now time.Time, replica string) {
	if s.replicas[replica] {
		return
	}
	if s.replicas == nil {
		s.replicas = map[string]bool{}
	}
	s.replicas[replica] = true
	if len(s.wishes) == 0 {
		return
	}
	s.took = append(s.took, now.Sub(s.wishes[0]))
	s.took = s.took[max(0, len(s.took)-latestStarts):]
	s.wishes = s.wishes[1:]
}

// leave says that a replica has gone.
func (s *starts) leave(replica string) { delete(s.replicas, replica) }

// median returns that of the latest starts, or else what is usual if there have been too few.
func (s *starts) median(usual time.Duration) time.Duration {
	if len(s.took) < leastStarts {
		return usual
	}
	sorted := slices.Sorted(slices.Values(s.took))
	return sorted[len(sorted)/2]
}
