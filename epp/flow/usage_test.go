package flow

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// TestCeilings holds the ceilings of three bands at a saturation, in llm-d's formulas.
func TestCeilings(t *testing.T) {
	priorities := []int{100, 0, -10}
	for _, tc := range []struct {
		name       string
		usage      Usage
		priorities []int
		saturation float64
		want       []float64
	}{
		{"nothing is set", Usage{}, priorities, 0.5, []float64{1, 1, 1}},
		{"one for all", Usage{Ceiling: 0.8}, nil, 0.5, []float64{0.8, 0.8, 0.8}},
		{"by rank", Usage{Policy: Holdback, Ceiling: 0.9, Least: 0.4}, priorities, 0.5, []float64{0.9, 0.65, 0.4}},
		{"by value", Usage{Policy: Holdback, Ceiling: 1, Least: 0.45, ByValue: true}, priorities, 0.5, []float64{1, 0.5, 0.45}},
		{"one band by rank", Usage{Policy: Holdback, Ceiling: 0.9}, []int{0}, 0.5, []float64{0.9}},
		{"one band by value", Usage{Policy: Holdback, Ceiling: 0.9, ByValue: true}, []int{0}, 0.5, []float64{0.9}},
		{"soft, half empty", Usage{Policy: SoftReflective}, priorities, 0.4, []float64{1, 1, 1}},
		{"soft, the lowest is slowed down", Usage{Policy: SoftReflective}, priorities, 0.65, []float64{1, 1, 0}},
		{"soft, two are", Usage{Policy: SoftReflective}, priorities, 0.75, []float64{1, 0, 0}},
		{"soft, full", Usage{Policy: SoftReflective}, priorities, 1, []float64{1, 0, 0}},
		{"soft, one band", Usage{Policy: SoftReflective}, []int{0}, 0.9, []float64{1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []float64
			for rank := range tc.want {
				ceiling, _ := tc.usage.ceiling(tc.saturation, tc.priorities, rank, 1)
				got = append(got, ceiling)
				certain := tc.usage.certain(tc.priorities, rank) - 1e-9
				if passes, _ := tc.usage.ceiling(certain, tc.priorities, rank, 1); certain >= passes {
					t.Errorf("at a saturation of %v requests wait, which is certain not to happen", certain)
				}
			}
			if !slices.EqualFunc(got, tc.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestTurns holds how many of 60 turns are open for the lowest band.
func TestTurns(t *testing.T) {
	for _, tc := range []struct {
		saturation float64
		open       int
		later      bool
	}{{0.4, 60, false}, {0.5, 60, false}, {0.67, 30, true}, {0.75, 20, true}, {0.8, 15, true}, {0.9, 7, true}, {1, 0, false}, {1.5, 0, false}} {
		usage, open, later := Usage{Policy: SoftReflective}, 0, false
		for turn := range uint64(60) {
			ceiling, paused := usage.ceiling(tc.saturation, []int{0, -1}, 1, turn)
			if later = later || paused; ceiling > tc.saturation {
				open++
			}
		}
		if open != tc.open || later != tc.later {
			t.Errorf("saturation %v: %d turns are open, and there is a later one: %v", tc.saturation, open, later)
		}
	}
}

// stopped is a clock that does not run.
type stopped struct {
	epp.Clock
	at time.Time
}

func (s stopped) Now() time.Time { return s.at }

// TestRanking: a priority counts while its requests come, and for ten minutes after the last one, or while one waits.
func TestRanking(t *testing.T) {
	at, waits := time.Unix(1e9, 0), func(priority int) bool { return priority == -5 }
	c := Controller{}
	c.ranking.Store(newRanking(&Settings{Bands: []Band{{Priority: 7}}}))
	in := &configured{settings: Settings{Usage: Usage{Policy: Holdback}}}
	for i, priority := range []int{-5, 3, 0, -1, 7, 3} {
		c.opt.Clock = stopped{at: at.Add(time.Duration(i) * time.Minute)}
		c.rank(in, priority)
	}
	for _, tc := range []struct {
		after time.Duration
		want  []int
	}{{0, []int{7, 3, 0, -1, -5}}, {13*time.Minute + time.Second, []int{7, 3, 0, -5}}, {time.Hour, []int{7, 0, -5}}} {
		if got := c.ranking.Load().lately(at.Add(tc.after), waits); !slices.Equal(got.priorities, tc.want) || len(got.used) != len(tc.want) {
			t.Errorf("after %v: %v, want %v", tc.after, got.priorities, tc.want)
		}
	}
}
