package latency

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// partOf is a prompt of which so many tokens are computed, and so many are cached.
func partOf(own, cached int) part { return part{tokens: own + cached, cached: cached} }

// lawOf has outcomes of an engine whose weights are known, with errors of a fifth.
func lawOf(r *rand.Rand, w *vector) (x vector, seconds float64) {
	x = promptTerms(partOf(64+r.IntN(12_000), r.IntN(8000)), r.IntN(30_000), float64(r.IntN(200)))
	return x, w.dot(&x) * math.Exp(0.2*r.NormFloat64())
}

func TestFitFindsTheWeights(t *testing.T) {
	for name, w := range map[string]vector{
		"fast":         {0.010, 0.015, 0.03, 0.015, 0.002},
		"slow":         {0.040, 0.200, 0.40, 0.190, 0.020},
		"without some": {0.030, 0.060, 0, 0.060, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, now := rand.New(rand.NewPCG(1, 2)), time.Unix(0, 0)
			var f fit
			for range 300 {
				x, seconds := lawOf(r, &w)
				now = now.Add(100 * time.Millisecond)
				f.learn(now, &promptPrior, &x, seconds)
			}
			for range 100 {
				x, _ := lawOf(r, &w)
				if got, want := f.w.dot(&x), w.dot(&x); math.Abs(got/want-1) > 0.25 {
					t.Errorf("%v: got %.4f s, want %.4f", x, got, want)
				}
			}
			if s := f.spread(); s < 0.15 || s > 0.3 {
				t.Errorf("the spread of errors of a fifth is %.3f", s)
			}
		})
	}
}

func TestFitBearsStrangeTimes(t *testing.T) {
	w := vector{0.020, 0.050, 0.05, 0.050, 0.005}
	r, now := rand.New(rand.NewPCG(3, 4)), time.Unix(0, 0)
	var f fit
	for i := range 400 {
		x, seconds := lawOf(r, &w)
		if i%10 == 0 {
			seconds *= 50 // it waited for something else
		}
		now = now.Add(time.Second / 10)
		f.learn(now, &promptPrior, &x, seconds)
		for j, v := range f.w {
			if v < 0 || math.IsNaN(v) {
				t.Fatalf("after %d outcomes weight %d is %v", i, j, v)
			}
		}
	}
	x := promptTerms(partOf(4000, 0), 0, 10)
	if got, want := f.w.dot(&x), w.dot(&x); got > 2*want || got < want/2 {
		t.Errorf("got %.4f s, want about %.4f", got, want)
	}
}

func TestFitForgets(t *testing.T) {
	fast, slow := vector{0.010, 0.020, 0, 0.020, 0}, vector{0.020, 0.080, 0, 0.080, 0}
	r, now := rand.New(rand.NewPCG(5, 6)), time.Unix(0, 0)
	var f fit
	learn := func(w *vector, n int) {
		for range n {
			x, seconds := lawOf(r, w)
			now = now.Add(time.Second / 10)
			f.learn(now, &promptPrior, &x, seconds)
		}
	}
	x := promptTerms(partOf(4000, 0), 0, 0)
	learn(&fast, 500)
	learn(&slow, 300)
	if got, want := f.w.dot(&x), slow.dot(&x); math.Abs(got/want-1) > 0.25 {
		t.Errorf("300 outcomes after the engine became slow: got %.4f s, want %.4f", got, want)
	}
	now = now.Add(10 * time.Hour)
	learn(&fast, 1)
	if f.n > 1.1 {
		t.Errorf("after ten hours %.2f outcomes count, want the latest only", f.n)
	}
	if got, want := f.w.dot(&x), promptPrior.w.dot(&x); got > 2*want || got < want/5 {
		t.Errorf("got %.4f s, want between the last outcome and the prior %.4f", got, want)
	}
}

func BenchmarkLearn(b *testing.B) {
	w := vector{0.020, 0.050, 0.05, 0.050, 0.005}
	x, seconds := lawOf(rand.New(rand.NewPCG(1, 2)), &w)
	var f fit
	now := time.Unix(0, 0)
	b.ReportAllocs()
	for b.Loop() {
		f.learn(now, &promptPrior, &x, seconds)
	}
}
