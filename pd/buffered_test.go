package pd_test

import (
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestBufferedBytes(t *testing.T) {
	b := pd.NewBufferedBytes(10)
	for _, step := range []struct {
		name   string
		do     func() bool
		want   bool
		bytes  float64
		scarce bool
	}{
		{"as many as the limit fit", func() bool { return b.Fits(10) }, true, 0, false},
		{"one more does not fit", func() bool { return b.Fits(11) }, false, 0, false},
		{"an unknown length fits", func() bool { return b.Fits(-1) }, true, 0, false},
		{"take half", func() bool { return b.Take(5) }, true, 5, false},
		{"taking too much adds nothing", func() bool { return b.Take(6) }, false, 5, false},
		{"take the rest", func() bool { return b.Take(5) }, true, 10, true},
		{"full", func() bool { return b.Fits(1) || b.Take(1) }, false, 10, true},
		{"release some and take them again", func() bool { b.Release(9); return b.Take(9) }, true, 10, true},
	} {
		if got := step.do(); got != step.want || b.Bytes() != step.bytes || b.Scarce() != step.scarce {
			t.Errorf("%s: %v, %v bytes, scarce %v", step.name, got, b.Bytes(), b.Scarce())
		}
	}
}

// With many goroutines that take and release at once, every byte taken is released.
func TestBufferedBytesConcurrently(t *testing.T) {
	const limit = 100
	b := pd.NewBufferedBytes(limit)
	var all sync.WaitGroup
	for n := range int64(20) {
		all.Go(func() {
			for range 1000 {
				if b.Take(n) {
					b.Release(n)
				}
			}
		})
	}
	all.Wait()
	if b.Bytes() != 0 || !b.Take(limit) {
		t.Errorf("%v bytes are counted after all were released", b.Bytes())
	}
}
