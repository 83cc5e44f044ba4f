package pd

import (
	"fmt"
	"strings"
	"time"
)

// Phase is one part of a request's time in the sidecar. Phases are contiguous on the sidecar's monotonic clock, so their sum
// is the duration of the request's span.
//
// If both legs are sent at once, PhasePrefill lasts from the first leg to the prefill engine's answer, or to the first body
// byte of decode if that comes first. PhaseFirst begins with the decode leg of the attempt that served the request. Both run
// at the same time for PhaseOverlap. Their union is contiguous, so the sum less the overlap is the span.
type Phase uint8

// The phases in their order.
const (
	PhaseRecv    Phase = iota // first byte → first engine leg sent
	PhaseEncode               // → images, audio and video encoded on other pods, all tries
	PhasePrefill              // → usable hand-off, all attempts
	PhaseHandoff              // → decode leg sent
	PhaseFirst                // → first body byte of decode
	PhaseDecode               // → last byte
	phaseCount
)

// PhaseEPP is the picker's own time, which lies before the sidecar's clock and is not in the sum.
const PhaseEPP = phaseCount

// PhaseOverlap is how long PhasePrefill and PhaseFirst ran at the same time. It is no part of the span: Sum subtracts it.
const PhaseOverlap = phaseCount + 1

var phaseNames = [...]string{"recv", "encode", "prefill", "handoff", "first", "decode", "epp", "overlap"}

// String returns the phase's token in Server-Timing, spans and metrics.
func (p Phase) String() string { return phaseNames[p] }

// PhaseCount is the number of phases that partition the sidecar's clock.
const PhaseCount = int(phaseCount)

// Phases holds how long each phase took, PhaseEPP and PhaseOverlap included. A phase that a request did not have is absent,
// which differs from a phase that took no time.
type Phases struct {
	took [phaseCount + 2]time.Duration
	seen [phaseCount + 2]bool
}

// Set records a phase.
func (p *Phases) Set(phase Phase, d time.Duration) { p.took[phase], p.seen[phase] = d, true }

// Get returns how long a phase took and whether it happened.
func (p *Phases) Get(phase Phase) (time.Duration, bool) { return p.took[phase], p.seen[phase] }

// Sum adds the phases of the sidecar's clock and subtracts their overlap.
func (p *Phases) Sum() time.Duration {
	var sum time.Duration
	for ph := PhaseRecv; ph < phaseCount; ph++ {
		sum += p.took[ph]
	}
	return sum - p.took[PhaseOverlap]
}

// AppendTiming appends the phases of the request, up to and including end, as a Server-Timing value in milliseconds:
// "epp;dur=0.8, recv;dur=0.3, …". Pass PhaseEPP as end for all of them.
func (p *Phases) AppendTiming(b []byte, end Phase) []byte {
	if p.seen[PhaseEPP] {
		b = p.appendEntry(b, PhaseEPP)
	}
	for ph := PhaseRecv; ph < min(end, phaseCount); ph++ {
		if p.seen[ph] {
			b = p.appendEntry(b, ph)
		}
	}
	if end >= phaseCount && p.seen[PhaseOverlap] {
		b = p.appendEntry(b, PhaseOverlap)
	}
	return b
}

func (p *Phases) appendEntry(b []byte, ph Phase) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	b = append(b, ph.String()...)
	return appendMillis(append(b, ";dur="...), p.took[ph])
}

// ParseTiming parses the phases in a Server-Timing value. It skips entries of other names (RFC 9110 lets every hop add its
// own). An entry of ours that is not a duration, or that appears twice, is an error.
func ParseTiming(value string) (Phases, error) {
	var p Phases
	for entry := range strings.SplitSeq(value, ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(entry), ";")
		for ph := range Phase(len(phaseNames)) {
			if phaseNames[ph] != name {
				continue
			}
			dur, ok := strings.CutPrefix(strings.TrimSpace(params), "dur=")
			d, err := parseMillis(dur)
			if !ok || err != nil || p.seen[ph] {
				return Phases{}, fmt.Errorf("reading %s: entry %q is not one duration", HeaderTiming, name)
			}
			p.Set(ph, d)
		}
	}
	return p, nil
}

// PhaseClock partitions a request's time into phases. It begins in PhaseRecv; Enter moves it forward. One request has one
// clock, which is not safe for concurrent use.
type PhaseClock struct {
	start, mark time.Time
	phase       Phase
	phases      Phases
}

// StartPhaseClock begins a clock at the request's first byte.
func StartPhaseClock(now time.Time) PhaseClock { return PhaseClock{start: now, mark: now} }

// Enter ends the current phase and begins another. Entering the current or an earlier phase changes nothing: a repeated step
// counts for the phase in which it happens, so the sum stays complete.
func (c *PhaseClock) Enter(p Phase, now time.Time) {
	if p <= c.phase {
		return
	}
	c.close(now)
	c.phase = p
}

// Overlap records that PhasePrefill continued for d after PhaseFirst had begun. The clock must have entered PhaseFirst.
func (c *PhaseClock) Overlap(d time.Duration) {
	prefill, _ := c.phases.Get(PhasePrefill)
	c.phases.Set(PhasePrefill, prefill+d)
	c.phases.Set(PhaseOverlap, d)
}

// Stop ends the last phase and returns all phases. Further calls return the same.
func (c *PhaseClock) Stop(now time.Time) *Phases {
	if c.phase < phaseCount {
		c.close(now)
		c.phase = phaseCount
	}
	return &c.phases
}

// Stopped returns when the clock was stopped, and whether it was.
func (c *PhaseClock) Stopped() (at time.Time, ok bool) {
	return c.start.Add(c.mark.Sub(c.start)), c.phase == phaseCount
}

// Phase returns the current phase.
func (c *PhaseClock) Phase() Phase { return c.phase }

// Phases returns the phases so far, without the current one.
func (c *PhaseClock) Phases() *Phases { return &c.phases }

// Start returns when the clock was started.
func (c *PhaseClock) Start() time.Time { return c.start }

func (c *PhaseClock) close(now time.Time) {
	c.phases.Set(c.phase, now.Sub(c.mark))
	c.mark = now
}
