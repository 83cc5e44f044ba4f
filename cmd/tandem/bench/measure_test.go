package bench

import (
	"math"
	"slices"
	"testing"
	"time"
)

// costsOf returns rounds in which one exchange costs so many ms.
func costsOf(each ...float64) (costs []cost) {
	for _, ms := range each {
		costs = append(costs, cost{done: 100, took: time.Second, cpu: time.Duration(ms * 100 * float64(time.Millisecond)),
			allocs: 5000,
			bench:  10 * time.Millisecond})
	}
	return costs
}

func TestRated(t *testing.T) {
	contenders := []*contender{{part: partBaseline}, {part: partOurs}, {part: partOther}}
	// In the second round everything is twice as slow: ratios do not show it.
	row := rated("table", "series", contenders, [][]cost{costsOf(1, 2, 1), costsOf(1.1, 2.2, 1.3), costsOf(2, 4, 2)}, 1.1)
	if row.Ratio != 1.1 || row.OtherRatio != 2 || math.Abs(row.Min-1.1) > 1e-9 || math.Abs(row.Max-1.3) > 1e-9 || !row.Passed {
		t.Errorf("%+v", row)
	}
	f := row.Ours
	if f.Value != 1.3 || math.Abs(f.PerCore-769.23) > 0.01 || *f.Allocs != 50 || f.Bench != 0.1 ||
		math.Abs(f.Busy-0.46/3) > 1e-9 {
		t.Errorf("%+v, %v allocs", f, *f.Allocs)
	}
	if row.Baseline.Value != 1 || row.Other.Value != 2 {
		t.Errorf("baseline %+v, other %+v", row.Baseline, row.Other)
	}
	if row = rated("", "", contenders[:2], [][]cost{costsOf(1), costsOf(1.2)}, 1.1); row.Passed || row.Other != nil ||
		row.OtherRatio != 0 {
		t.Errorf("%+v", row)
	}
	unknown := costsOf(1)
	unknown[0].allocs = -1
	if row = rated("", "", contenders[:2], [][]cost{costsOf(1), unknown}, 2); row.Ours.Allocs != nil {
		t.Errorf("%v allocs, which were not counted", *row.Ours.Allocs)
	}
}

func TestAbsolute(t *testing.T) {
	row := absolute("", "", []float64{3, 1, 2}, 2)
	if row.Ours.Value != 2 || row.Min != 1 || row.Max != 3 || !row.Passed {
		t.Errorf("%+v", row)
	}
	if row = absolute("", "", []float64{1}, 0); row.Passed {
		t.Errorf("%+v", row)
	}
}

func TestAdded(t *testing.T) {
	base := delays{{1, 1, 1}, {5, 5, 9}, {1, 1, 1}}
	p50, p99 := delays{{2, 2, 8}, {5.5, 5.5, 5.5}, {0.5, 0.5, 0.5}}.added(base)
	if !slices.Equal(p50, []float64{1, 0.5, -0.5}) || p99 != -1 {
		t.Errorf("p50 %v, p99 %v", p50, p99)
	}
	var f Figure
	f.later(delays{{3}}, delays{{1}})
	if *f.P50 != 2 || *f.P99 != 2 {
		t.Errorf("%v, %v", *f.P50, *f.P99)
	}
}

func TestDecisionRows(t *testing.T) {
	contenders := []*contender{{part: partBaseline}, {part: partOurs}, {part: partOther}}
	waits := []delays{{{1, 1}}, {{2, 3}}, {{9, 9}}}
	rows, err := decisionRows(contenders, waits, delays{{0.05, 0.3}, {0.06, 0.5}})
	if err != nil || len(rows) != 2 {
		t.Fatal(rows, err)
	}
	if p50 := rows[0]; p50.Ours.Value != 0.06 || !p50.Passed || *p50.Ours.P50 != 1.5 || p50.Other.Value != 8 {
		t.Errorf("%+v", p50)
	}
	if p99 := rows[1]; p99.Ours.Value != 0.5 || p99.Passed || p99.Min != 0.3 {
		t.Errorf("%+v", p99)
	}
	if _, err := decisionRows(contenders, waits, delays{{}}); err == nil {
		t.Error("a decision time that the picker does not report met its limit")
	}
}

func TestMeasuringAProcessThatDoesNotExist(t *testing.T) {
	const noProcess = 1<<22 + 1 // Linux numbers processes up to 1<<22
	if _, err := cpuTime(noProcess); err == nil {
		t.Error("CPU time of a process that does not exist")
	}
	if _, _, err := memory(noProcess); err == nil {
		t.Error("memory of a process that does not exist")
	}
}

func hundred() (values []float64) {
	for i := range 100 {
		values = append(values, float64(100-i))
	}
	return values
}

func TestQuantiles(t *testing.T) {
	for name, c := range map[string]struct{ got, want float64 }{
		"median of none":           {median(nil), 0},
		"median of one":            {median([]float64{7}), 7},
		"median of three":          {median([]float64{9, 1, 2}), 2},
		"median of four":           {median([]float64{4, 1, 3, 2}), 2.5},
		"p99 of none":              {quantile(nil, 0.99), 0},
		"p99 of one":               {quantile([]float64{7}, 0.99), 7},
		"p99 of a hundred":         {quantile(hundred(), 0.99), 99},
		"p50 of a hundred":         {quantile(hundred(), 0.5), 50},
		"all of a hundred":         {quantile(hundred(), 1), 100},
		"none of a hundred":        {quantile(hundred(), 0), 1},
		"p99 of few is their most": {quantile([]float64{3, 1, 2}, 0.99), 3},
	} {
		t.Run(name, func(t *testing.T) {
			if c.got != c.want {
				t.Errorf("%v, want %v", c.got, c.want)
			}
		})
	}
}

func curve(y func(x float64) float64, xs ...float64) (points []Point) {
	for _, x := range xs {
		points = append(points, Point{x, y(x)})
	}
	return points
}

func TestExponent(t *testing.T) {
	for name, c := range map[string]struct {
		points []Point
		want   float64
		words  string
	}{
		"linear": {curve(func(x float64) float64 { return 3 * x }, 1, 10, 100), 1,
			"to the power of 1.00, linear or slower"},
		"square": {curve(func(x float64) float64 { return x * x }, 1, 10, 100), 2,
			"to the power of 2.00, FASTER than linear"},
		"constant, then linear": {append(curve(func(float64) float64 { return 10 }, 1, 2, 4),
			curve(func(x float64) float64 { return x }, 10, 20, 40)...), 1, "1.00"},
		"the value at 0 is subtracted": {curve(func(x float64) float64 { return 50 + 2*x }, 0, 10, 100, 1000), 1, "1.00"},
		"two points":                   {curve(math.Sqrt, 4, 16), 0.5, "0.50, linear or slower"},
		"one point":                    {curve(math.Sqrt, 4), math.NaN(), "too few points"},
		"nothing grows":                {curve(func(float64) float64 { return 5 }, 0, 1, 2), math.NaN(), "too few points"},
	} {
		t.Run(name, func(t *testing.T) {
			got := exponent(c.points)
			if math.Abs(got-c.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(c.want) {
				t.Errorf("exponent %v, want %v", got, c.want)
			}
			drawn := newCurve("", "x", "y", c.points)
			mustContain(t, drawn.growth(), c.words)
		})
	}
}

func TestGate(t *testing.T) {
	met, missed, unmeasured := Row{Passed: true}, Row{}, Row{Missing: "no Envoy"}
	flat, steep := 1.0, 1.5
	for name, c := range map[string]struct {
		rows   []Row
		curves []Curve
		want   string
	}{
		"all met":      {[]Row{met, met}, []Curve{{}, {Exponent: &flat}}, ""},
		"one missed":   {[]Row{met, missed}, nil, "--gate: of 2 series, 1 exceeded their limit and 0 were not measured; of 0 curves, 0 grow faster than linearly"},
		"not measured": {[]Row{met, unmeasured}, nil, "--gate: of 2 series, 0 exceeded their limit and 1 were not measured; of 0 curves, 0 grow faster than linearly"},
		"steep":        {nil, []Curve{{Exponent: &steep}}, "--gate: of 0 series, 0 exceeded their limit and 0 were not measured; of 1 curves, 1 grow faster than linearly"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := (&Result{Rows: c.rows, Curves: c.curves}).gate(); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
