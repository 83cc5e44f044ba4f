package upstream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// acquire takes so many slots, which must be free.
func acquire(t *testing.T, p *Pacer, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	for i := range n {
		if err := p.Acquire(ctx); err != nil {
			t.Fatalf("slot %d of %d: %v", i+1, n, err)
		}
	}
	if err := p.Acquire(ctx); err == nil {
		t.Fatalf("there are more than %d slots", n)
	}
}

func TestPace(t *testing.T) {
	answered := func(p *Pacer, n int, took, queued time.Duration) {
		for range n {
			p.Answered(took, queued)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(100)
		acquire(t, p, startLimit)
		answered(p, startLimit, time.Second, 0)
		limit, inflight := p.State()
		if limit <= startLimit || inflight != 0 {
			t.Errorf("after a round of answers the limit is %d, with %d in flight", limit, inflight)
		}
		acquire(t, p, limit)
		answered(p, limit, time.Second, queueBound)
		if queued, _ := p.State(); queued != limit {
			t.Errorf("the limit goes from %d to %d although answers waited in the queue", limit, queued)
		}
		acquire(t, p, limit)
		for range limit {
			p.Full(2 * time.Second)
		}
		halved, _ := p.State()
		if halved != limit/2 {
			t.Errorf("the limit goes from %d to %d when a round is refused", limit, halved)
		}
		begun := time.Now()
		if err := p.Acquire(t.Context()); err != nil || time.Since(begun) != 2*time.Second {
			t.Errorf("the next request waited %v, %v; want Retry-After", time.Since(begun), err)
		}
		p.Failed()
		acquire(t, p, halved)
		answered(p, halved, time.Second, 0)
		if after, _ := p.State(); after > halved+1 {
			t.Errorf("the limit goes from %d to %d in a round, although the upstream was full", halved, after)
		}
	})
}

// An upstream that refuses even single requests, without Retry-After, is not asked again at once.
func TestPaceOfSingleRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(1)
		begun := time.Now()
		const refused = 5
		for range refused {
			if err := p.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.Full(0)
		}
		if err := p.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if passed := time.Since(begun); passed != refused*alonePause {
			t.Errorf("%d refusals take %v", refused, passed)
		}
	})
}

// The limit stops growing when answers take much longer than at best, and at the most.
func TestPaceStopsGrowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(50)
		round := func(took time.Duration) {
			limit, _ := p.State()
			acquire(t, p, limit)
			for range limit {
				p.Answered(took, 0)
			}
		}
		for range 20 {
			round(time.Second)
		}
		if limit, _ := p.State(); limit != 50 {
			t.Errorf("the limit is %d, want the most", limit)
		}
		p = NewPacer(5000)
		round(time.Second)
		for range 40 {
			round(10 * time.Second)
		}
		if limit, _ := p.State(); limit > 200 {
			t.Errorf("the limit is %d although answers take ten times as long", limit)
		}
	})
}

// A caller that is pending gets the slot that becomes free, and no wake-up is lost to one that gives up.
func TestPaceWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(1)
		acquire(t, p, 1)
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error, 3)
		for range 2 {
			go func() { results <- p.Acquire(t.Context()) }()
		}
		go func() { results <- p.Acquire(ctx) }()
		synctest.Wait()
		p.Failed()
		cancel()
		synctest.Wait()
		var served, cancelled int
		for range len(results) {
			if err := <-results; err == nil {
				served++
			} else {
				cancelled++
			}
		}
		if served != 1 {
			t.Errorf("%d were served and %d cancelled, after one slot came free", served, cancelled)
		}
		for served+cancelled < 3 {
			p.Failed()
			synctest.Wait()
			if err := <-results; err == nil {
				served++
			} else {
				cancelled++
			}
		}
	})
}

func BenchmarkPacer(b *testing.B) {
	p := NewPacer(256)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Acquire(ctx); err != nil {
			b.Fatal(err)
		}
		p.Answered(time.Millisecond, 0)
	}
}
