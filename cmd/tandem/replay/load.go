package replay

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/capture"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/replay"
)

// source makes the requests of runs.
type source struct {
	name     string
	trace    *workload.Trace // nil: synthetic
	shape    *workload.Shape // of a synthetic load
	arrivals workload.Arrivals
	classes  []workload.Class
	flags    *loadFlags
	seed     uint64
}

// source reads the trace; without one the load is synthetic. Lines that cannot be used are named on warnings.
func (f *loadFlags) source(files []string, seed int, warnings io.Writer) (*source, error) {
	s := &source{flags: f, seed: uint64(seed)}
	var err error
	if f.Classes != "" {
		data, err := epp.ReadFile(f.Classes, maxClasses)
		if err == nil {
			s.classes, err = workload.ReadClasses(data)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Classes, err)
		}
	}
	lengths := f.Input != workload.Lengths{} || f.Output != workload.Lengths{}
	switch {
	case len(files) > 0 && (lengths || f.Shape != ""):
		return nil, errors.New("a trace has lengths of its own: leave out --shape, --input-tokens and --output-tokens")
	case f.Shape != "" && lengths:
		return nil, errors.New("a shape has lengths of its own: leave out --input-tokens and --output-tokens")
	case f.Sessions && len(files) == 0:
		return nil, errors.New("--sessions is for traces: those of shapes always wait for their answers")
	case len(files) > 0:
		err = s.read(files[0], warnings)
	default:
		s.synthetic()
	}
	if f.Rate != (workload.Rates{}) {
		s.arrivals.Rates = f.Rate
	}
	if f.Arrivals != "" {
		s.arrivals.Constant = f.Arrivals == "constant"
	}
	if f.weekly() {
		s.name += ", a week"
	}
	return s, err
}

// weekly reports whether requests come in the pattern of a week.
func (f *loadFlags) weekly() bool { return f.Arrivals == "week" || f.Arrivals == "office" }

// week returns the shape of the week.
func (f *loadFlags) week() workload.WeekShape {
	if f.Arrivals == "office" {
		return workload.OfficeWeek
	}
	return workload.UsualWeek
}

// days returns the days of a week that are replayed, from 0.
func (f *loadFlags) days() (all []int) {
	for _, day := range f.Days {
		all = append(all, day-1)
	}
	if len(all) == 0 {
		all = []int{0, 1, 2, 3, 4, 5, 6}
	}
	return all
}

// maxClasses is the size of a file of classes at most.
const maxClasses = 1 << 20

// synthetic makes the load a shape.
func (s *source) synthetic() {
	f := s.flags
	if shape, ok := workload.ShapeOf(f.Shape); ok {
		s.name, s.shape, s.arrivals = shape.Name, &shape, shape.Arrivals
		return
	}
	input, output := workload.Lengths{Least: 4096, Most: 4096}, workload.Lengths{Least: 256, Most: 256}
	if f.Input != (workload.Lengths{}) {
		input = f.Input
	}
	if f.Output != (workload.Lengths{}) {
		output = f.Output
	}
	s.shape, s.arrivals.Rates = workload.Plain(input, output), workload.Rates{First: 4, Last: 4}
	how, rate := "poisson", s.arrivals.Rates
	if f.Rate != (workload.Rates{}) {
		rate = f.Rate
	}
	if f.Arrivals != "" {
		how = f.Arrivals
	}
	s.name = fmt.Sprintf("%s-%v-%v-%v", how, rate, input, output)
}

// read reads a trace.
func (s *source) read(name string, warnings io.Writer) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	left := 0
	s.trace, err = workload.ReadTrace(file, func(unusable error) error {
		if s.flags.Strict {
			return unusable
		}
		if left++; left <= maxNamed {
			fmt.Fprintf(warnings, "warning: %s: %v: it is left out\n", name, unusable)
		}
		return nil
	})
	if left > maxNamed {
		fmt.Fprintf(warnings, "warning: %s: %d further lines are left out\n", name, left-maxNamed)
	}
	switch f := s.flags; {
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case f.Arrivals != "" && f.Rate == workload.Rates{}:
		return errors.New("a trace has arrivals of its own: --arrivals needs a --rate that replaces them")
	case s.trace.Untimed && f.Rate == workload.Rates{} && len(f.Concurrency) == 0:
		return fmt.Errorf("%s does not say when requests came: use --rate or --concurrency", name)
	case f.weekly() && s.trace.HasSessions() && f.Sessions:
		return fmt.Errorf("--arrivals=%s draws requests at random, and keeps no --sessions", s.flags.Arrivals)
	case f.Sessions && !s.trace.HasSessions():
		return fmt.Errorf("%s names no sessions: leave out --sessions", name)
	}
	if s.trace.Note != "" {
		fmt.Fprintf(warnings, "warning: %s: %s\n", name, s.trace.Note)
	}
	s.trace.Sessions, s.trace.MaxInput, s.name = s.flags.Sessions, s.flags.MaxInput, filepath.Base(name)
	if len(s.trace.Calls(nil, workload.Bound{Requests: 1, Span: math.MaxInt64})) == 0 {
		return fmt.Errorf("%s has no prompt of at most %d tokens (--max-input-tokens)", name, s.flags.MaxInput)
	}
	return nil
}

// capture returns the capture that the requests are from, nil if they are from elsewhere.
func (s *source) capture() *capture.Capture {
	if s.trace == nil {
		return nil
	}
	return s.trace.Capture
}

// measured returns what was measured of the requests; nil if nothing was, or if they are not those of the trace as it was.
func (s *source) measured(t *replay.Trace) *workload.Measured {
	f := s.flags
	if s.trace == nil || s.trace.Measured == nil || len(t.Requests) != len(s.trace.Measured.TTFT) || t.Closed() || f.Rate != (workload.Rates{}) ||
		t.Requests[len(t.Requests)-1].Due != s.calls()[len(t.Requests)-1].Due {
		return nil
	}
	return s.trace.Measured
}

// config returns the configuration that is replayed unless flags name one: the latest of the capture, or the built-in one.
func (s *source) config() (name string, text []byte) {
	if c := s.capture(); c != nil {
		return "captured", []byte(c.Headers[len(c.Headers)-1].Config)
	}
	return "built-in", config.Default()
}

// pool returns the pool that is replayed unless flags name one: that of the capture at its end, if it can serve.
func (s *source) pool() (p replay.Pool) {
	if c := s.capture(); c != nil {
		for _, e := range c.Headers[len(c.Headers)-1].Endpoints {
			switch role, _ := pd.ParseRole(e.Role); {
			case role.Has(pd.RolePrefill | pd.RoleDecode):
				p.Both++
			case role.Has(pd.RolePrefill):
				p.Prefill++
			case role.Has(pd.RoleDecode):
				p.Decode++
			}
		}
	}
	if p.Decode+p.Both == 0 {
		return replay.Pool{Prefill: 4, Decode: 12}
	}
	return p
}

// replicas returns how many pickers are replayed unless a flag says it: as many as captured at a time.
func (s *source) replicas() []int {
	if c := s.capture(); c != nil {
		return []int{c.Pickers()}
	}
	return []int{1}
}

// maxNamed is how many lines that cannot be used are named.
const maxNamed = 20

// concurrencies returns how many sessions run at a time, in each run; 0: they begin when due.
func (s *source) concurrencies() []int {
	switch {
	case len(s.flags.Concurrency) > 0:
		return s.flags.Concurrency
	case s.shape != nil && s.flags.Rate == workload.Rates{}:
		return []int{s.shape.Concurrency}
	}
	return []int{0}
}

// requests returns the requests at a speed, of so many sessions at a time.
func (s *source) requests(speed float64, concurrency int) (*replay.Trace, error) {
	calls, named := s.calls(), []workload.Class(nil)
	if s.trace != nil {
		named = s.trace.Classes
	}
	switch {
	case s.flags.weekly():
		workload.SpaceWeek(rand.New(rand.NewPCG(s.seed, 3)), calls, s.flags.week(), s.arrivals.Rates.First, s.flags.days())
	case s.arrivals.Rates != (workload.Rates{}) && concurrency == 0:
		s.arrivals.Space(rand.New(rand.NewPCG(s.seed, 3)), calls)
	}
	workload.Hasten(calls, speed)
	classes, err := workload.Classify(rand.New(rand.NewPCG(s.seed, 2)), calls, named, s.classes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.flags.Classes, err)
	}
	t := &replay.Trace{Requests: make([]replay.Request, len(calls)), Concurrency: concurrency}
	for _, c := range classes {
		t.Classes = append(t.Classes, replay.Class{Name: c.Name, Model: c.Model, Flow: c.Flow, Priority: c.Priority, SLO: replay.SLO{TTFT: c.TTFT, TPOT: c.TPOT}})
	}
	for i := range calls {
		c := &calls[i]
		r := replay.Request{Due: c.Due, Input: c.Input, Output: c.Output, Blocks: c.Blocks, After: c.After, Class: c.Class}
		if c.After > 0 {
			r.Due = c.Think
		}
		if len(c.Streams) > 0 {
			r.Streams = streams(calls, t.Requests, c)
		}
		if len(c.Blocks)+len(c.Streams) > 0 {
			t.BlockTokens = c.BlockTokens
		}
		t.Requests[i] = r
	}
	return t, nil
}

// ofWeek returns calls of a week with lengths of the trace, or of the shape, drawn at random: what prompts have in common is not kept, because
// no trace is as long.
func (s *source) ofWeek() []workload.Call {
	n := s.flags.Requests
	if n == 0 {
		n = workload.OfWeek(rand.New(rand.NewPCG(s.seed, 3)), s.flags.week(), s.arrivals.Rates.First, s.flags.days())
	}
	random := rand.New(rand.NewPCG(s.seed, 0))
	if s.trace == nil {
		return s.shape.Calls(random, n)
	}
	all := s.trace.Calls(nil, workload.Bound{Requests: -1, Span: math.MaxInt64})
	calls := make([]workload.Call, n)
	for i := range calls {
		drawn := &all[random.IntN(len(all))]
		calls[i] = workload.Call{Input: drawn.Input, Output: drawn.Output, Class: drawn.Class}
	}
	return calls
}

// calls returns the calls at their own speed.
func (s *source) calls() []workload.Call {
	n := s.flags.Requests
	if s.flags.weekly() {
		return s.ofWeek()
	}
	if s.trace != nil {
		if n == 0 {
			n = -1 // all
		}
		return s.trace.Calls(nil, workload.Bound{Requests: n, Span: math.MaxInt64})
	}
	if n == 0 {
		n = s.shape.Requests
	}
	return s.shape.Calls(rand.New(rand.NewPCG(s.seed, 0)), n)
}

// rate returns how many sessions of a trace begin in a second, over its whole length.
func (s *source) rate() float64 {
	whole := *s.flags
	whole.Requests = 0
	from := *s
	from.flags = &whole
	calls, sessions := from.calls(), 0
	if s.arrivals.Rates != (workload.Rates{}) {
		s.arrivals.Space(rand.New(rand.NewPCG(s.seed, 3)), calls)
	}
	for i := range calls {
		if calls[i].After == 0 {
			sessions++
		}
	}
	if span := (calls[len(calls)-1].Due - calls[0].Due).Seconds(); span > 0 && sessions > 1 {
		return float64(sessions-1) / span
	}
	return 1
}

// streams returns the streams of a call, which the turns of a session share.
func streams(calls []workload.Call, requests []replay.Request, c *workload.Call) []replay.Stream {
	if c.After > 0 && &calls[c.After-1].Streams[0] == &c.Streams[0] {
		return requests[c.After-1].Streams
	}
	all := make([]replay.Stream, len(c.Streams))
	for i, one := range c.Streams {
		all[i] = replay.Stream(one)
	}
	return all
}

// load returns the requests in a second; of closed loops, which have no rate of their own, 0.
func load(t *replay.Trace) float64 {
	n := len(t.Requests)
	if n < 2 || t.Closed() || t.Requests[n-1].Due == 0 {
		return 0
	}
	return float64(n-1) / t.Requests[n-1].Due.Seconds()
}
