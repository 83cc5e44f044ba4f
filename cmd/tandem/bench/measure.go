package bench

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"time"
)

// Parts that programs play in a series.
const (
	partBaseline = "baseline"
	partOurs     = "tandem"
	partOther    = "other"
)

// contender is one program in a series, or several that together play one part, and the load on it.
type contender struct {
	part     string
	subjects []*subject
	lanes    []exchanger
}

// cost is the cost of a contender's exchanges.
type cost struct {
	done   int
	took   time.Duration
	cpu    time.Duration
	allocs float64       // allocated; negative if unknown
	bench  time.Duration // CPU time of load and engines
}

// each returns the CPU time of one exchange, in ms.
func (c cost) each() float64 { return milliseconds(c.cpu) / float64(c.done) }

// compare measures contenders in rounds in which they take turns, each beginning equally often. An additional first round is
// not counted: connections, caches and heaps grow in it. The costs are ordered by contender, then by round.
func compare(ctx context.Context, contenders []*contender, o options) ([][]cost, error) {
	costs := make([][]cost, len(contenders))
	for round := range o.rounds + 1 {
		for i := range contenders {
			at := (round + i) % len(contenders)
			c, err := contenders[at].measure(ctx, o.span)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				costs[at] = append(costs[at], c)
			}
		}
	}
	return costs, nil
}

// measure runs the lanes for a span.
func (c *contender) measure(ctx context.Context, span time.Duration) (cost, error) {
	before := make([]usage, len(c.subjects))
	for i, s := range c.subjects {
		var err error
		if before[i], err = s.start(ctx); err != nil {
			return cost{}, s.died(err)
		}
	}
	bench, began := ownTime(), time.Now()
	done, err := closed(ctx, c.lanes, span)
	if err != nil {
		return cost{}, c.died(err)
	}
	if done == 0 {
		return cost{}, c.died(errors.New("no exchange finished in the time"))
	}
	sum := cost{done: done, took: time.Since(began), bench: ownTime() - bench}
	for i, s := range c.subjects {
		u, err := s.since(ctx, before[i])
		if err != nil {
			return cost{}, s.died(err)
		}
		sum.cpu, sum.allocs = sum.cpu+u.cpu, sum.allocs+u.allocs
	}
	return sum, nil
}

// died adds the last output of a contender's programs to an error.
func (c *contender) died(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return c.subjects[0].died(err)
}

// ownTime returns the CPU time of this process, which is load and engines, or 0 if the system does not report it.
func ownTime() time.Duration {
	t, _ := cpuTime(os.Getpid())
	return t
}

// figure summarizes the rounds of one contender.
func (c *contender) figure(rounds []cost) *Figure {
	var values []float64
	var all cost
	for _, r := range rounds {
		values = append(values, r.each())
		all = cost{all.done + r.done, all.took + r.took, all.cpu + r.cpu, all.allocs + r.allocs, all.bench + r.bench}
	}
	f := &Figure{Value: median(values), Busy: all.cpu.Seconds() / all.took.Seconds(),
		Bench: milliseconds(all.bench) / float64(all.done)}
	f.PerCore = 1e3 / f.Value
	if all.allocs >= 0 {
		f.Allocs = new(all.allocs / float64(all.done))
	}
	for _, s := range c.subjects {
		if _, peak, err := memory(s.PID()); err == nil {
			f.Peak += mebibytes(peak)
		}
	}
	return f
}

// rated returns the row of compared contenders, the baseline first.
func rated(table, series string, contenders []*contender, costs [][]cost, limit float64) Row {
	var row Row
	ratios := func(part string) (all []float64) {
		i := slices.IndexFunc(contenders, func(c *contender) bool { return c.part == part })
		if i < 0 {
			return nil
		}
		for round := range costs[i] {
			all = append(all, costs[i][round].each()/costs[0][round].each())
		}
		return all
	}
	row = relative(table, series, ratios(partOurs), limit)
	row.OtherRatio = median(ratios(partOther))
	for i, c := range contenders {
		*row.figure(c.part) = c.figure(costs[i])
	}
	return row
}

// figure returns the row's field for a part.
func (r *Row) figure(part string) **Figure {
	switch part {
	case partBaseline:
		return &r.Baseline
	case partOurs:
		return &r.Ours
	}
	return &r.Other
}

// delays are the times of a paced load, in ms, by round.
type delays [][]float64

// pace measures the times of several loads in rounds in which they take turns.
func pace(ctx context.Context, loads [][]exchanger, rate float64, o options) ([]delays, error) {
	all := make([]delays, len(loads))
	for round := range o.rounds {
		for i := range loads {
			at := (round + i) % len(loads)
			took, err := paced(ctx, loads[at], rate, o.span)
			if err != nil {
				return nil, err
			}
			var times []float64
			for _, d := range took {
				times = append(times, milliseconds(d))
			}
			all[at] = append(all[at], times)
		}
	}
	return all, nil
}

// added returns how much later than a base something comes, in ms: the difference of the medians, by round, and of the 99th
// percentile of all rounds together. A negative value means that the difference is lost in noise.
func (d delays) added(base delays) (p50 []float64, p99 float64) {
	for round := range d {
		p50 = append(p50, median(d[round])-median(base[round]))
	}
	return p50, quantile(slices.Concat(d...), 0.99) - quantile(slices.Concat(base...), 0.99)
}

// later adds the delays against a base to a figure.
func (f *Figure) later(d, base delays) {
	p50, p99 := d.added(base)
	f.P50, f.P99 = new(median(p50)), &p99
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// mebibytes converts bytes to MiB.
func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// median returns the middle value, or the mean of the two in the middle; 0 for no values.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// quantile returns the nearest-rank quantile: the smallest of the values that at least that share of them do not exceed; 0
// for no values.
func quantile(values []float64, part float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(part*float64(len(sorted)) - 1e-9))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// fitted is the number of points at the end of a curve that the fit uses: in earlier ones, a constant part hides the growth.
const fitted = 3

// exponent returns the power of x with which the end of a curve grows, by least squares over the logarithms: 1 is linear.
// The value at x = 0 is subtracted first. The result is NaN if there are too few points.
func exponent(points []Point) float64 {
	var x, y []float64
	base := 0.0
	for _, p := range points {
		switch {
		case p.X == 0:
			base = p.Y
		case p.Y > base:
			x, y = append(x, math.Log(p.X)), append(y, math.Log(p.Y-base))
		}
	}
	if len(x) < 2 {
		return math.NaN()
	}
	x, y = x[max(0, len(x)-fitted):], y[max(0, len(y)-fitted):]
	var meanX, meanY, xy, xx float64
	for i := range x {
		meanX, meanY = meanX+x[i]/float64(len(x)), meanY+y[i]/float64(len(y))
	}
	for i := range x {
		xy += (x[i] - meanX) * (y[i] - meanY)
		xx += (x[i] - meanX) * (x[i] - meanX)
	}
	return xy / xx
}
