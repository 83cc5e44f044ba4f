package services

import (
	"errors"
	"net"
	"sync"
)

// troubles collects failures for which no caller waits. Stop returns them.
type troubles struct {
	mu  sync.Mutex
	all []error
}

// add keeps an error, once. That something was closed is none.
func (t *troubles) add(err error) {
	if err == nil || errors.Is(err, net.ErrClosed) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, known := range t.all {
		if known.Error() == err.Error() {
			return
		}
	}
	t.all = append(t.all, err)
}

func (t *troubles) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.all...)
}
