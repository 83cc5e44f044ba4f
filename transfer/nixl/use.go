package nixl

import "errors"

// ErrExhausted means that all memory for reads is held by cancelled reads that have not ended. Wait for them, or close the
// transport and start another.
var ErrExhausted = errors.New("bounce memory is held by transfers that do not end")

// MemoryUse is the memory that reads of a Transport go through, in bytes.
type MemoryUse struct {
	// Mapped is the total.
	Mapped int64
	// Quarantined is memory that reads cancelled by their callers may still write to.
	Quarantined int64
	// GivenUp is memory that is never used again, because its reads did not end in time. It stays mapped, but takes no pages
	// unless bytes arrive in it.
	GivenUp int64
}
