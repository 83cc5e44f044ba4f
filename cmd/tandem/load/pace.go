package load

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/client"
)

// sample is one request of a round, sent or not.
type sample struct {
	due    time.Duration // when it should have been sent, after the beginning of the round
	answer *client.Answer
	bytes  int // of the prompt
	began  time.Time
}

// pacer sends the calls of one round.
type pacer struct {
	dues  []time.Duration // of the calls, ascending; ignored in a closed loop
	limit int             // calls in flight at the same time
	// span is the time in which calls are begun. In an open loop, calls that were due in it but had to wait are begun later, until
	// grace has passed after it.
	span, grace time.Duration
	// prepare makes call i. It is not part of the measured time.
	prepare func(i int) *request
}

// request is a call that can be sent at once.
type request struct {
	bytes int // of the prompt
	send  func(ctx context.Context) *client.Answer
}

// open sends every call when it is due, whether or not earlier ones have been answered. A call that has to wait, because limit calls
// are in flight or this program was late, keeps its due time, from which its latency counts: an endpoint that stalls cannot hide what
// it did to the requests that would have come meanwhile (coordinated omission). Calls that were not begun have no answer.
func (p *pacer) open(ctx context.Context) []sample {
	began := time.Now()
	ctx, cancel := context.WithDeadline(ctx, began.Add(p.span+p.grace))
	defer cancel()
	samples := make([]sample, len(p.dues))
	for i, due := range p.dues {
		samples[i] = sample{due: due, began: began}
	}
	slots := make(chan struct{}, p.limit)
	var running sync.WaitGroup
	prepared := p.ahead(ctx, &running)
	for i := range samples {
		if !sleepUntil(ctx, began.Add(samples[i].due)) {
			break
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			continue // the loop ends at the next sleep
		}
		next, ok := <-prepared
		if !ok {
			break
		}
		running.Go(func() {
			samples[i].bytes, samples[i].answer = next.bytes, next.send(ctx)
			<-slots
		})
	}
	running.Wait()
	return samples
}

// preparedAhead is how many calls are ready before they are due, so that a burst is not sent late because its prompts are being made.
const preparedAhead = 64

// ahead makes the calls in their order, until ctx ends.
func (p *pacer) ahead(ctx context.Context, running *sync.WaitGroup) <-chan *request {
	prepared := make(chan *request, preparedAhead)
	running.Go(func() {
		defer close(prepared)
		for i := range p.dues {
			select {
			case prepared <- p.prepare(i):
			case <-ctx.Done():
				return
			}
		}
	})
	return prepared
}

// closed has limit senders, each of which sends a call as soon as its last one was answered, until the span is over. A call is due when
// it is sent: the load follows the endpoint, so its latencies say nothing about requests that a stall kept from being sent.
func (p *pacer) closed(ctx context.Context) []sample {
	began := time.Now()
	within, cancel := context.WithDeadline(ctx, began.Add(p.span))
	defer cancel()
	var mu sync.Mutex
	var samples []sample
	next := 0
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1, next <= len(p.dues) && within.Err() == nil
	}
	var running sync.WaitGroup
	for range min(p.limit, len(p.dues)) {
		running.Go(func() {
			for i, ok := take(); ok; i, ok = take() {
				next := p.prepare(i)
				s := sample{due: time.Since(began), began: began, bytes: next.bytes}
				s.answer = next.send(ctx)
				mu.Lock()
				samples = append(samples, s)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return samples
}

// sleepUntil waits for a time, and reports whether it came before ctx ended.
func sleepUntil(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// sent reports whether the request left this program.
func (s *sample) sent() bool { return s.answer != nil }

// lateness returns how much later than due it was sent.
func (s *sample) lateness() time.Duration { return s.answer.Sent.Sub(s.began) - s.due }

// ttft and e2e are counted from when the request was due.
func (s *sample) ttft() time.Duration { return s.answer.First.Sub(s.began) - s.due }
func (s *sample) e2e() time.Duration  { return s.answer.End.Sub(s.began) - s.due }

// tpot returns the mean time of a token after the first, and whether there is one.
func (s *sample) tpot() (time.Duration, bool) {
	n, _ := s.answer.Tokens()
	if s.answer.First.IsZero() || n < 2 {
		return 0, false
	}
	// The last token's time, not the end of the answer, which trailers and usage follow.
	var all time.Duration
	for _, gap := range s.answer.Gaps {
		all += gap
	}
	return all / time.Duration(n-1), true
}
