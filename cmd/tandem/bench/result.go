package bench

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Result is the result of a benchmark.
type Result struct {
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took_ns"`
	Machine string        `json:"machine"`
	Rounds  int           `json:"rounds"`
	Span    time.Duration `json:"span_ns"` // of one program in one round
	Rows    []Row         `json:"rows"`
	Curves  []Curve       `json:"curves,omitempty"`
}

// Row is one series.
type Row struct {
	Table    string  `json:"table"` // heading: what its figures are, and what the baseline is
	Series   string  `json:"series"`
	Baseline *Figure `json:"baseline,omitempty"`
	Ours     *Figure `json:"tandem,omitempty"`
	Other    *Figure `json:"other,omitempty"`
	// Ratio is ours to the baseline's; the median of the rounds. 0: the value itself is judged.
	Ratio      float64 `json:"ratio,omitempty"`
	OtherRatio float64 `json:"other_ratio,omitempty"`
	// Min and Max are the extremes of the rounds: of the ratio if there is one, else of the value.
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Limit  float64 `json:"limit"` // largest value that the ratio, or else the value, may have
	Passed bool    `json:"passed"`
	// Missing says why nothing was measured.
	Missing string `json:"not_measured,omitempty"`
}

// Figure is the cost of one program. Figures that were not measured are absent or 0.
type Figure struct {
	Value   float64  `json:"value"`
	Allocs  *float64 `json:"allocs_per_request,omitempty"`           // allocated per request
	PerCore float64  `json:"requests_per_second_per_core,omitempty"` // requests, computed from the CPU time of one
	Busy    float64  `json:"busy_cores,omitempty"`                   // processors that it kept busy under the load
	// Bench is the CPU time of load and engines, in ms per request: it should be less than the cost that it measures.
	Bench float64  `json:"bench_cpu_ms,omitempty"`
	P50   *float64 `json:"added_p50_ms,omitempty"` // see added
	P99   *float64 `json:"added_p99_ms,omitempty"`
	Peak  float64  `json:"peak_rss_mib,omitempty"`
}

// Curve shows how one quantity grows with another.
type Curve struct {
	Name   string  `json:"name"`
	X      string  `json:"x"`
	Y      string  `json:"y"`
	Points []Point `json:"points"`
	// Exponent is the power of x with which the last points grow; nil if there are too few.
	Exponent *float64 `json:"exponent,omitempty"`
}

// Point is one point of a curve.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// gate returns an error that counts what is not as it should be; nil if everything was measured and is within its limit.
func (r *Result) gate() error {
	var exceeded, unmeasured, steep int
	for _, row := range r.Rows {
		switch {
		case row.Missing != "":
			unmeasured++
		case !row.Passed:
			exceeded++
		}
	}
	for i := range r.Curves {
		if r.Curves[i].steep() {
			steep++
		}
	}
	if exceeded+unmeasured+steep == 0 {
		return nil
	}
	return fmt.Errorf("--gate: of %d series, %d exceeded their limit and %d were not measured; of %d curves, %d grow faster than linearly",
		len(r.Rows), exceeded, unmeasured, len(r.Curves), steep)
}

// missing returns a row without figures.
func missing(table, series string, why error) Row {
	return Row{Table: table, Series: series, Missing: why.Error()}
}

// absolute returns a row whose value itself is judged: the median of the rounds.
func absolute(table, series string, values []float64, limit float64) Row {
	r := Row{Table: table, Series: series, Ours: &Figure{Value: median(values)}, Limit: limit}
	r.Min, r.Max = slices.Min(values), slices.Max(values)
	r.Passed = r.Ours.Value <= limit
	return r
}

// relative returns a row whose ratios are judged.
func relative(table, series string, ratios []float64, limit float64) Row {
	r := Row{Table: table, Series: series, Ratio: median(ratios), Limit: limit, Min: slices.Min(ratios), Max: slices.Max(ratios)}
	r.Passed = r.Ratio <= limit
	return r
}

// newCurve returns the curve through the points, with its exponent.
func newCurve(name, x, y string, points []Point) Curve {
	c := Curve{Name: name, X: x, Y: y, Points: points}
	if e := exponent(points); !math.IsNaN(e) {
		c.Exponent = &e
	}
	return c
}

// linear is the largest exponent that a linear curve shows on a noisy machine.
const linear = 1.15

// steep reports whether the curve grows more than linearly.
func (c *Curve) steep() bool { return c.Exponent != nil && *c.Exponent > linear }

// growth describes the fit.
func (c *Curve) growth() string {
	switch {
	case c.Exponent == nil:
		return "too few points for a fit"
	case c.steep():
		return fmt.Sprintf("its end grows with %s to the power of %.2f, FASTER than linear", c.X, *c.Exponent)
	}
	return fmt.Sprintf("its end grows with %s to the power of %.2f, linear or slower", c.X, *c.Exponent)
}
