package flow

import "time"

// pace measures how fast requests leave the queue, while there is one.
type pace struct {
	last  time.Time     // when a request left; zero = the queue was empty since
	every time.Duration // moving average of the time between two; 0 = not known
}

// pacePart is the weight of one more interval: the average follows the last 20 or so.
const pacePart = 10

func (p *pace) note(now time.Time) {
	if !p.last.IsZero() {
		took := now.Sub(p.last)
		if p.every == 0 {
			p.every = took
		}
		p.every += (took - p.every) / pacePart
	}
	p.last = now
}

// stop notes that no request waits: until the next one leaves, no time is measured.
func (p *pace) stop() { p.last = time.Time{} }

// wait returns how long n requests take to leave. If none has left for longer than the average, the average is that long.
func (p *pace) wait(n int, now time.Time) time.Duration {
	every := p.every
	if !p.last.IsZero() {
		every = max(every, now.Sub(p.last))
	}
	return time.Duration(n) * every
}
