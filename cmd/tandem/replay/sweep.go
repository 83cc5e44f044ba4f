package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/replay"
)

// perform performs the runs, as many at a time as there are cores, until one fails or ctx ends. keep keeps the records of all requests.
func perform(ctx context.Context, runs []*run, slo replay.SLO, keep bool, to io.Writer) error {
	p := newProgress(to, runs)
	defer p.end()
	return inParallel(len(runs), func(i int) error {
		err := runs[i].perform(ctx, slo, keep)
		if err == nil {
			p.done(runs[i])
		}
		return err
	})
}

// inParallel does n things, as many at a time as there are cores, until one fails.
func inParallel(n int, do func(i int) error) error {
	var mu sync.Mutex // guards the variables below
	next := 0
	var failed error
	var working sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		working.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for next < n && failed == nil {
				i := next
				next++
				mu.Unlock()
				err := do(i)
				mu.Lock()
				failed = errors.Join(failed, err)
			}
		})
	}
	working.Wait()
	return failed
}

func (r *run) perform(ctx context.Context, slo replay.SLO, keep bool) error {
	result, err := r.replayed(ctx)
	if err != nil {
		return err
	}
	r.summary, r.classes, r.timeline, r.story, r.done = result.Summary(slo), result.ByClass(slo), result.Timeline, result.Story, true
	r.refusals, r.sizes, r.shares = result.Refusals(), result.Sizes, result.Shares(slo)
	if r.requests.Closed() {
		r.load = result.Load()
	}
	var ttft, tpot []time.Duration
	for i := range result.Records {
		if one := &result.Records[i]; !one.Refused {
			ttft = append(ttft, one.TTFT)
			if d, ok := one.TPOT(); ok {
				tpot = append(tpot, d)
			}
		}
	}
	r.ttft, r.tpot = percentiles(ttft), percentiles(tpot)
	if keep {
		r.result = result
	}
	return nil
}

// replayed replays the requests: once, or while a search has other sizes to try.
func (r *run) replayed(ctx context.Context) (*replay.Result, error) {
	if r.search != nil {
		return r.search.perform(ctx, r)
	}
	return replay.Run(ctx, r.options, r.requests)
}

// percentiles returns the least value, and 200 percentiles in steps of half a percent, in ms; nil without values. It sorts all.
func percentiles(all []time.Duration) (at []float64) {
	const steps = 200
	slices.Sort(all)
	for i := 0; i <= steps && len(all) > 0; i++ {
		at = append(at, millis(all[max(0, (i*len(all)+steps-1)/steps-1)]))
	}
	return at
}

func finished(runs []*run) (done []*run) {
	for _, r := range runs {
		if r.done {
			done = append(done, r)
		}
	}
	return done
}

// progress tells a person how far the runs are: on a terminal by a line that is updated in place, otherwise by a line for each run.
type progress struct {
	to       io.Writer
	terminal bool
	runs     []*run
	requests int // of all runs
	began    time.Time
	stop     chan struct{}
	stopped  sync.WaitGroup

	mu       sync.Mutex // guards to and finished
	finished int
}

// refresh is the time between two updates of the line.
const refresh = 200 * time.Millisecond

func newProgress(to io.Writer, runs []*run) *progress {
	p := &progress{to: to, terminal: boot.IsTerminal(to), runs: runs, began: time.Now(), stop: make(chan struct{})}
	for _, r := range runs {
		p.requests += len(r.requests.Requests)
	}
	if p.terminal {
		p.stopped.Go(p.update)
	}
	return p
}

func (p *progress) update() {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			p.mu.Lock()
			fmt.Fprintf(p.to, "%s%d/%d runs, %s", boot.EraseLine, p.finished, len(p.runs), p.left())
			p.mu.Unlock()
		}
	}
}

// done reports a run that is done.
func (p *progress) done(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished++; !p.terminal && len(p.runs) > 1 {
		fmt.Fprintf(p.to, "%d/%d %s, %s\n", p.finished, len(p.runs), r.name(), p.left())
	}
}

// left says how much is done, and how long the rest takes if it goes on like this.
func (p *progress) left() string {
	ended := 0
	for _, r := range p.runs {
		ended += int(r.ended.Load())
	}
	share, took := float64(ended)/float64(p.requests), time.Since(p.began)
	said := fmt.Sprintf("%.0f%% of the requests", 100*share)
	if ended > 0 {
		said += fmt.Sprintf(", about %v left", time.Duration(float64(took)*(1-share)/share).Round(time.Second))
	}
	return said
}

// end erases the line.
func (p *progress) end() {
	close(p.stop)
	p.stopped.Wait()
	if p.terminal {
		fmt.Fprint(p.to, boot.EraseLine)
	}
}

// name describes a run in a line of progress.
func (r *run) name() string {
	parts := []string{r.config, r.pool.String(), r.engine}
	if r.scaler != "" {
		parts = append([]string{r.scaler}, parts...)
	}
	if r.threshold != nil {
		parts = slices.Insert(parts, 1, fmt.Sprintf("threshold %d", *r.threshold))
	}
	if r.requests.Concurrency > 0 {
		parts = append(parts, fmt.Sprintf("%d at a time", r.requests.Concurrency))
	}
	return strings.Join(parts, " ") + fmt.Sprintf(" at %.3g/s", r.load)
}
