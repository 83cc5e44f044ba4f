package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/client"
	"github.com/tandem-serving/tandem/cmd/tandem/workload"
)

// trial is one run of the command.
type trial struct {
	settings *settings
	sides    []*side
	points   []*point
	progress *progress
	notes    []string

	started     time.Time
	interrupted bool
	waits       schedulerWaits
}

// point is a load that is measured, with what was measured of it.
type point struct {
	input  string // length of prompts, as the user gave it
	tokens int    // likewise, of a sweep
	source workload.Source
	rounds [][]*round // of each side, in the order of time
}

// round is one round of one side.
type round struct {
	number  int // from 1
	order   int // 1: the first of its pair
	samples []sample
	took    time.Duration // to the last answer
	bytes   int           // of all prompts
	whole   bool          // it was not interrupted
}

func (t *trial) close() {
	for _, s := range t.sides {
		s.endpoint.Close()
	}
}

// run measures all rounds. The error says that an endpoint has gone away; what was measured before stands.
func (t *trial) run(ctx context.Context) error {
	t.started = time.Now()
	t.waits.begin()
	defer t.waits.end()
	for _, p := range t.points {
		p.rounds = make([][]*round, len(t.sides))
	}
	rounds := t.settings.rounds()
	t.progress.rounds = rounds * len(t.points) * len(t.sides)
	for number := range rounds {
		// What changes over time, such as a machine that warms up or a neighbour that begins to work, must not favour a point or a
		// side: each round begins with another point, and the sides of a pair swap their order.
		for i := range t.points {
			at := (i + number) % len(t.points)
			for order := range t.sides {
				which := (order + number) % len(t.sides)
				if err := t.round(ctx, at, which, number, order); err != nil {
					return err
				}
				if ctx.Err() != nil {
					t.interrupted = true
					return nil
				}
			}
		}
	}
	return nil
}

// random returns the random numbers of a round: for both sides of a pair the same.
func (t *trial) random(at, number int) *rand.Rand {
	return rand.New(rand.NewPCG(uint64(t.settings.Load.Seed), uint64(at)<<32|uint64(number)))
}

// round measures one round of a side.
func (t *trial) round(ctx context.Context, at, which, number, order int) error {
	p, s := t.points[at], t.sides[which]
	calls := p.source.Calls(t.random(at, number), t.settings.Load.bound())
	w := workload.Writer{Salt: workload.NewSalt(), Cost: s.cost}
	r := &round{number: number + 1, order: order + 1}
	t.warmUp(ctx, s, w, calls)
	if ctx.Err() != nil {
		return nil
	}
	t.progress.begin(s.name, p, r.number, len(calls))
	pace := t.pacer(s, w, calls)
	began := time.Now()
	if t.settings.isOpen() {
		r.samples = pace.open(ctx)
	} else {
		r.samples = pace.closed(ctx)
	}
	for i := range r.samples {
		if x := &r.samples[i]; x.sent() {
			r.took = max(r.took, x.answer.End.Sub(began))
			r.bytes += x.bytes
		}
	}
	r.whole = ctx.Err() == nil
	p.rounds[which] = append(p.rounds[which], r)
	t.progress.end(r)
	return r.gone(s)
}

// pacer returns what sends the calls of a round.
func (t *trial) pacer(s *side, w workload.Writer, calls []workload.Call) *pacer {
	p := &pacer{dues: make([]time.Duration, len(calls)), limit: t.settings.concurrency(), span: t.settings.Load.bound().Span,
		grace: t.settings.Target.Timeout}
	if t.settings.isOpen() {
		p.limit = t.settings.Load.InFlight
	}
	for i := range calls {
		p.dues[i] = calls[i].Due
	}
	p.prepare = func(i int) *request {
		prompt := w.Prompt(&calls[i], i)
		body := s.endpoint.Body(prompt, calls[i].Output)
		return &request{bytes: len(prompt), send: func(ctx context.Context) *client.Answer {
			t.progress.sent()
			a := s.endpoint.Send(ctx, client.Request{Body: body, Mode: s.mode})
			t.progress.answered(a)
			return a
		}}
	}
	return p
}

// warmUp sends requests that are not counted, so that connections, shared beginnings and the endpoint's own caches of code and
// connections are there when the round begins. Failures show again in the round.
func (t *trial) warmUp(ctx context.Context, s *side, w workload.Writer, calls []workload.Call) {
	n := min(t.settings.Load.Warmup, len(calls))
	if n == 0 {
		return
	}
	const apart = 1 << 40 // numbers that no call of the round has
	p := &pacer{dues: make([]time.Duration, n), limit: min(n, t.settings.concurrency()), span: t.settings.Target.Timeout,
		prepare: func(i int) *request {
			c := calls[i]
			if t.settings.Prompts.Trace != "" {
				c.Blocks = nil // the first request of a conversation must not find its beginning in a cache
			}
			body := s.endpoint.Body(w.Prompt(&c, apart+i), c.Output)
			return &request{send: func(ctx context.Context) *client.Answer {
				return s.endpoint.Send(ctx, client.Request{Body: body, Mode: s.mode})
			}}
		}}
	p.closed(ctx)
}

// gone returns an error if no request of the round reached the endpoint.
func (r *round) gone(s *side) error {
	var last *client.Failure
	for i := range r.samples {
		switch x := &r.samples[i]; {
		case !x.sent():
		case x.answer.Failure == nil || !x.answer.Failure.Unreachable:
			return nil
		default:
			last = x.answer.Failure
		}
	}
	if last == nil {
		return nil
	}
	return fmt.Errorf("ended early, because no request of the last round reached %s: %w", s.url, last)
}
