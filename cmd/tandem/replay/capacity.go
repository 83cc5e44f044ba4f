package replay

import (
	"context"
	"io"
	"math"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/replay"
)

// enough is the share of the requests that must meet the objective at the capacity.
const enough = 0.9

// Rates of sessions between which the capacity of a pool is looked for, in a second.
const (
	lowestRate  = 1.0 / 256
	highestRate = 4096
)

// highest returns the highest rate that is served, of rates around one to begin with; 0 if there is none. The more steps, the closer it is: 1 + 1/2^steps
// times as much is not served.
func highest(rate float64, steps int, serves func(float64) (bool, error)) (float64, error) {
	low, high := 0.0, 0.0
	for low == 0 || high == 0 {
		ok, err := serves(rate)
		switch {
		case err != nil:
			return 0, err
		case ok && rate >= highestRate:
			return rate, nil
		case ok:
			low, rate = rate, 2*rate
		case rate <= lowestRate:
			return 0, nil
		default:
			high, rate = rate, rate/2
		}
	}
	for range steps {
		rate := math.Sqrt(low * high)
		ok, err := serves(rate)
		if err != nil {
			return 0, err
		}
		if ok {
			low = rate
		} else {
			high = rate
		}
	}
	return low, nil
}

// load gives each of some runs the highest rate at which its pool serves enough requests as wanted, some runs at a time.
func (s *settings) load(ctx context.Context, all []*run) error {
	return inParallel(len(all), func(i int) error { return s.loadOne(ctx, all[i]) })
}

// loadSpan is for how long requests come, unless flags say how many: a pool that cannot keep up is to show it.
const loadSpan = time.Minute

// loadOne gives a run the highest rate at which enough requests are served as wanted, within 1 %. The second half of the requests counts: the first
// ones find a pool that is still filling.
func (s *settings) loadOne(ctx context.Context, r *run) error {
	at := func(rate float64) error {
		f := loadFlags{Input: s.Load.Input, Output: s.Load.Output, Rate: workload.Rates{First: rate, Last: rate}, Requests: s.Load.Requests}
		if f.Requests == 0 {
			f.Requests = int(min(max(rate*loadSpan.Seconds(), leastTested), 4*mostTested))
		}
		from, err := f.source(nil, s.Picker.Seed, io.Discard)
		if err != nil {
			return err
		}
		if r.requests, err = from.requests(1, 0); err != nil {
			return err
		}
		r.requests.Wanted, r.load = s.slo(), load(r.requests)
		return nil
	}
	rate, err := highest(1, 6, func(rate float64) (bool, error) {
		if err := at(rate); err != nil {
			return false, err
		}
		o := r.options
		o.Ended = nil
		result, err := replay.Run(ctx, o, r.requests)
		if err != nil {
			return false, err
		}
		result.Records = result.Records[len(result.Records)/2:]
		return result.Summary(s.slo()).Met >= enough, nil
	})
	if err != nil {
		return err
	}
	return at(max(rate, lowestRate))
}
