package bench

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"
)

// Parts that programs play in a series.
const (
	partFloor = "floor"
	partOurs  = "tandem"
	partOther = "other"
)

// contender is one program in a series, or several that together stand for one, with what is done to it.
type contender struct {
	part     string
	subjects []*subject
	lanes    []exchanger
}

// cost is what exchanges cost a contender.
type cost struct {
	done    int
	took    time.Duration
	cpu     time.Duration
	objects float64       // allocated; negative if it does not tell
	bench   time.Duration // CPU time of load and engines
}

// each is the CPU time of one exchange, in ms.
func (c cost) each() float64 { return milliseconds(c.cpu) / float64(c.done) }

// compare measures contenders in rounds in which they take turns, each beginning as often as the others. One round before
// is not counted: connections, caches and heaps grow in it. The costs are by contender, then by round.
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

// measure lets the lanes run for a span.
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
		return cost{}, c.died(errors.New("not one exchange was done in the time"))
	}
	sum := cost{done: done, took: time.Since(began), bench: ownTime() - bench}
	for i, s := range c.subjects {
		u, err := s.since(ctx, before[i])
		if err != nil {
			return cost{}, s.died(err)
		}
		sum.cpu, sum.objects = sum.cpu+u.cpu, sum.objects+u.objects
	}
	return sum, nil
}

// died tells what a contender's programs have to say about an error.
func (c *contender) died(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return c.subjects[0].died(err)
}

// ownTime is the CPU time of this process, which is load and engines; 0 if the system does not tell.
func ownTime() time.Duration {
	t, _ := cpuTime(os.Getpid())
	return t
}

// figure is what the rounds say of one contender.
func (c *contender) figure(rounds []cost) *Figure {
	var values []float64
	var all cost
	for _, r := range rounds {
		values = append(values, r.each())
		all = cost{all.done + r.done, all.took + r.took, all.cpu + r.cpu, all.objects + r.objects, all.bench + r.bench}
	}
	f := &Figure{Value: median(values), Busy: all.cpu.Seconds() / all.took.Seconds(),
		Bench: milliseconds(all.bench) / float64(all.done)}
	f.PerCore = 1e3 / f.Value
	if all.objects >= 0 {
		f.Objects = new(all.objects / float64(all.done))
	}
	for _, s := range c.subjects {
		if _, peak, err := memory(s.PID()); err == nil {
			f.Peak += mebibytes(peak)
		}
	}
	return f
}

// rated is the row of contenders, the floor first, that were compared.
func rated(table, series string, contenders []*contender, costs [][]cost, bar float64) Row {
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
	row = relative(table, series, ratios(partOurs), bar)
	row.OtherRatio = median(ratios(partOther))
	for i, c := range contenders {
		*row.figure(c.part) = c.figure(costs[i])
	}
	return row
}

// figure is the place for the figure of a part.
func (r *Row) figure(part string) **Figure {
	switch part {
	case partFloor:
		return &r.Floor
	case partOurs:
		return &r.Ours
	}
	return &r.Other
}

// delays are the times of a paced load, in ms, by round.
type delays [][]float64

// pace takes the times of several loads in rounds in which they take turns.
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

// added is how much later than a base something comes, in ms: of the medians, round by round, and of the 99th percentile of
// all rounds together. Below zero means that the difference is lost in the noise.
func (d delays) added(base delays) (p50 []float64, p99 float64) {
	for round := range d {
		p50 = append(p50, median(d[round])-median(base[round]))
	}
	return p50, quantile(slices.Concat(d...), 0.99) - quantile(slices.Concat(base...), 0.99)
}

// later notes in a figure how much later than a base something comes.
func (f *Figure) later(d, base delays) {
	p50, p99 := d.added(base)
	f.P50, f.P99 = new(median(p50)), &p99
}
