package load

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/client"
)

func TestPercentiles(t *testing.T) {
	values := make([]float64, 1000)
	for i := range values {
		values[i] = float64(1000 - i)
	}
	d := distribution(values)
	if d.Count != 1000 || d.Mean != 500.5 || d.Min != 1 || d.Max != 1000 || *d.P50 != 500 || *d.P90 != 900 || *d.P95 != 950 || *d.P99 != 990 {
		t.Errorf("%+v", d)
	}
	if distribution(nil) != nil {
		t.Error("nothing has a distribution")
	}
}

// A percentile appears with the number of values from which the largest exceeds it with 95 % confidence.
func TestPercentilesNeedValues(t *testing.T) {
	for p, least := range map[int]int{50: 5, 90: 29, 95: 59, 99: 299} {
		if n := supports(p); n != least {
			t.Errorf("p%d needs %d values, want %d", p, n, least)
		}
		if percentile(make([]float64, least-1), p) != nil || percentile(make([]float64, least), p) == nil {
			t.Errorf("p%d does not appear at %d values", p, least)
		}
	}
	// What it means: the largest of so many values exceeds the true percentile in 95 of 100 cases.
	r := rand.New(rand.NewPCG(1, 1))
	above := 0
	for range 4000 {
		most := 0.0
		for range supports(90) {
			most = max(most, r.Float64())
		}
		if most > 0.9 {
			above++
		}
	}
	if above < 4000*94/100 {
		t.Errorf("%d of 4000", above)
	}
}

func TestMedianInterval(t *testing.T) {
	ascending := func(n int) (v []float64) {
		for i := range n {
			v = append(v, float64(n-i))
		}
		return v
	}
	// The ranks are those of published tables for the sign test.
	for n, want := range map[int][2]float64{6: {1, 6}, 8: {1, 8}, 9: {2, 8}, 12: {3, 10}, 20: {6, 15}, 100: {40, 61}} {
		low, high, ok := medianInterval(ascending(n))
		if !ok || low != want[0] || high != want[1] {
			t.Errorf("%d values: %v to %v, %t, want %v", n, low, high, ok, want)
		}
	}
	if _, _, ok := medianInterval(ascending(enoughRounds - 1)); ok {
		t.Error("five values have an interval")
	}
	for n, want := range map[int]float64{1: 1, 2: 1.5, 5: 3} {
		if got := median(ascending(n)); got != want {
			t.Errorf("median of %d is %v, want %v", n, got, want)
		}
	}
}

// bootstrap returns the percentile interval of the median by resampling, which medianInterval is compared with.
func bootstrap(r *rand.Rand, values []float64) (low, high float64) {
	medians := make([]float64, 400)
	again := make([]float64, len(values))
	for i := range medians {
		for j := range again {
			again[j] = values[r.IntN(len(values))]
		}
		medians[i] = median(again)
	}
	slices.Sort(medians)
	return medians[9], medians[389]
}

// Where sides do not differ, the interval contains 0 as often as it says, also if the noise is skewed; a bootstrap does not.
func TestIntervalKeepsItsPromise(t *testing.T) {
	const trials = 1500
	for name, noise := range map[string]func(r *rand.Rand) float64{
		"normal": (*rand.Rand).NormFloat64,
		"skewed": func(r *rand.Rand) float64 { return r.ExpFloat64() * (1 - 2*float64(r.IntN(2))) },
	} {
		for _, rounds := range []int{6, 8, 12} {
			r := rand.New(rand.NewPCG(7, uint64(rounds)))
			held, bootstrapped := 0, 0
			for range trials {
				values := make([]float64, rounds)
				for i := range values {
					values[i] = noise(r)
				}
				if low, high, _ := medianInterval(values); low <= 0 && high >= 0 {
					held++
				}
				if low, high := bootstrap(r, values); low <= 0 && high >= 0 {
					bootstrapped++
				}
			}
			if held < trials*94/100 {
				t.Errorf("%s, %d rounds: %d of %d intervals contain the true difference", name, rounds, held, trials)
			}
			if rounds == enoughRounds && bootstrapped >= held {
				t.Errorf("%s: a bootstrap of %d rounds would do: %d of %d, here %d", name, rounds, bootstrapped, trials, held)
			}
		}
	}
}

// answered makes a sample: due at 0, with its first token and its others at given times, in ms.
func answered(first int, gaps ...int) sample {
	began := time.Unix(1000, 0)
	at := began.Add(time.Duration(first) * time.Millisecond)
	a := &client.Answer{Sent: began, First: at, Events: 1 + len(gaps), Completion: -1, Prompt: -1, Cached: -1}
	for _, gap := range gaps {
		d := time.Duration(gap) * time.Millisecond
		a.Gaps, at = append(a.Gaps, d), at.Add(d)
	}
	a.End = at
	return sample{began: began, answer: a}
}

func failed(reason string) sample {
	s := answered(10)
	s.answer.Failure = &client.Failure{Status: 429, Reason: reason, Message: "full"}
	return s
}

func TestObjective(t *testing.T) {
	quick := answered(100, 10, 10, 10, 50)
	tests := []struct {
		slo  string
		give sample
		want bool
	}{
		{"ttft=100ms", quick, true},
		{"ttft=99ms", quick, false},
		{"tpot=20ms", quick, true}, // 80 ms for four tokens
		{"tpot=19ms", quick, false},
		{"itl=50ms", quick, true}, // of four gaps, 95 % are all
		{"itl=49ms", quick, false},
		{"e2e=180ms", quick, true},
		{"e2e=179ms", quick, false},
		{"ttft=1s,e2e=179ms", quick, false},
		{"tpot=1ms,itl=1ms", answered(100), true}, // a single token
		{"e2e=1h", failed("x"), false},
		{"e2e=1h", sample{}, false}, // not sent
	}
	for _, test := range tests {
		var o objective
		if err := o.UnmarshalText([]byte(test.slo)); err != nil {
			t.Fatal(err)
		}
		if got := o.meets(&test.give); got != test.want {
			t.Errorf("%s: %t", test.slo, got)
		}
		if text, err := o.MarshalText(); err != nil || string(text) != o.String() {
			t.Errorf("%s is written as %s, %v", test.slo, text, err)
		}
	}
	// 95 % of the gaps: one long one in twenty-one is allowed.
	many := make([]int, 21)
	for i := range many {
		many[i] = 10
	}
	many[7] = 500
	one := answered(5, many...)
	if !(objective{"itl": 20 * time.Millisecond}).meets(&one) {
		t.Error("a single long gap misses itl")
	}
	for _, bad := range []string{"", "ttft", "ttft=5", "ttft=-1s", "speed=1s", "ttft=1s,ttft=2s"} {
		var o objective
		if err := o.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestTokensPerAnswer(t *testing.T) {
	s := answered(50, 30, 30)
	s.answer.Completion = 7 // two events had several tokens
	if tpot, ok := s.tpot(); !ok || tpot != 10*time.Millisecond {
		t.Errorf("TPOT %v, %t", tpot, ok)
	}
	all := newTally([]sample{s}, nil, true)
	if all.output[0] != 7 || all.events != 3 || !all.counted {
		t.Errorf("%+v", all)
	}
}

func TestTally(t *testing.T) {
	cancelled := failed(client.ReasonCancelled)
	samples := []sample{answered(10, 5), answered(20, 5), failed("full"), failed("full"), failed("late"), cancelled, {}}
	whole := newTally(samples, objective{"ttft": 15 * time.Millisecond}, true)
	if whole.requests != 7 || whole.answered != 2 || whole.failed != 4 || whole.unsent != 1 || whole.met != 1 {
		t.Errorf("%+v", whole)
	}
	if f := fmt.Sprint(whole.failures); f != "[{429 full 2 full} {429 late 1 full} {429 cancelled 1 full}]" {
		t.Errorf("failures %s", f)
	}
	// After Ctrl-C, what was cut off does not count.
	if cut := newTally(samples, nil, false); cut.requests != 5 || cut.failed != 3 || cut.unsent != 0 {
		t.Errorf("%+v", cut)
	}
}
