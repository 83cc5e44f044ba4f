package epp

import (
	"context"
	"time"
)

// Preparer is a plugin that looks something up for every request before the pick: the exact tokens of its prompt, or which
// encoder has its images. All preparers run at once. A request waits for the slowest of them, but for each at most its
// timeout, and is picked for without the results that failed or were late.
type Preparer interface {
	// Prepare returns a function that adds the result to the request, or nil. Prepare must not change the request, which
	// other preparers read at the same time. The returned functions run one after the other, in the order of the
	// configuration, when all preparers have returned. Prepare must return soon after ctx has ended.
	Prepare(ctx context.Context, r *Request) (add func(r *Request), err error)
	// Timeout returns the longest time that a request waits for the preparer.
	Timeout() time.Duration
}

// LocalPreparer is a Preparer that asks nothing outside the picker: it waits at most until other requests have been picked for. If ctx has
// ended, it returns an error where it would wait, so a replay in virtual time can ask it again later.
type LocalPreparer interface {
	Preparer
	Local()
}

// NamedPreparer is a preparer with its name in the configuration.
type NamedPreparer struct {
	Name string
	Preparer
}

// Admission is a plugin that decides when a prepared request may be picked for, and whether at all. It is called on the
// goroutine of every request. There is at most one; without it requests are picked for at once.
type Admission interface {
	// Admit returns when the request may be picked for, or a *pd.Refusal. It may wait, and returns soon after ctx has ended.
	Admit(ctx context.Context, r *Request) (Pass, error)
	// Settled is called once after every Admit without an error, with what it returned: the pick has charged the request to its
	// endpoints, or has failed.
	Settled(r *Request, p Pass)
}

// Pass is what an Admission notes about a request from Admit to Settled, and to its outcome.
type Pass struct {
	Note    uint8         // its meaning is the Admission's
	Waited  time.Duration // how long the request waited; 0 = it did not
	Charged int           // tokens that its flow was charged when it passed
}

// Attach adds a value to a request and replaces one of the same type. Only functions that a Preparer returned may call it.
func Attach[T any](r *Request, value T) {
	for i := range r.attached {
		if _, ok := r.attached[i].(T); ok {
			r.attached[i] = value
			return
		}
	}
	r.attached = append(r.attached, value)
}

// Attached returns the value of type T that a Preparer added to a request; false if there is none.
func Attached[T any](r *Request) (value T, ok bool) {
	for _, v := range r.attached {
		if value, ok = v.(T); ok {
			return value, true
		}
	}
	return value, false
}
