package pd_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestFallbackBudget(t *testing.T) {
	take := func(b *pd.FallbackBudget, n int) (taken int) {
		for range n {
			if b.Take() {
				taken++
			}
		}
		return taken
	}
	earn := func(b *pd.FallbackBudget, n int) {
		for range n {
			b.Earn()
		}
	}
	t.Run("a look takes nothing", func(t *testing.T) {
		b := pd.NewFallbackBudget(0.1, 1)
		for range 3 {
			if !b.Has() {
				t.Errorf("%v left", b.Left())
			}
		}
		if !b.Take() || b.Has() {
			t.Errorf("%v left", b.Left())
		}
	})
	t.Run("burst", func(t *testing.T) {
		if got := take(pd.NewFallbackBudget(0.1, 20), 100); got != 20 {
			t.Errorf("took %d", got)
		}
	})
	t.Run("ratio", func(t *testing.T) {
		b := pd.NewFallbackBudget(0.1, 20)
		take(b, 20)
		earn(b, 9)
		if b.Take() {
			t.Error("nine tenths are no token")
		}
		earn(b, 1)
		if !b.Take() || b.Take() {
			t.Error("ten tenths are one token")
		}
		earn(b, 100)
		if got := take(b, 100); got != 10 {
			t.Errorf("100 requests earned %d", got)
		}
	})
	t.Run("earned", func(t *testing.T) {
		b := pd.NewEarnedBudget(0.1, 2)
		if b.Take() {
			t.Error("it allowed something before there was a request")
		}
		earn(b, 10)
		if got := take(b, 10); got != 1 {
			t.Errorf("10 requests earned %d", got)
		}
		earn(b, 100)
		if got := take(b, 100); got != 2 {
			t.Errorf("took %d, more than the burst", got)
		}
	})
	t.Run("never above the burst", func(t *testing.T) {
		b := pd.NewFallbackBudget(0.5, 3)
		earn(b, 1000)
		if b.Left() != 3 || take(b, 10) != 3 || b.Left() != 0 {
			t.Errorf("%v left", b.Left())
		}
	})
	t.Run("nothing", func(t *testing.T) {
		b := pd.NewFallbackBudget(1, 0)
		earn(b, 10)
		if b.Take() {
			t.Error("a burst of 0 gave a token")
		}
	})
	t.Run("everything", func(t *testing.T) {
		b := pd.NewFallbackBudget(1, 1)
		for range 100 {
			b.Earn()
			if !b.Take() {
				t.Fatal("a ratio of 1 refused")
			}
		}
	})
	t.Run("concurrent", func(t *testing.T) {
		b := pd.NewFallbackBudget(0.1, 50)
		var taken atomic.Int64
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				for range 100 {
					b.Earn()
					if b.Take() {
						taken.Add(1)
					}
				}
			})
		}
		all.Wait()
		// What was earned while the bucket was full is lost, at most the burst's share of requests.
		if got := taken.Load() + int64(b.Left()); got < 100 || got > 150 {
			t.Errorf("1000 requests with a burst of 50 took %d", got)
		}
	})
}

// Requests that must leave some tokens get none of the last ones, which others do.
func TestFallbackBudgetReserve(t *testing.T) {
	b := pd.NewFallbackBudget(0.5, 4)
	for i, step := range []struct {
		reserve int
		want    bool
	}{{2, true}, {2, true}, {2, false}, {1, true}, {1, false}, {0, true}, {0, false}} {
		if got := b.TakeLeaving(step.reserve); got != step.want {
			t.Errorf("step %d: leaving %d: %t with %v left", i, step.reserve, got, b.Left())
		}
	}
	b.Earn()
	b.Earn()
	if b.TakeLeaving(1) || !b.TakeLeaving(0) {
		t.Error("a token that was earned was not for the others")
	}
}
