package pd_test

import (
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestHeldBytes(t *testing.T) {
	h := pd.NewHeldBytes(10)
	for _, step := range []struct {
		name   string
		do     func() bool
		want   bool
		bytes  float64
		scarce bool
	}{
		{"all fits", func() bool { return h.Fits(10) }, true, 0, false},
		{"more does not", func() bool { return h.Fits(11) }, false, 0, false},
		{"what is not known fits", func() bool { return h.Fits(-1) }, true, 0, false},
		{"half", func() bool { return h.Take(5) }, true, 5, false},
		{"too much counts nothing", func() bool { return h.Take(6) }, false, 5, false},
		{"the rest", func() bool { return h.Take(5) }, true, 10, true},
		{"full", func() bool { return h.Fits(1) || h.Take(1) }, false, 10, true},
		{"some comes back", func() bool { h.Give(9); return h.Take(9) }, true, 10, true},
	} {
		if got := step.do(); got != step.want || h.Bytes() != step.bytes || h.Scarce() != step.scarce {
			t.Errorf("%s: %v, %v bytes, scarce %v", step.name, got, h.Bytes(), h.Scarce())
		}
	}
}

// Whatever many take at once, it is never more than the limit, and what is given back is all there was.
func TestHeldBytesOfMany(t *testing.T) {
	const limit = 100
	h := pd.NewHeldBytes(limit)
	var all sync.WaitGroup
	for n := range int64(20) {
		all.Go(func() {
			for range 1000 {
				if h.Take(n) {
					h.Give(n)
				}
			}
		})
	}
	all.Wait()
	if h.Bytes() != 0 || !h.Take(limit) {
		t.Errorf("%v bytes are held by nobody", h.Bytes())
	}
}
