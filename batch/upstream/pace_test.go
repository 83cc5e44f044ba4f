package upstream

import (
	"cmp"
	"context"
	"math"
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
			p.Answered(took, queued, math.NaN())
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

// A request that the picker ends for a more important one frees its slot. It neither lowers the limit nor has other requests wait, but the limit
// no longer doubles.
func TestPaceOfEvictedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(100)
		acquire(t, p, startLimit)
		for range startLimit {
			p.Evicted()
		}
		if limit, inflight := p.State(); limit != startLimit || inflight != 0 {
			t.Errorf("after evictions the limit is %d, with %d in flight; want %d, none", limit, inflight, startLimit)
		}
		begun := time.Now()
		acquire(t, p, startLimit)
		if waited := time.Since(begun); waited > time.Nanosecond { // that acquire itself waits
			t.Errorf("the next requests waited %v", waited)
		}
		for range startLimit {
			p.Answered(time.Second, 0, math.NaN())
		}
		if limit, _ := p.State(); limit > startLimit+1 {
			t.Errorf("the limit goes from %d to %d in a round", startLimit, limit)
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
				p.Answered(took, 0, math.NaN())
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

// The limit follows the headroom that online requests have, as each answer tells it.
func TestPaceYields(t *testing.T) {
	type step struct {
		rounds   int
		headroom float64
		grows    int // -1: the limit falls
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"not known", []step{{3, math.NaN(), 1}}},
		{"ample", []step{{3, 0.5, 1}}},
		{"enough", []step{{3, 0.5, 1}, {5, 0.15, 0}}},
		{"little", []step{{3, 0.5, 1}, {2, 0.05, -1}}},
		{"goals are missed", []step{{3, 0.5, 1}, {2, -0.5, -1}}},
		{"ample again", []step{{3, 0.5, 1}, {2, -1, -1}, {3, 0.5, 1}}},
		{"online traffic has ended", []step{{3, 0.5, 1}, {2, -1, -1}, {3, math.NaN(), 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := NewPacer(1000)
				for _, s := range tc.steps {
					before, _ := p.State()
					for range s.rounds {
						limit, _ := p.State()
						acquire(t, p, limit)
						<-time.After(yieldEvery)
						for range limit {
							p.Answered(time.Second, 0, s.headroom)
						}
					}
					if after, _ := p.State(); cmp.Compare(after, before) != s.grows {
						t.Errorf("%d rounds with a headroom of %v: the limit goes from %d to %d", s.rounds, s.headroom, before, after)
					}
				}
			})
		})
	}
}

// The answers to requests that were in flight when the limit fell say the same again: it falls once for all of them, and further if goals are missed.
func TestPaceYieldsOnce(t *testing.T) {
	for headroom, want := range map[float64]int{0.05: 90, -0.01: 70} {
		synctest.Test(t, func(t *testing.T) {
			p := NewPacer(100)
			p.limit = 100
			acquire(t, p, 100)
			for range 100 {
				p.Answered(time.Second, 0, headroom)
			}
			if limit, _ := p.State(); limit != want {
				t.Errorf("a headroom of %v has the limit fall from 100 to %d, want %d", headroom, limit, want)
			}
		})
	}
}

// While online requests miss their goals although only one request of batches runs, the next one waits.
func TestPaceYieldsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPacer(1)
		begun := time.Now()
		for range 3 {
			if err := p.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.Answered(time.Millisecond, 0, -1)
		}
		if passed := time.Since(begun); passed != 2*yieldEvery {
			t.Errorf("three requests take %v, want pauses of %v between them", passed, yieldEvery)
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
		p.Answered(time.Millisecond, 0, math.NaN())
	}
}
