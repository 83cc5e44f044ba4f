package pool

import (
	"math/rand/v2"
	"time"
)

// maxPause is the longest time between two scrapes of an endpoint whose page cannot be read.
const maxPause = 5 * time.Second

// schedule says when an endpoint's page is read next. All its times vary by a tenth, so that endpoints that joined together
// are not read together.
type schedule struct {
	busy, idle time.Duration
	failures   int       // since the last page that was read
	due        time.Time // unless the endpoint is busy before
	dueBusy    time.Time // and if it is busy
}

// done records the result of a scrape. The first pause after a failure is that of an idle endpoint; each further one is twice as
// long.
func (s *schedule) done(now time.Time, ok bool) {
	s.dueBusy = now.Add(spread(s.busy, rand.Float64()))
	if ok {
		s.failures = 0
		s.due = now.Add(spread(s.idle, rand.Float64()))
		return
	}
	pause := s.idle
	for range min(s.failures, 8) {
		pause *= 2
	}
	s.failures++
	s.due = now.Add(spread(min(pause, max(maxPause, s.idle)), rand.Float64()))
}

// soon schedules the next reading of an endpoint that is unreachable, or may be, after the pause of an idle one: a refused
// connection costs almost nothing, and no request is sent there until the page is read again.
func (s *schedule) soon(now time.Time) { s.due = now.Add(spread(s.idle, rand.Float64())) }

// wait returns how long until the page is to be read, unless the endpoint becomes busy before. A page that is overdue, because
// an idle endpoint has become busy, is read at a random moment within half the busy interval, so that endpoints that become
// busy together are not read together. A failing endpoint is not read sooner because it is busy.
func (s *schedule) wait(now time.Time, busy bool) time.Duration {
	due := s.due
	if busy && s.failures == 0 && s.dueBusy.Before(due) {
		due = s.dueBusy
	}
	if left := due.Sub(now); left > 0 {
		return left
	}
	return time.Duration(rand.Float64() * float64(s.busy) / 2)
}

// spread varies a time by a tenth, up and down, as r goes from 0 to 1.
func spread(d time.Duration, r float64) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*r))
}
