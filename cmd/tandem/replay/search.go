package replay

import (
	"context"
	"math"
	"time"

	"github.com/tandem-serving/tandem/replay"
	"github.com/tandem-serving/tandem/replay/autoscale"
	"github.com/tandem-serving/tandem/replay/engine"
)

// search looks for the smallest sizes of every interval with which a share of its requests meet the SLO, by replays of all requests: each
// makes every interval smaller by one engine where nothing says that this is too little, and takes back what was. Intervals are
// changed together, so it finds sizes of which no single one can be made smaller, which need not be the least of all.
type search struct {
	each  time.Duration
	slo   replay.SLO
	share float64
	from  [][2]int // sizes to begin with, prefill and decode of each interval; nil: they are guessed
}

// Bounds of a search.
const (
	mostRounds = 24
	patience   = 4   // rounds without a better result after which it ends
	filled     = 0.5 // share of the time in which engines of the first guess compute
)

// sized is the sizes of an interval, and the least that are not known to be too few.
type sized struct {
	size, least [2]int // prefill and decode
	lowered     int    // role that the last round made smaller; -1: none
}

// perform returns the result of the best sizes. The run's options are those that it was made with.
func (s *search) perform(ctx context.Context, r *run) (best *replay.Result, err error) {
	intervals := s.guess(r)
	for i := range min(len(s.from), len(intervals)) {
		for role := range 2 {
			l := s.limits(r, role)
			intervals[i].size[role] = max(l.Min, min(l.Max, s.from[i][role]))
		}
	}
	lowest, waits := math.Inf(1), 0
	for round := range mostRounds {
		s.plan(r, intervals)
		r.ended.Store(0)
		result, err := replay.Run(ctx, r.options, r.requests)
		if err != nil {
			return nil, err
		}
		missed := s.missed(result, len(intervals))
		waits++
		if cost := s.cost(result); cost < lowest {
			best, lowest, waits = result, cost, 0
		}
		if !s.next(r, round, intervals, missed) || waits == patience {
			break
		}
	}
	return best, nil
}

// cost is what a result is compared by: GPU time, and more than any if too few requests met the SLO.
func (s *search) cost(result *replay.Result) float64 {
	sum := result.Summary(s.slo)
	if sum.Met < s.share {
		return 1e12 * (1 + s.share - sum.Met)
	}
	return sum.GPUSeconds
}

// plan has the run follow the sizes.
func (s *search) plan(r *run, intervals []sized) {
	o := r.options.Scaling
	p := &autoscale.Plan{Each: s.each, PrefillReady: o.Prefill.Ready, DecodeReady: o.Decode.Ready}
	for i := range intervals {
		p.Prefill, p.Decode = append(p.Prefill, intervals[i].size[0]), append(p.Decode, intervals[i].size[1])
	}
	pool := &r.options.Pool
	if pool.Prefill = p.Prefill[0]; pool.Both > 0 {
		pool.Both = p.Decode[0]
	} else {
		pool.Decode = p.Decode[0]
	}
	o.Begin = p.Begin
}

// guess returns sizes to begin with, by the work of each interval.
func (s *search) guess(r *run) []sized {
	all := r.requests.Requests
	intervals := make([]sized, 1+int(all[len(all)-1].Due/s.each))
	work := make([][2]float64, len(intervals)) // seconds
	o := &r.options
	batch := float64(o.Engine.Sequences) / 8
	for i := range all {
		q := &all[i]
		at := int(q.Due / s.each)
		work[at][0] += o.Table.Milliseconds(engine.Step{New: q.Input}) / 1e3
		work[at][1] += float64(q.Output) * o.Table.Milliseconds(engine.Step{Batch: int(batch), Context: float64(q.Input)}) / batch / 1e3
	}
	span := min(s.each, all[len(all)-1].Due+time.Second).Seconds()
	for i := range intervals {
		for role := range 2 {
			l := s.limits(r, role)
			intervals[i].size[role] = max(l.Min, min(l.Max, 1+int(work[i][role]/span/filled)))
			intervals[i].least[role] = l.Min
		}
		intervals[i].lowered = -1
	}
	return intervals
}

func (s *search) limits(r *run, role int) *replay.ScaledRole {
	if role == 0 {
		return &r.options.Scaling.Prefill
	}
	return &r.options.Scaling.Decode
}

// misses are the requests of an interval, and those of them that did not meet the SLO: their first token came too late, or the others.
type misses struct{ all, first, further int }

func (s *search) missed(result *replay.Result, intervals int) []misses {
	all := make([]misses, intervals)
	for i := range result.Records {
		one := &result.Records[i]
		m := &all[min(intervals-1, int(one.Due/s.each))]
		m.all++
		switch tpot, _ := one.TPOT(); {
		case s.slo.Met(one):
		case s.slo.TPOT > 0 && tpot > s.slo.TPOT:
			m.further++
		default:
			m.first++
		}
	}
	return all
}

// next changes the sizes by what was missed, and reports whether any has changed.
func (s *search) next(r *run, round int, intervals []sized, missed []misses) (changed bool) {
	for i := range intervals {
		one, m := &intervals[i], missed[i]
		lowered := one.lowered
		one.lowered = -1
		if float64(m.first+m.further) > (1-s.share)*float64(m.all) {
			role := 0
			switch {
			case lowered >= 0:
				role = lowered
			case m.further > m.first || one.size[0] == s.limits(r, 0).Max || round%3 == 2: // late first tokens may be those of decode too
				role = 1
			}
			if one.size[role] < s.limits(r, role).Max {
				one.size[role]++
				changed = true
			}
			one.least[role] = max(one.least[role], one.size[role])
			continue
		}
		for _, role := range []int{round % 2, 1 - round%2} {
			if one.size[role] > one.least[role] {
				one.size[role]--
				one.lowered, changed = role, true
				break
			}
		}
	}
	return changed
}
