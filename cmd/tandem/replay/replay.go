package replay

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
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
	runs, err := s.plan(files, std.Stderr)
	if err != nil {
		return boot.Configf("%w", err)
	}
	began := time.Now()
	failed := perform(ctx, runs, s.slo(), s.Output.PerRequest != "", std.Stderr)
	fmt.Fprintf(std.Stderr, "%d of %d runs, %.1f s\n", count(runs), len(runs), time.Since(began).Seconds())
	if err := errors.Join(s.Output.write(std.Stdout, runs), s.Output.perRequest(runs)); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return failed
}

// slo returns what a request must meet.
func (s *settings) slo() replay.SLO { return replay.SLO{TTFT: s.Output.TTFT, TPOT: s.Output.TPOT} }

// run is one run, and its results.
type run struct {
	config, engine, trace string
	pool                  replay.Pool
	load                  float64
	options               replay.Options
	requests              *replay.Trace

	done    bool
	took    time.Duration
	spans   time.Duration // virtual time
	result  *replay.Result
	summary replay.Summary
}

// plan lists the runs: each configuration on each pool, engine and speed. The error says why one of them is not possible.
func (s *settings) plan(files []string, warnings io.Writer) (runs []*run, err error) {
	configs, err := s.Picker.configs()
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	from, err := s.Load.source(files, s.Picker.Seed, warnings)
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	for _, speed := range s.Load.Speeds {
		requests := from.requests(speed)
		for _, name := range s.Pool.Engines {
			m, err := s.Pool.model(name)
			if err != nil {
				return nil, fmt.Errorf("reading the engine: %w", err)
			}
			for _, pool := range s.Pool.Pools {
				for _, c := range configs {
					r := &run{config: c.name, engine: m.name, trace: from.name, pool: pool, load: load(requests), requests: requests,
						options: replay.Options{Config: c.config, Pool: pool, Engine: m.config, Table: m.table, Hardware: m.hardware,
							Link:   replay.Link{Bandwidth: s.Network.Bandwidth * 1e9, Latency: s.Network.Latency, Handshake: s.Network.Handshake},
							Scrape: s.Picker.Scrape, Stale: s.Picker.Stale, Hop: s.Network.Hop, Seed: uint64(s.Picker.Seed)}}
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
	}
	return runs, nil
}

// perform performs the runs, as many at a time as there are cores, until ctx ends. keep keeps the records of all requests.
func perform(ctx context.Context, runs []*run, slo replay.SLO, keep bool, progress io.Writer) error {
	var mu sync.Mutex // guards the variables below and progress
	next, finished := 0, 0
	var failed error
	began := time.Now()
	var working sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(runs)) {
		working.Go(func() {
			for {
				mu.Lock()
				if next == len(runs) || failed != nil {
					mu.Unlock()
					return
				}
				r := runs[next]
				next++
				mu.Unlock()
				err := r.perform(ctx, slo, keep)
				mu.Lock()
				if finished++; err != nil {
					failed = errors.Join(failed, err)
				} else if len(runs) > 1 {
					left := time.Since(began) / time.Duration(finished) * time.Duration(len(runs)-finished)
					fmt.Fprintf(progress, "%d/%d %s %v %s at %.3g/s, about %v left\n", finished, len(runs), r.config, r.pool, r.engine, r.load, left.Round(time.Second))
				}
				mu.Unlock()
			}
		})
	}
	working.Wait()
	return failed
}

func (r *run) perform(ctx context.Context, slo replay.SLO, keep bool) error {
	began := time.Now()
	result, err := replay.Run(ctx, r.options, r.requests)
	if err != nil {
		return err
	}
	r.took, r.spans, r.summary, r.done = time.Since(began), result.End, result.Summary(slo), true
	if keep {
		r.result = result
	}
	return nil
}

func count(runs []*run) (done int) {
	for _, r := range runs {
		if r.done {
			done++
		}
	}
	return done
}

// write prints the runs that are done, in their order.
func (o *outputFlags) write(w io.Writer, runs []*run) error {
	if o.JSON {
		return writeJSON(w, runs)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "config\tpool\tengine\tload/s\trequests\trefused\tTTFT p50\tp95\tp99\tITL p50\tp99\tTPOT p50\tp95\tp99\tgoodput/s\ttokens/s\tremote\thits\tKV moved\tpreempted\tGPU s\t")
	for _, r := range runs {
		if !r.done {
			continue
		}
		s := &r.summary
		fmt.Fprintf(t, "%s\t%v\t%s\t%.3g\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.3g\t%.0f\t%.1f%%\t%.1f%%\t%.1f GB\t%d\t%.0f\t\n", r.config, r.pool, r.engine,
			r.load, s.Requests, s.Refused, ms(s.TTFT.P50), ms(s.TTFT.P95), ms(s.TTFT.P99), ms(s.ITL.P50), ms(s.ITL.P99),
			ms(s.TPOT.P50), ms(s.TPOT.P95), ms(s.TPOT.P99), s.Goodput, s.Throughput, 100*s.RemoteShare, 100*s.HitRate, s.KVBytes/1e9, s.Preemptions, s.GPUSeconds)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nTimes in ms. Goodput: requests a second with TTFT ≤ %v and TPOT ≤ %v.\n", o.TTFT, o.TPOT)
	return err
}

// ms formats milliseconds with three digits.
func ms(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// shown is a run in JSON.
type shown struct {
	Config      string           `json:"config"`
	Pool        string           `json:"pool,omitempty"` // if there are several
	Engine      string           `json:"engine"`
	Trace       string           `json:"trace"`
	Load        float64          `json:"load"`
	Requests    int              `json:"requests"`
	TTFT        replay.Quantiles `json:"ttft_ms"`
	TPOT        replay.Quantiles `json:"tpot_ms"`
	Goodput     float64          `json:"goodput"`
	RemoteShare float64          `json:"remote_share"`
	GPUSeconds  float64          `json:"gpu_seconds"`
}

func writeJSON(w io.Writer, runs []*run) error {
	all := struct {
		Runs []shown `json:"runs"`
	}{Runs: []shown{}}
	several := slices.ContainsFunc(runs, func(r *run) bool { return r.pool != runs[0].pool })
	for _, r := range runs {
		pool := ""
		if several {
			pool = r.pool.String()
		}
		if s := &r.summary; r.done {
			all.Runs = append(all.Runs, shown{r.config, pool, r.engine, r.trace, r.load, s.Requests, s.TTFT, s.TPOT, s.Goodput, s.RemoteShare, s.GPUSeconds})
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(all)
}

// line is one request of one run, in JSON.
type line struct {
	Config    string  `json:"config"`
	Pool      string  `json:"pool"`
	Engine    string  `json:"engine"`
	Load      float64 `json:"load"`
	Request   int     `json:"request"` // of the trace, from 1
	Due       float64 `json:"due_ms"`
	Input     int     `json:"input_tokens"`
	Output    int     `json:"output_tokens"`
	Verdict   string  `json:"verdict"`
	Reason    string  `json:"reason"`
	Prefill   string  `json:"prefill,omitempty"`
	Decode    string  `json:"decode,omitempty"`
	Cached    int     `json:"cached_tokens"`
	Moved     int     `json:"moved_tokens"`
	Preempted int     `json:"preempted"`
	TTFT      float64 `json:"ttft_ms"`
	E2E       float64 `json:"e2e_ms"`
}

// perRequest writes the file of --per-request.
func (o *outputFlags) perRequest(runs []*run) (err error) {
	if o.PerRequest == "" {
		return nil
	}
	file, err := os.Create(o.PerRequest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriter(file)
	e := json.NewEncoder(w)
	for _, r := range runs {
		if !r.done {
			continue
		}
		for i := range r.result.Records {
			one := &r.result.Records[i]
			verdict := "local"
			switch {
			case one.Refused:
				verdict = "refused"
			case one.Remote:
				verdict = "remote"
			}
			if err := e.Encode(line{r.config, r.pool.String(), r.engine, r.load, one.Index + 1, millis(one.Due), one.Input, one.Output, verdict, string(one.Reason),
				one.Prefill, one.Decode, one.Cached, one.Moved, one.Preempted, millis(one.TTFT), millis(one.E2E)}); err != nil {
				return err
			}
		}
	}
	return w.Flush()
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }
