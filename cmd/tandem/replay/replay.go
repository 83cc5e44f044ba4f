package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/epp/capture"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/replay"
)

// Summary is what the command does, for help pages.
const Summary = "run a trace through the picker in virtual time, and compare configurations and pools"

// Run is the command. The operand is a file with a trace; without it the load is synthetic. The error is an Exit with CodeConfig if
// a file cannot be used, or if a pool cannot serve the trace. After an interrupt, the runs that are done are printed.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := defaults()
	files, err := (boot.Program{Summary: "replay: " + Summary + ".", Operands: "[TRACE]", NoSettings: true}).Load(std, &s, args)
	if err != nil {
		return err
	}
	if len(files) > 1 {
		return boot.Usagef("want one TRACE, got %d", len(files))
	}
	if s.Fit.URL != "" {
		if len(files) > 0 {
			return boot.Usagef("--fit measures an engine: leave out the trace")
		}
		return s.fit(ctx, std)
	}
	if err := s.differ.read(s.Pool.File); err != nil {
		return boot.Configf("reading %s: %w", s.Pool.File, err)
	}
	if len(s.differ.Variants) > 0 && (s.Why.Elastic || s.Why.Regret) {
		return boot.Usagef("--regret and --elastic replay pools whose engines are alike: leave out the variants of %s", s.Pool.File)
	}
	if s.Why.Elastic {
		return s.elastic(ctx, files, std)
	}
	if s.Why.Regret {
		return s.regret(ctx, files, std)
	}
	runs, err := s.plan(files, std.Stderr)
	if err == nil {
		err = s.Why.possible(runs)
	}
	if err != nil {
		return boot.Configf("%w", err)
	}
	began := time.Now()
	failed := perform(ctx, runs, s.slo(), s.Output.PerRequest != "" || s.Why.Compare, std.Stderr)
	done := finished(runs)
	repick(ctx, done, s.Picker.Stale, std.Stderr)
	fmt.Fprintf(std.Stderr, "%d of %d runs, %.1f s\n", len(done), len(runs), time.Since(began).Seconds())
	why, err := s.why(ctx, done)
	failed = errors.Join(failed, err)
	if err := errors.Join(s.Output.write(std.Stdout, done, &why), s.Output.perRequest(done), s.Output.page(done, &why)); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	if errors.Is(failed, context.Canceled) { // an interrupted sweep must not look like a whole one: it ends with CodeFailed
		return fmt.Errorf("interrupted: the results are those of %d of %d runs", len(done), len(runs))
	}
	return failed
}

// slo returns what a request must meet.
func (s *settings) slo() replay.SLO { return replay.SLO{TTFT: s.Output.TTFT, TPOT: s.Output.TPOT} }

// run is one run, and its results.
type run struct {
	config, engine, trace string
	threshold             *int // that the configuration got by --threshold; nil: its own
	pool                  replay.Pool
	replicas              int     // pickers
	scaler                string  // autoscaler; "": the pool stays as it is
	search                *search // of the sizes; nil: they are not looked for
	load                  float64 // requests in a second; of a closed loop, only known when it is done
	options               replay.Options
	requests              *replay.Trace
	ended                 atomic.Int64 // requests

	done       bool
	result     *replay.Result // nil unless its records are wanted
	summary    replay.Summary
	classes    []replay.ClassSummary
	refusals   map[pd.Reason]int
	ttft, tpot []float64 // percentiles of the answered requests in ms, evenly from 0 to 100
	timeline   []replay.Sample
	sizes      []replay.Resize    // of a pool that scales
	shares     []replay.Share     // of the variants of the pool; nil if it has none
	story      *replay.Story      // nil unless one is wanted
	capture    *capture.Capture   // nil: the trace is none
	picks      *replay.Repicked   // of the capture; nil: they were not made again
	times      *workload.Measured // of the trace; nil: unknown, or the load is another one
}

// plan lists the runs: each configuration on each pool, engine, speed and concurrency. The error says why one of them is not possible.
func (s *settings) plan(files []string, warnings io.Writer) (runs []*run, err error) {
	from, err := s.Load.source(files, s.Picker.Seed, warnings)
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	configs, err := s.Picker.configs(from, warnings)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	pools := s.Pool.Pools
	if len(pools) == 0 {
		pools = []replay.Pool{from.pool()}
	}
	for _, pattern := range s.differ.patterns() {
		if !slices.ContainsFunc(pools, func(p replay.Pool) bool { o := s.pooled(p); return o.Knows(pattern) }) {
			return nil, fmt.Errorf("%s: %q is no zone and no engine of the pools: they have names such as prefill-0, decode-1 or both-2", s.Pool.File, pattern)
		}
	}
	for _, speed := range s.Load.Speeds {
		for _, concurrency := range from.concurrencies() {
			requests, err := from.requests(speed, concurrency)
			if err != nil {
				return nil, err
			}
			requests.Wanted = s.slo()
			if runs, err = s.under(runs, from, requests, pools, configs); err != nil {
				return nil, err
			}
		}
	}
	return runs, nil
}

// under adds the runs under one load.
func (s *settings) under(runs []*run, from *source, requests *replay.Trace, pools []replay.Pool, configs []named) ([]*run, error) {
	models, err := s.models()
	if err != nil {
		return nil, fmt.Errorf("reading the engine: %w", err)
	}
	for _, m := range models {
		for _, pool := range pools {
			for _, c := range s.scaled(s.replicated(from, configs)) {
				r := &run{scaler: c.scaler, replicas: c.replicas, config: c.name, threshold: c.threshold, engine: m.name, trace: from.name, capture: from.capture(), times: from.measured(requests), pool: pool, load: load(requests), requests: requests,
					options: s.options(m, pool, c.config)}
				if err := s.Scaling.apply(r, s.slo()); err != nil {
					return nil, fmt.Errorf("configuration %s: %w", c.name, err)
				}
				r.options.Explain, r.options.Ended, r.options.Replicas = s.Why.Explain, &r.ended, c.replicas
				if err := r.options.Check(requests); err != nil {
					return nil, fmt.Errorf("engine %s, pool %v: %w", m.name, pool, err)
				}
				if err := r.options.Supported(); err != nil {
					return nil, fmt.Errorf("configuration %s: %w", c.name, err)
				}
				runs = append(runs, r)
			}
		}
	}
	return runs, nil
}

// replicated is a configuration of a number of pickers, with the autoscaler of its pool.
type replicated struct {
	named
	replicas int
	scaler   string
}

// replicated returns each configuration with each number of pickers.
func (s *settings) replicated(from *source, configs []named) (all []replicated) {
	numbers := s.Picker.Replicas
	if len(numbers) == 0 {
		numbers = from.replicas()
	}
	for _, c := range configs {
		for _, n := range numbers {
			all = append(all, replicated{named: c, replicas: n})
		}
	}
	return all
}

// options returns how a configuration is run.
func (s *settings) options(m model, pool replay.Pool, c *config.Config) replay.Options {
	o, k := s.pooled(pool), s.kind(&m)
	o.Config, o.Engine, o.Table, o.Hardware, o.Request = c, k.Engine, k.Table, k.Hardware, k.Request
	o.Variants = s.variants()
	o.Events = s.Picker.Events
	o.Sync = s.Picker.Sync
	o.Scrape, o.Stale, o.First, o.Hop, o.Seed = s.Picker.Scrape, s.Picker.Stale, s.Network.First, s.Network.Hop, uint64(s.Picker.Seed)
	return o
}

// kind returns what engines of a model are like.
func (s *settings) kind(m *model) replay.Kind {
	k := replay.Kind{Engine: m.config, Table: m.table, Hardware: m.hardware, Request: m.request}
	k.Engine.Adapters, k.Engine.Load, k.Engine.Slowdown = s.differ.LoRA.Slots, s.differ.LoRA.Load, s.differ.LoRA.Slowdown
	return k
}

// models returns the engines that are compared. Of a pool with variants it is one, by the names of all.
func (s *settings) models() (all []model, err error) {
	if len(s.differ.Variants) > 0 {
		return s.mixed()
	}
	for _, name := range s.Pool.Engines {
		m, err := s.Pool.model(name)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// mixed reads the engines of the variants.
func (s *settings) mixed() ([]model, error) {
	if !slices.Equal(s.Pool.Engines, defaults().Pool.Engines) {
		return nil, fmt.Errorf("the variants of %s say what the engines are like: leave out --engine", s.Pool.File)
	}
	f, names := &s.differ, []string(nil)
	f.kinds = nil
	for _, v := range f.Variants {
		m, err := s.Pool.model(v.Engine)
		if err != nil {
			return nil, fmt.Errorf("variant %s: %w", v.Name, err)
		}
		f.kinds, names = append(f.kinds, m), append(names, v.Name)
	}
	all := f.kinds[0]
	all.name = strings.Join(names, "+")
	return []model{all}, nil
}

// pooled returns the options that say what a pool is like.
func (s *settings) pooled(pool replay.Pool) replay.Options {
	link := replay.Link{Bandwidth: s.Network.Bandwidth * 1e9, Latency: s.Network.Latency, Handshake: s.Network.Handshake}
	return replay.Options{Pool: pool, Link: link, Zones: s.differ.zones(), Pairs: s.differ.pairs(link)}
}
