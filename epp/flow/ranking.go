package flow

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// rankedFor is how long a priority counts after its last request, as in llm-d.
const rankedFor = 10 * time.Minute

// ranking are the priorities that ceilings depend on: 0, those with settings of their own, and those that had requests lately. It is
// replaced as a whole.
type ranking struct {
	priorities []int                        // in descending order
	used       []*atomic.Pointer[time.Time] // by priority: when a request came, to the second; nil: it always counts
}

func newRanking(s *Settings) *ranking {
	k := (&ranking{}).with(0, nil)
	for i := range s.Bands {
		k = k.with(s.Bands[i].Priority, nil)
	}
	return k
}

func (k *ranking) find(priority int) (i int, found bool) {
	return slices.BinarySearchFunc(k.priorities, priority, func(p, want int) int { return cmp.Compare(want, p) })
}

// with returns a ranking that has one more priority, or k if it has it.
func (k *ranking) with(priority int, used *atomic.Pointer[time.Time]) *ranking {
	i, found := k.find(priority)
	if found {
		return k
	}
	return &ranking{slices.Insert(slices.Clone(k.priorities), i, priority), slices.Insert(slices.Clone(k.used), i, used)}
}

// use notes a request, and reports false if its priority is missing.
func (k *ranking) use(priority int, now time.Time) bool {
	i, found := k.find(priority)
	if found && k.used[i] != nil && now.Sub(*k.used[i].Load()) >= time.Second {
		latest := now // a copy, so that only this case allocates
		k.used[i].Store(&latest)
	}
	return found
}

// lately returns a ranking without the priorities that have had no request for long, or k if there are none. waits reports whether
// requests of a priority wait.
func (k *ranking) lately(now time.Time, waits func(priority int) bool) *ranking {
	unused := func(i int) bool {
		return k.used[i] != nil && now.Sub(*k.used[i].Load()) > rankedFor && !waits(k.priorities[i])
	}
	some := false
	for i := range k.priorities {
		some = some || unused(i)
	}
	if !some {
		return k
	}
	kept := &ranking{}
	for i := range k.priorities {
		if !unused(i) {
			kept.priorities, kept.used = append(kept.priorities, k.priorities[i]), append(kept.used, k.used[i])
		}
	}
	return kept
}

// rank notes a request of a priority, if the ceilings depend on it. It takes a turn.
func (c *Controller) rank(in *configured, priority int) {
	if !in.settings.Usage.ranked() {
		return
	}
	c.turn.Add(1)
	now := c.opt.Clock.Now()
	if c.ranking.Load().use(priority, now) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	used := &atomic.Pointer[time.Time]{}
	used.Store(&now)
	c.ranking.Store(c.ranking.Load().with(priority, used))
}

// rankOf returns the priorities that ceilings depend on, and where a priority is among them; nil if they depend on none.
func (c *Controller) rankOf(in *configured, priority int) (priorities []int, rank int) {
	if !in.settings.Usage.ranked() {
		return nil, 0
	}
	k := c.ranking.Load()
	i, _ := k.find(priority)
	return k.priorities, min(i, len(k.priorities)-1)
}

// rerank forgets priorities without requests. The caller holds mu.
func (c *Controller) rerank(in *configured, now time.Time) {
	if !in.settings.Usage.ranked() {
		return
	}
	c.ranking.Store(c.ranking.Load().lately(now, func(priority int) bool {
		i, found := c.find(priority)
		return found && c.bands[i].requests > 0
	}))
}
