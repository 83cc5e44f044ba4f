package pd

import "sync/atomic"

// BodyRate is the lowest average rate, in bytes per second, at which a request body must arrive, beyond the pause that is
// allowed. Every uplink over which people call models is faster (that of EDGE has 7 kB/s), so an honest client gets through
// however long its body is, and a client that keeps a connection open by dripping has to send a thousand times more than one
// byte per second.
const BodyRate = 1 << 10

// BufferedBytes counts the bytes of request bodies that a process buffers, over all requests, and bounds them. It counts bytes
// because bytes take memory, and clients choose how many a request has. It is safe for concurrent use.
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

// Fits reports whether n more bytes could be taken now, and takes none. An unknown length (-1) fits.
func (b *BufferedBytes) Fits(n int64) bool { return b.now.Load()+n <= b.limit }

// Scarce reports whether more than half of the limit is taken.
func (b *BufferedBytes) Scarce() bool { return b.now.Load() > b.limit/2 }

// Bytes returns the count, for metrics.
func (b *BufferedBytes) Bytes() float64 { return float64(b.now.Load()) }
