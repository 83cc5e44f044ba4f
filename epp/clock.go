package epp

import "time"

// Clock tells the time and runs functions later. The picker gets SystemClock; a replay of recorded requests gets a clock that
// runs in virtual time.
type Clock interface {
	Now() time.Time
	// Since is Now().Sub(t), which the system can tell faster.
	Since(t time.Time) time.Duration
	// AfterFunc runs f in its own goroutine after d, unless the timer is stopped before.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a function that a Clock will run.
type Timer interface {
	// Stop reports whether it prevented the function from being run.
	Stop() bool
}

// SystemClock is the clock of the process.
var SystemClock Clock = systemClock{}

type systemClock struct{}

// Now implements Clock.
func (systemClock) Now() time.Time { return time.Now() }

// Since implements Clock.
func (systemClock) Since(t time.Time) time.Duration { return time.Since(t) }

// AfterFunc implements Clock.
func (systemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }
