package transport

import (
	"slices"
	"sync"

	"github.com/tandem-serving/tandem/transfer"
)

// inbox is the bounded queue of received notifications. put never blocks, so a receiver that does not read affects only its own
// senders.
type inbox struct {
	mu     sync.Mutex
	closed bool
	queue  chan transfer.Notification
}

func newInbox() *inbox { return &inbox{queue: make(chan transfer.Notification, transfer.QueueLength)} }

// put copies message. Errors: ErrBusy; ErrGone for a closed agent, because that is what its senders get.
func (b *inbox) put(from transfer.Peer, message []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return transfer.ErrGone
	}
	if len(b.queue) == cap(b.queue) {
		return transfer.ErrBusy
	}
	b.queue <- transfer.Notification{From: from, Message: slices.Clone(message)}
	return nil
}

func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.closed = true
		close(b.queue)
	}
}
