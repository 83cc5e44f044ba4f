package dialect

import (
	"time"

	"github.com/tandem-serving/tandem/pd/request"
)

// BackReader is a Dialect whose prefill engines can read the beginning of a prompt's KV cache from the decode engine, over the protocol
// of hand-offs, and compute only the rest: of a conversation's next turn the decode engine has all that came before, and the prefill
// engine only what it has computed itself.
type BackReader interface {
	// ReadsBack reports whether the engines are set to do so.
	ReadsBack() bool
}

// BackAttempt is an Attempt whose prefill engine can read back.
type BackAttempt interface {
	Attempt
	// Lend returns the body of a leg to the decode engine, which answers with a hand-off of the prompt's first tokens. It computes those
	// that it does not have. ok is false if the prompt of the request cannot be cut.
	Lend(tokens int) (leg request.Payload, ok bool, err error)
	// Borrow takes the answer to that leg, with status 200, before the prefill leg is made, which then has the prefill engine read. It does
	// not read from expires on, by the monotonic clock of the decode engine's machine: its queue may be longer than the lease. The Handoff
	// is pinned on the decode engine until it was read, or its lease ends. With an error there is none.
	Borrow(answer []byte, expires time.Duration) (Handoff, error)
}

// Borrowed is the Handoff of a BackAttempt that has borrowed.
type Borrowed interface {
	Handoff
	// ReadBack reports whether the prefill engine has used what it borrowed; known is false if its answer does not tell.
	ReadBack() (used, known bool)
}
