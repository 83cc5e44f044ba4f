package container

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// Host makes sandboxes. All hosts of a process share one network.
type Host struct {
	dir string

	mu        sync.Mutex
	closed    bool
	sandboxes map[string]*Sandbox
}

// NewHost makes a host whose sandboxes keep their files in a folder, which is made if it is missing. Close it.
func NewHost(dir string) (*Host, error) {
	if outside != "" {
		return nil, fmt.Errorf("making a host of containers: %s", outside)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making a host of containers: %w", err)
	}
	return &Host{dir: dir, sandboxes: map[string]*Sandbox{}}, nil
}

// Close kills the running containers and closes all sandboxes. No more can be made.
func (h *Host) Close() error {
	h.mu.Lock()
	h.closed = true
	open := make([]*Sandbox, 0, len(h.sandboxes))
	for _, s := range h.sandboxes {
		open = append(open, s)
	}
	h.mu.Unlock()
	var errs []error
	for _, s := range open {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// add keeps a sandbox by its name.
func (h *Host) add(s *Sandbox) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errors.New("the host is closed")
	}
	if h.sandboxes[s.name] != nil {
		return errors.New("there is one of that name")
	}
	h.sandboxes[s.name] = s
	return nil
}

func (h *Host) remove(s *Sandbox) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sandboxes, s.name)
}
