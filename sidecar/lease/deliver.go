package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/keeper"
)

// delivery is a set of messages that every rank of an engine gets, each once.
type delivery struct {
	engine   *engine
	messages [][]byte
	sent     int  // messages that were sent, rank by rank
	unsure   bool // one more may have been sent
}

// deliver sends the rest of a delivery. If the notifier does not know the ranks, because it was restarted, deliver connects to
// the engine again, once.
func (b *Registry) deliver(ctx context.Context, x *delivery) error {
	for try := 0; ; try++ {
		c, err := b.connectedRanks(ctx, x.engine)
		if err != nil {
			return err
		}
		err = b.send(ctx, c, x)
		again := changed(err) && !x.unsure && try == 0
		b.noteOutcome(x.engine, c, err, again)
		if !again {
			return err
		}
	}
}

// changed reports whether the error means that a peer must be loaded again.
func changed(err error) bool {
	return errors.Is(err, transfer.ErrUnknownPeer) || errors.Is(err, transfer.ErrRestarted)
}

// send sends the rest of a delivery to these ranks.
func (b *Registry) send(ctx context.Context, c *ranks, x *delivery) error {
	ctx, cancel := context.WithTimeout(ctx, min(b.config.Lease/6, maxNoticeTime))
	defer cancel()
	for ; x.sent < len(c.peers)*len(x.messages); x.sent++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if down(b.config.Notifier) {
			return keeper.ErrDown
		}
		rank, message := x.sent/len(x.messages), x.messages[x.sent%len(x.messages)]
		if err := b.config.Notifier.Notify(ctx, c.peers[rank], message); err != nil {
			x.unsure = !b.unsent(c, err)
			return fmt.Errorf("notifying rank %d of engine %s: %w", rank, x.engine.id, err)
		}
	}
	return nil
}

// down reports whether the notifier's State says that it cannot send. Its errors do not distinguish that from a lost message.
func down(n transfer.Notifier) bool {
	k, ok := n.(interface {
		State() (keeper.State, <-chan struct{})
	})
	if !ok {
		return false
	}
	s, _ := k.State()
	return !s.Up()
}

// unsent reports whether an error means that the message has not arrived and will not. If a peer is unknown because the
// registry dropped it during the call, the message may have arrived.
func (b *Registry) unsent(c *ranks, err error) bool {
	if errors.Is(err, transfer.ErrBusy) || errors.Is(err, transfer.ErrInvalid) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return changed(err) && !c.forgotten
}

// noteOutcome updates the engine after messages were sent to its ranks.
func (b *Registry) noteOutcome(e *engine, c *ranks, err error, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	unreachable := errors.Is(err, transfer.ErrGone)
	switch {
	case e.ranks != c:
		return // another delivery has updated it
	case err == nil:
		e.pause = 0
		return
	case !unreachable && !changed(err):
		return
	}
	e.ranks, e.failure = nil, err
	if !again {
		e.fail(err)
	}
	if unreachable {
		b.drop(c)
	} else {
		e.stale = c
	}
}
