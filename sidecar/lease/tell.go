package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/keeper"
)

// errand is messages that every rank of an engine gets, each once.
type errand struct {
	engine   *engine
	messages [][]byte
	told     int  // messages that were handed over, rank by rank
	unsure   bool // one more may have been
}

// run does an errand, as far as it has not been done. An engine whose peers are not those that were loaded is met again
// once: that is how a notifier looks that was itself started again.
func (b *Book) run(ctx context.Context, x *errand) error {
	for try := 0; ; try++ {
		c, err := b.crew(ctx, x.engine)
		if err != nil {
			return err
		}
		err = b.tell(ctx, c, x)
		again := changed(err) && !x.unsure && try == 0
		b.note(x.engine, c, err, again)
		if !again {
			return err
		}
	}
}

// changed tells that a peer has to be loaded anew.
func changed(err error) bool {
	return errors.Is(err, transfer.ErrUnknownPeer) || errors.Is(err, transfer.ErrRestarted)
}

// tell sends what is left of an errand.
func (b *Book) tell(ctx context.Context, c *crew, x *errand) error {
	ctx, cancel := context.WithTimeout(ctx, min(b.config.Lease/6, maxNoticeTime))
	defer cancel()
	for ; x.told < len(c.peers)*len(x.messages); x.told++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if down(b.config.Notifier) {
			return keeper.ErrDown
		}
		rank, message := x.told/len(x.messages), x.messages[x.told%len(x.messages)]
		if err := b.config.Notifier.Notify(ctx, c.peers[rank], message); err != nil {
			x.unsure = !b.unsent(c, err)
			return fmt.Errorf("telling rank %d of engine %s: %w", rank, x.engine.id, err)
		}
	}
	return nil
}

// down tells that a notifier cannot send, if it is one that knows: its errors do not tell this from a loss on the way.
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

// unsent tells that a message which met this error did not arrive, and will not. A peer that is unknown because it was
// forgotten in the middle of a call may have got it.
func (b *Book) unsent(c *crew, err error) bool {
	if errors.Is(err, transfer.ErrBusy) || errors.Is(err, transfer.ErrInvalid) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return changed(err) && !c.forgotten
}

// note draws conclusions from how telling a crew went.
func (b *Book) note(e *engine, c *crew, err error, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	gone := errors.Is(err, transfer.ErrGone)
	switch {
	case e.crew != c:
		return // somebody else has
	case err == nil:
		e.pause = 0
		return
	case !gone && !changed(err):
		return
	}
	e.crew, e.failure = nil, err
	if !again {
		e.fail(err)
	}
	if gone {
		b.drop(c)
	} else {
		e.stale = c
	}
}
