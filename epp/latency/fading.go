package latency

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Windows of time: an event weighs 1/e when it is so old.
const (
	// promptWindow is about as long as an answer, whose tokens prompts delay.
	promptWindow = 10 * time.Second
	// queueWindow is longer, because queues come and go where an engine is nearly full.
	queueWindow = 20 * time.Second
)

// fading is a sum over events, of which the latest weigh most. It is safe for concurrent use.
type fading struct {
	window time.Duration

	mu            sync.Mutex
	at            time.Time
	total, events float64
}

func (f *fading) add(now time.Time, amount float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keep := f.keep(now)
	f.total, f.events, f.at = f.total*keep+amount, f.events*keep+1, now
}

// perSecond returns how much comes in a second.
func (f *fading) perSecond(now time.Time) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total * f.keep(now) / f.window.Seconds()
}

// often returns how many events come in a second.
func (f *fading) often(now time.Time) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.events * f.keep(now) / f.window.Seconds()
}

// mean returns the amount of the usual event, which goes to 0 if no more come.
func (f *fading) mean(now time.Time) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.events == 0 {
		return 0
	}
	return f.total / f.events * f.keep(now)
}

// keep returns the share of the weights that is left.
func (f *fading) keep(now time.Time) float64 {
	return math.Exp(-max(0, now.Sub(f.at).Seconds()) / f.window.Seconds())
}

// average is a mean of which the latest some dozens of values are most. The zero value has seen none. One goroutine may add while others read.
type average struct{ bits atomic.Uint64 }

const (
	// inAverage is what one more value weighs.
	inAverage = 1.0 / 32
	// leastAverage bounds values from below, because means are divided by; an answer of one token takes no seconds from its first to its last.
	leastAverage = 0.05
)

func (a *average) add(value float64) {
	value = max(leastAverage, value)
	if mean := a.mean(); mean > 0 {
		value = mean + (value-mean)*inAverage
	}
	a.bits.Store(math.Float64bits(value))
}

// mean returns 0 if no value was added.
func (a *average) mean() float64 { return math.Float64frombits(a.bits.Load()) }
