package replay

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/replay"
)

// source makes the requests of a run.
type source struct {
	name  string
	trace *workload.Trace // nil: synthetic
	flags *loadFlags
	seed  uint64
}

// source reads the trace; without one the load is synthetic. Lines that cannot be used are named on warnings.
func (f *loadFlags) source(files []string, seed int, warnings io.Writer) (*source, error) {
	s := &source{flags: f, seed: uint64(seed)}
	if len(files) == 0 {
		s.name = fmt.Sprintf("%s-%v-%v-%v", f.Arrivals, f.Rate, f.Input, f.Output)
		return s, nil
	}
	file, err := os.Open(files[0])
	if err != nil {
		return nil, err
	}
	defer file.Close()
	left := 0
	s.trace, err = workload.ReadTrace(file, func(unusable error) error {
		if f.Strict {
			return unusable
		}
		if left++; left <= maxNamed {
			fmt.Fprintf(warnings, "warning: %s: %v: it is left out\n", files[0], unusable)
		}
		return nil
	})
	if left > maxNamed {
		fmt.Fprintf(warnings, "warning: %s: %d further lines are left out\n", files[0], left-maxNamed)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", files[0], err)
	}
	s.name = filepath.Base(files[0])
	return s, nil
}

// maxNamed is how many lines that cannot be used are named.
const maxNamed = 20

// requests returns the requests at a speed.
func (s *source) requests(speed float64) *replay.Trace {
	bound := workload.Bound{Requests: s.flags.Requests, Span: math.MaxInt64}
	var calls []workload.Call
	if s.trace != nil {
		if bound.Requests == 0 {
			bound.Requests = -1
		}
		at := *s.trace
		at.Speed = speed
		calls = at.Calls(nil, bound)
	} else {
		if bound.Requests == 0 {
			bound.Requests = 1000
		}
		synthetic := workload.Synthetic{Input: s.flags.Input, Output: s.flags.Output, Rate: s.flags.Rate * speed, Constant: s.flags.Arrivals == "constant"}
		calls = synthetic.Calls(rand.New(rand.NewPCG(s.seed, 0)), bound)
	}
	t := &replay.Trace{Requests: make([]replay.Request, 0, len(calls))}
	for _, c := range calls {
		if len(c.Blocks) > 0 {
			t.BlockTokens = c.BlockTokens
		}
		t.Requests = append(t.Requests, replay.Request{Due: c.Due, Input: c.Input, Output: c.Output, Blocks: c.Blocks})
	}
	return t
}

// load returns the requests in a second.
func load(t *replay.Trace) float64 {
	n := len(t.Requests)
	if n < 2 || t.Requests[n-1].Due == 0 {
		return 0
	}
	return float64(n-1) / t.Requests[n-1].Due.Seconds()
}
