package nixl

import "errors"

// ErrExhausted means that all memory that a Transport may read through is held by reads that were given up and have not
// ended. Wait for them, or close the transport and start another.
var ErrExhausted = errors.New("bounce memory is held by transfers that do not end")

// MemoryUse is the memory that reads of a Transport go through, in bytes.
type MemoryUse struct {
	// Mapped is all of it.
	Mapped int64
	// Quarantined is what may still be written to by reads that were given up by their callers.
	Quarantined int64
	// GivenUp is what is never used again, because its reads did not end in time. It stays mapped, but takes no pages
	// unless something lands in it.
	GivenUp int64
}
