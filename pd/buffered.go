package pd

import "sync/atomic"

// BodyRate is the lowest average rate, in bytes per second, at which a request body must arrive, in addition to the allowed
// pause. Every real uplink is faster (EDGE has 7 kB/s), so an honest client succeeds however long its body is. A client that
// keeps a connection open with few bytes has to send a thousand times more than one byte per second.
const BodyRate = 1 << 10

// BufferedBytes counts and bounds the bytes of request bodies that a process buffers, over all requests. It does not count
// requests, because clients choose how many bytes a request has. It is safe for concurrent use.
type BufferedBytes struct {
	limit int64
	now   atomic.Int64
}

// NewBufferedBytes returns a count of at most limit bytes.
func NewBufferedBytes(limit int64) *BufferedBytes { return &BufferedBytes{limit: limit} }

// Take adds n bytes to the count. It returns false, and adds nothing, if the count would exceed the limit.
func (b *BufferedBytes) Take(n int64) bool {
	if b.now.Add(n) <= b.limit {
		return true
	}
	b.now.Add(-n)
	return false
}

// Release subtracts n bytes that were taken.
func (b *BufferedBytes) Release(n int64) { b.now.Add(-n) }

// Fits reports whether Take would accept n more bytes now. An unknown length (-1) fits.
func (b *BufferedBytes) Fits(n int64) bool { return b.now.Load()+n <= b.limit }

// Scarce reports whether more than half of the limit is taken.
func (b *BufferedBytes) Scarce() bool { return b.now.Load() > b.limit/2 }

// Bytes returns the count, for metrics.
func (b *BufferedBytes) Bytes() float64 { return float64(b.now.Load()) }
