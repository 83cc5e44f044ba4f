package pd

import "sync/atomic"

// BodyRate is how fast a request's body must come on average, in bytes a second, beyond the pause that it may make. Every link
// that people call models over is faster (the uplink of EDGE has 7 kB/s), so however long a body is, an honest one comes
// through; and who holds a connection open by dripping has to send a thousand times more than one byte a second.
const BodyRate = 1 << 10

// HeldBytes counts the bytes of bodies that a process holds, over all requests: it is bytes, not requests, that take memory,
// and clients choose how many. It is safe for concurrent use.
type HeldBytes struct {
	limit int64
	now   atomic.Int64
}

// NewHeldBytes makes a count of at most limit bytes.
func NewHeldBytes(limit int64) *HeldBytes { return &HeldBytes{limit: limit} }

// Take counts n bytes more. It reports false, and counts nothing, if that would be more than the limit.
func (h *HeldBytes) Take(n int64) bool {
	if h.now.Add(n) <= h.limit {
		return true
	}
	h.now.Add(-n)
	return false
}

// Give takes back n bytes of what was taken.
func (h *HeldBytes) Give(n int64) { h.now.Add(-n) }

// Fits tells whether n bytes more could be taken now, before any of them has come. A length that is not known (-1) fits.
func (h *HeldBytes) Fits(n int64) bool { return h.now.Load()+n <= h.limit }

// Scarce tells whether more than half of the limit is taken.
func (h *HeldBytes) Scarce() bool { return h.now.Load() > h.limit/2 }

// Bytes is how many are held, for metrics.
func (h *HeldBytes) Bytes() float64 { return float64(h.now.Load()) }
