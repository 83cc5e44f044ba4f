package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// mailbox is a broker of leases, as their finish needs it.
type mailbox interface {
	// limit returns how many bytes a place for results or dead letters takes, and what says so.
	limit(where string) (bytes int, reason string)
	// send stores a text about the message whose key is given.
	send(ctx context.Context, where, key string, text []byte) error
	// remove ends a message, so that it is not delivered again. It returns ErrLost if the broker says that the claim is another consumer's.
	remove(ctx context.Context, handle string) error
}

// requestAttribute is the attribute of results and dead letters that has the broker's id of the request: of two results of a request, which a kill
// can leave, both have the same.
const requestAttribute = "request"

// leases are the messages that this process holds at a broker whose claims end by themselves, and which does not always tell that another consumer
// has a message meanwhile. So a message that was not renewed in time counts as lost: it is delivered, and answered, again. Storing its result too
// would give it two.
type leases struct {
	wait time.Duration // how long a claim lasts

	mu   sync.Mutex
	held map[string]*lease
}

// lease is one of them. Its result is stored once by this process, also if the claim cannot be ended at once.
type lease struct {
	handle     string    // by which the broker knows the claim
	text       string    // of the message, for its dead letter
	until      time.Time // when the claim ends, by this process's clock
	dead, sent bool      // the dead letter, and the result, are stored
}

func newLeases() leases { return leases{wait: leaseTime, held: map[string]*lease{}} }

// hold notes a message that was asked for at a time.
func (l *leases) hold(key, handle, text string, asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.held[key]
	if a == nil {
		a = &lease{text: text}
		l.held[key] = a
	}
	a.handle, a.until = handle, asked.Add(l.wait)
}

// handles returns the handles of messages whose claims have not ended, in groups of at most so many, by their keys.
func (l *leases) handles(messages []Message, most int) (groups []map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for group := range slices.Chunk(messages, most) {
		handles := map[string]string{}
		for _, m := range group {
			if a := l.held[m.Key]; a != nil && time.Now().Before(a.until) {
				handles[m.Key] = a.handle
			}
		}
		if len(handles) > 0 {
			groups = append(groups, handles)
		}
	}
	return groups
}

// renew notes that claims were renewed by a request of a time.
func (l *leases) renew(handles map[string]string, asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, handle := range handles {
		if a := l.held[key]; a != nil && a.handle == handle {
			a.until = asked.Add(l.wait)
		}
	}
}

// lose notes that another consumer has a message.
func (l *leases) lose(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.held[key]; a != nil {
		a.until = time.Time{}
	}
}

// lost returns the keys of messages whose claims have ended.
func (l *leases) lost(messages []Message) (keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range messages {
		if a := l.held[m.Key]; a != nil && !time.Now().Before(a.until) {
			keys = append(keys, m.Key)
		}
	}
	return keys
}

// get returns what is held of a message. It is false if it is not held, or lost.
func (l *leases) get(key string) (lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.held[key]
	if a == nil {
		return lease{}, false
	}
	return *a, a.sent || time.Now().Before(a.until)
}

// note changes what is held of a message.
func (l *leases) note(key string, change func(*lease)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.held[key]; a != nil {
		change(a)
	}
}

func (l *leases) drop(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, key)
}

// finish stores the dead letter and the result of a message, and ends it. What is done is not done again after a failure.
func (l *leases) finish(ctx context.Context, to mailbox, cfg *Config, m Message, result []byte, reason string) error {
	a, held := l.get(m.Key)
	if !held {
		l.drop(m.Key)
		return ErrLost
	}
	where := cmp.Or(m.Results, cfg.Results)
	if most, limit := to.limit(where); len(result) > most {
		result, reason = tooLarge(m, len(result), limit)
	}
	if reason != "" && cfg.DeadLetters != "" && !a.dead {
		most, _ := to.limit(cfg.DeadLetters)
		if err := to.send(ctx, cfg.DeadLetters, m.Key, deadLetter(reason, a.text, most)); err != nil {
			return fmt.Errorf("storing a dead letter of %s: %w", cfg.Queue, err)
		}
		l.note(m.Key, func(a *lease) { a.dead = true })
	}
	if !a.sent {
		if err := to.send(ctx, where, m.Key, result); err != nil {
			return fmt.Errorf("storing a result of %s: %w", cfg.Queue, err)
		}
		l.note(m.Key, func(a *lease) { a.sent = true })
	}
	if a, held = l.get(m.Key); !held { // its handle may be another one since
		return ErrLost
	}
	if err := to.remove(ctx, a.handle); err != nil {
		return fmt.Errorf("ending the claim of a message of %s: %w", cfg.Queue, err)
	}
	l.drop(m.Key)
	return nil
}

// withTrace has the trace of a message be that of an attribute which its producer has set, unless its metadata names one.
func (r *Request) withTrace(traceparent string) {
	const field = "traceparent"
	if traceparent == "" || r.Metadata[field] != "" {
		return
	}
	if r.Metadata == nil {
		r.Metadata = map[string]string{}
	}
	r.Metadata[field] = traceparent
}
