package kubelet

import "time"

const (
	// firstBackoff and maxBackoff are a kubelet's pauses before the restart of a container that keeps ending.
	firstBackoff = 10 * time.Second
	maxBackoff   = 5 * time.Minute
	// stable is how long a container has to run, in multiples of maxBackoff, so that its restarts are forgotten.
	stable = 2
)

// backoff says how long to wait before something that failed is tried again. The first try after a failure is not delayed
// where immediate is set: a container that ends is started again at once, and only the next time with a pause.
type backoff struct {
	first     time.Duration
	immediate bool
	pause     time.Duration // before the next try; 0 before the first
	fails     int
}

// fail takes note of a failure after something went well for a time, and gives the pause.
func (b *backoff) fail(well time.Duration) time.Duration {
	if well > stable*maxBackoff {
		b.fails, b.pause = 0, 0
	}
	b.fails++
	switch {
	case b.fails == 1 && b.immediate:
		return 0
	case b.pause == 0:
		b.pause = b.first
	default:
		b.pause = min(2*b.pause, maxBackoff)
	}
	return b.pause
}
