package picker

import (
	"cmp"
	"slices"
)

// rank is a candidate's place in a pick: a higher key comes first, and ties are broken by a random number, the lot.
type rank struct {
	key float64
	lot uint64
}

// ranking returns the keys of all candidates of a pick, and the seed of their lots.
type ranking struct {
	seed uint64
	key  func(i int) float64
}

func (r ranking) of(i int) rank { return rank{r.key(i), lot(r.seed, i)} }

// above reports whether a candidate ranks above than. It computes the candidate's lot only for equal keys, which are rare.
func (r ranking) above(i int, than rank) bool {
	if order := cmp.Compare(r.key(i), than.key); order != 0 {
		return order > 0
	}
	return lot(r.seed, i) > than.lot
}

// lot returns the random number of a candidate in a pick. It is a function (SplitMix64) of the pick's seed and the
// candidate's index, so that no list of drawn numbers is kept.
func lot(seed uint64, i int) uint64 {
	z := seed + (uint64(i)+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// best appends to dst the indices of the n candidates, of count, that rank first, best first. While it works, dst holds a
// heap of the best so far, with the worst of them at its root.
func best(dst []int, count, n int, r ranking) []int {
	n = min(n, count)
	if n <= 0 {
		return dst
	}
	dst = slices.Grow(dst, n)
	for i := range n {
		dst = append(dst, i)
	}
	heap := dst[len(dst)-n:]
	for at := n/2 - 1; at >= 0; at-- {
		sink(heap, at, r)
	}
	worst := r.of(heap[0])
	for i := n; i < count; i++ {
		if r.above(i, worst) {
			heap[0] = i
			sink(heap, 0, r)
			worst = r.of(heap[0])
		}
	}
	for last := n - 1; last > 0; last-- {
		heap[0], heap[last] = heap[last], heap[0]
		sink(heap[:last], 0, r)
	}
	return dst
}

// sink moves a candidate down the heap until none below it is worse.
func sink(heap []int, at int, r ranking) {
	for {
		worst := at
		for child := 2*at + 1; child <= 2*at+2 && child < len(heap); child++ {
			if r.above(heap[worst], r.of(heap[child])) {
				worst = child
			}
		}
		if worst == at {
			return
		}
		heap[at], heap[worst] = heap[worst], heap[at]
		at = worst
	}
}
