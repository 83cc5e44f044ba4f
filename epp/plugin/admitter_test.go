package plugin

import (
	"math"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// TestProbabilisticAdmitter compares how often requests are refused with the formula. The seed is fixed.
func TestProbabilisticAdmitter(t *testing.T) {
	one := func(waiting int, edit ...func(*epp.Candidate)) []epp.Candidate {
		return []epp.Candidate{loaded("a", waiting, 0, edit...)}
	}
	for _, tc := range []struct {
		name, parameters string
		priority         int
		pods             []epp.Candidate
		refused          float64 // share of the requests
	}{
		{"idle", "", -1, one(0), 0},
		{"a short queue: 300 × 0.2⁵", "", -1, one(1), 0.096},
		{"KV cache: 300 × 0.2⁵", "", -1, one(0, kv(0.16)), 0.096},
		{"the larger of both: 300 × 0.25⁵", "", -1, one(1, kv(0.2)), 0.29296875},
		{"the mean of all: 300 × 0.3⁵", "", -1, append(one(3), one(0)...), 0.729},
		{"0.4", "", -1, one(2), 1},
		{"far above", "", -1, one(500), 1},
		{"priority 0", "", 0, one(500), 0},
		{"priority 1", "", 1, one(500), 0},
		{"no endpoints", "", -1, nil, 0},
		{"load not known", "", -1, one(0, unread), 1},
		{"load of one of four not known: 300 × 0.25⁵", "", -1, append(append(one(0), one(0)...), append(one(0), one(0, unread)...)...), 0.29296875},
		{"parameters: 0.5 × 0.5²", "{queueDepthThreshold: 10, power: 2, k: 0.5}", -1, one(5), 0.125},
		{"parameters: KV cache, 1 × 0.5", "{kvCacheUtilThreshold: 0.4, power: 1, k: 1}", -1, one(0, kv(0.2)), 0.5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, r := build[epp.Admitter](t, "probabilistic-admitter", tc.parameters), round(source(3))
			r.Request.Priority = tc.priority
			const requests = 20000
			refused := 0
			for range requests {
				if !a.Admits(r, tc.pods) {
					refused++
				}
			}
			share := float64(refused) / requests
			if off := math.Abs(share - tc.refused); off > 0.01 || tc.refused == 0 && off > 0 || tc.refused == 1 && off > 0 {
				t.Errorf("%v of the requests are refused, want %v", share, tc.refused)
			}
		})
	}
}
