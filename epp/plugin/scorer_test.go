package plugin

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// TestFormulas compares every scorer with its formula, written down as plainly as possible, for one candidate at a time.
func TestFormulas(t *testing.T) {
	for _, test := range []struct {
		typ, parameters string
		formula         func(r *epp.Round, all []epp.Candidate, one epp.Candidate) float64
	}{
		{"queue-scorer", "", func(_ *epp.Round, all []epp.Candidate, one epp.Candidate) float64 {
			return spread(all, one, waitingNow)
		}},
		{"running-requests-size-scorer", "", func(_ *epp.Round, all []epp.Candidate, one epp.Candidate) float64 {
			return spread(all, one, runningNow)
		}},
		{"kv-cache-utilization-scorer", "", func(_ *epp.Round, _ []epp.Candidate, one epp.Candidate) float64 {
			used, known := one.Value(epp.KVUsage)
			if !known || math.IsNaN(used) {
				return 0.5
			}
			if size := float64(one.Load.Cache.Blocks * one.Load.Cache.BlockTokens); size > 0 {
				used += math.Max(0, float64(one.InFlight.Tokens-one.Load.Sent.Tokens)) / size
			}
			return 0.5*(1-one.Trust) + one.Trust*(1-math.Max(0, math.Min(1, used)))
		}},
		{"active-request-scorer", "", func(_ *epp.Round, all []epp.Candidate, one epp.Candidate) float64 {
			return idleOrBusy(all, one, 0, 1)
		}},
		{"active-request-scorer", "{idleThreshold: 5, maxBusyScore: 0.5}", func(_ *epp.Round, all []epp.Candidate, one epp.Candidate) float64 {
			return idleOrBusy(all, one, 5, 0.5)
		}},
		{"token-load-scorer", "queueThresholdTokens: 8000", func(r *epp.Round, _ []epp.Candidate, one epp.Candidate) float64 {
			uncached := math.Max(0, float64(r.Request.Prompt.Tokens-one.Cached))
			return math.Max(0, 1-(float64(one.InFlight.Tokens)+uncached)/8000)
		}},
		{"prefix-cache-scorer", "", func(_ *epp.Round, _ []epp.Candidate, one epp.Candidate) float64 {
			return math.Min(1, float64(one.Cached)/1024)
		}},
		{"prefix-cache-scorer", "{matchLengthWeight: 0.25, matchLengthScaleTokens: 2000}", func(_ *epp.Round, _ []epp.Candidate, one epp.Candidate) float64 {
			return 0.25*math.Pow(math.Min(1, float64(one.Cached)/2000), 2) + 0.75*math.Min(1, float64(one.Cached)/1024)
		}},
		{"lora-affinity-scorer", "", func(r *epp.Round, _ []epp.Candidate, one epp.Candidate) float64 {
			l := one.Load.LoRA
			if l == nil {
				return 0
			}
			score := 0.0
			if slices.Contains(l.Waiting, r.Request.Model) {
				score = 0.6
			}
			if l.Max-len(l.Running)-len(l.Waiting) > 0 {
				score = 0.8
			}
			if slices.Contains(l.Running, r.Request.Model) {
				score = 1
			}
			return 0.5*(1-one.Trust) + one.Trust*score
		}},
	} {
		t.Run(test.typ, func(t *testing.T) {
			s := build[epp.Scorer](t, test.typ, test.parameters)
			rng := source(4)
			for range 300 {
				c, r := somePods(rng, rng.IntN(12)), round(rng)
				scores := make([]float64, len(c))
				s.Score(r, c, scores)
				for i, got := range scores {
					if want := test.formula(r, c, c[i]); math.Abs(got-want) > 1e-9 {
						t.Fatalf("candidate %d of %d: %v, want %v\n%+v %+v", i, len(c), got, want, c[i], *c[i].Load)
					}
				}
			}
		})
	}
}

// unseen is how many requests of this picker the page does not show.
func unseen(c epp.Candidate) float64 {
	shown := float64(c.Load.Sent.Requests)
	if running, known := c.Value(epp.Running); known {
		waiting, _ := c.Value(epp.Waiting)
		shown = math.Min(shown, running+waiting)
	}
	return float64(c.InFlight.Requests) - shown
}

// waitingNow is the queue of the page with the unseen requests. An engine without a queue runs as many as it has run before.
func waitingNow(c epp.Candidate) (float64, bool) {
	n, known := c.Value(epp.Waiting)
	running, _ := c.Value(epp.Running)
	if more := unseen(c); n == 0 && more > 0 {
		return math.Max(0, more-math.Max(0, c.Load.Batch-running)), known
	}
	return math.Max(0, n+unseen(c)), known
}

func runningNow(c epp.Candidate) (float64, bool) {
	n, known := c.Value(epp.Running)
	return math.Max(0, n+unseen(c)), known
}

// spread is (max−n)/(max−min) over the candidates whose value is known, mixed with the middle.
func spread(all []epp.Candidate, one epp.Candidate, value func(epp.Candidate) (float64, bool)) float64 {
	var known []float64
	for _, c := range all {
		if n, ok := value(c); ok && c.Trust > 0 {
			known = append(known, n)
		}
	}
	n, ok := value(one)
	if !ok || one.Trust == 0 {
		return 0.5
	}
	score := 1.0
	if low, high := slices.Min(known), slices.Max(known); low < high {
		score = (high - n) / (high - low)
	}
	return 0.5*(1-one.Trust) + one.Trust*score
}

// loadOf returns a load whose signals are all known.
func loadOf(waiting, running, usage float64) *epp.Load {
	return &epp.Load{Signals: epp.Values{}.With(epp.Waiting, waiting).With(epp.Running, running).With(epp.KVUsage, usage)}
}

func idleOrBusy(all []epp.Candidate, one epp.Candidate, idle int, busy float64) float64 {
	if one.InFlight.Requests <= idle {
		return 1
	}
	most := 0
	for _, c := range all {
		most = max(most, c.InFlight.Requests)
	}
	return busy * float64(most-one.InFlight.Requests) / float64(most)
}

// TestUnknownIsMiddle is what llm-d does otherwise: an engine that was never read must not look idle.
func TestUnknownIsMiddle(t *testing.T) {
	idle, busy := loadOf(0, 0, 0), loadOf(10, 10, 1)
	c := []epp.Candidate{
		{Load: idle, Trust: 1}, {Load: busy, Trust: 1}, {Load: busy, Trust: 0.5}, {Load: idle}, {Load: &epp.Load{}, Trust: 1}, {Load: &epp.Load{}},
	}
	want := []float64{1, 0, 0.25, 0.5, 0.5, 0.5}
	for _, typ := range []string{"queue-scorer", "running-requests-size-scorer", "kv-cache-utilization-scorer"} {
		scores := make([]float64, len(c))
		build[epp.Scorer](t, typ, "").Score(round(source(1)), c, scores)
		if !slices.Equal(scores, want) {
			t.Errorf("%s: %v, want %v", typ, scores, want)
		}
	}
}

// TestEqualIsBest keeps llm-d's rule: where all are the same, all are best.
func TestEqualIsBest(t *testing.T) {
	load := loadOf(3, 3, 0)
	c := []epp.Candidate{{Load: load, Trust: 1}, {Load: load, Trust: 1}}
	for _, typ := range []string{"queue-scorer", "running-requests-size-scorer"} {
		scores := make([]float64, len(c))
		build[epp.Scorer](t, typ, "").Score(round(source(1)), c, scores)
		if !slices.Equal(scores, []float64{1, 1}) {
			t.Errorf("%s: %v", typ, scores)
		}
	}
}

func BenchmarkScorers(b *testing.B) {
	for _, row := range Table {
		s, ok := build[any](b, row.Type, required[row.Type]).(epp.Scorer)
		if !ok {
			continue
		}
		b.Run(row.Type, func(b *testing.B) {
			rng := source(5)
			c, r := somePods(rng, 100), round(rng)
			scores := make([]float64, len(c))
			b.ReportAllocs()
			for b.Loop() {
				clear(scores)
				s.Score(r, c, scores)
			}
		})
	}
}
