package fault

import (
	"fmt"
	"slices"
	"sync"
)

// List has the faults of one engine, oldest first. Its zero value is not ready; use NewList.
type List struct {
	mu      sync.Mutex // guards what follows
	faults  []*entry
	cleared chan struct{} // closed, and replaced, when the list is cleared
	watch   func(closed bool)
}

type entry struct {
	Fault
	left int // requests it still hits; -1: no limit
}

// NewList makes an empty list.
func NewList() *List { return &List{cleared: make(chan struct{})} }

// Add appends a fault. The error names the member that is wrong.
func (l *List) Add(f Fault) error {
	if err := f.normalize(); err != nil {
		return fmt.Errorf("adding a fault: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	left := f.Count
	if left == 0 {
		left = -1
	}
	l.faults = append(l.faults, &entry{Fault: f, left: left})
	l.report()
	return nil
}

// Clear ends all faults. Requests that a fault holds back go on.
func (l *List) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = nil
	close(l.cleared)
	l.cleared = make(chan struct{})
	l.report()
}

// report tells the watcher whether the data port has to be closed. mu is held.
func (l *List) report() {
	if l.watch != nil {
		l.watch(slices.ContainsFunc(l.faults, func(f *entry) bool { return f.closesPort() }))
	}
}

// ClosePort has the watcher close the data port for good.
func (l *List) ClosePort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch != nil {
		l.watch(true)
		l.watch = nil
	}
}

// WatchPort calls f with whether the data port has to be closed, now and at every change. A nil f ends that. f must not call
// the list.
func (l *List) WatchPort(f func(closed bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch = f
	l.report()
}

// Empty reports whether there is no fault, so that requests need not be examined.
func (l *List) Empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.faults) == 0
}

// Take returns the fault that hits a request, or nil, and a channel that is closed when the faults are cleared.
func (l *List) Take(leg, requestID, model string) (*Fault, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.faults {
		if !f.matches(leg, requestID, model) {
			continue
		}
		if f.left > 0 {
			if f.left--; f.left == 0 {
				l.faults = slices.Delete(l.faults, i, i+1)
			}
		}
		hit := f.Fault
		return &hit, l.cleared
	}
	return nil, l.cleared
}
