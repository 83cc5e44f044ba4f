package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/stack"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// step is one thing to measure. --series selects steps by name.
type step struct {
	name  string
	run   func(ctx context.Context, result *Result) error
	envoy bool // it needs Envoy
}

// plan lists everything that can be measured.
type plan struct {
	dir            string // folder of our executables
	apart          []int  // processors of programs under test
	all            []int  // processors of those that share them
	sidecar, other rival
	options        options
	points         growthPoints
}

// options say how series are measured.
type options struct {
	rounds int
	span   time.Duration // how long one program is loaded in one round
}

// within opens a lab, calls f with it, and closes it.
func within(open func() (*lab, error), f func(l *lab) error) (err error) {
	l, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	return f(l)
}

func (p *plan) alone() (*lab, error)    { return newLab(p.dir, p.apart) }
func (p *plan) together() (*lab, error) { return newLab(p.dir, p.all) }

// rows returns a step that measures rows, in a lab of its own.
func rows(name string, open func() (*lab, error), measure func(ctx context.Context, l *lab) ([]Row, error)) step {
	return step{name: name, run: func(ctx context.Context, result *Result) error {
		return within(open, func(l *lab) error {
			r, err := measure(ctx, l)
			result.Rows = append(result.Rows, r...)
			return err
		})
	}}
}

// row returns a step that measures one row.
func row(name string, open func() (*lab, error), measure func(ctx context.Context, l *lab) (Row, error)) step {
	return rows(name, open, func(ctx context.Context, l *lab) ([]Row, error) {
		r, err := measure(ctx, l)
		if err != nil {
			return nil, err
		}
		return []Row{r}, nil
	})
}

// throughEnvoy returns a step that needs Envoy. Without Envoy it reports a missing row, and other steps still run.
func (p *plan) throughEnvoy(table, name string, measure func(ctx context.Context, l *lab) (Row, error)) step {
	through := row(name, p.together, func(ctx context.Context, l *lab) (Row, error) {
		if _, err := envoy.Find(); err != nil {
			return missing(table, name, err), nil
		}
		return measure(ctx, l)
	})
	through.envoy = true
	return through
}

// series returns all steps but those of growth, in the order of the tables.
func (p *plan) series() (all []step) {
	for _, s := range sidecarTable() {
		all = append(all, rows("sidecar, "+s.name, p.alone, func(ctx context.Context, l *lab) ([]Row, error) {
			return measureSidecar(ctx, l, s, p.sidecar, p.options)
		}))
	}
	for _, s := range pickerTable() {
		all = append(all, row("picker, "+s.name(), p.alone, func(ctx context.Context, l *lab) (Row, error) {
			return measurePicker(ctx, l, s, p.other, p.options)
		}))
	}
	for _, s := range pathTable() {
		all = append(all, p.throughEnvoy(tablePath, s.name, func(ctx context.Context, l *lab) (Row, error) {
			return measurePath(ctx, l, s, p.options)
		}))
	}
	for _, s := range sidecarHeld() {
		all = append(all, row("memory, sidecar, "+s.String(), p.alone, func(ctx context.Context, l *lab) (Row, error) {
			return measureBuffered(ctx, l, s)
		}))
	}
	all = append(all, row("memory, picker", p.alone, func(ctx context.Context, l *lab) (Row, error) {
		return measurePickerBuffered(ctx, l, bufferSeries{400, 256 * kB})
	}))
	return append(all, p.absolute()...)
}

func (p *plan) absolute() (all []step) {
	all = append(all,
		rows("absolute, picker, decision", p.alone, func(ctx context.Context, l *lab) ([]Row, error) {
			return measureDecision(ctx, l, p.other, p.options)
		}),
		p.throughEnvoy(tableAbsolute, "absolute, picker, messages", measureUnread))
	for _, s := range []struct {
		endpoints int
		limit     float64
	}{{64, 0.05}, {512, 0.25}} {
		name := fmt.Sprintf("absolute, picker, idle, %d", s.endpoints)
		all = append(all, row(name, p.alone, func(ctx context.Context, l *lab) (Row, error) {
			return measureIdle(ctx, l, s.endpoints, s.limit, p.options)
		}))
	}
	return append(all, row("absolute, replay", p.alone, func(ctx context.Context, l *lab) (Row, error) {
		return measureReplay(ctx, l, p.options)
	}))
}

// growth returns the steps that measure curves.
func (p *plan) growth() (all []step) {
	g := &growth{p.alone, p.options, p.points}
	for _, s := range []struct {
		name    string
		measure func(ctx context.Context) ([]Curve, error)
	}{
		{"growth, picks by endpoints", g.picksByEndpoints}, {"growth, scraping by endpoints", g.scrapingByEndpoints},
		{"growth, picker by streams", g.pickerByStreams}, {"growth, sidecar by streams", g.sidecarByStreams},
	} {
		all = append(all, step{name: s.name, run: func(ctx context.Context, result *Result) error {
			c, err := s.measure(ctx)
			result.Curves = append(result.Curves, c...)
			return err
		}})
	}
	return all
}

// maxLanes is the largest number of concurrent exchanges.
const maxLanes = 1000

// lab is the environment of one series: it starts the programs, on a processor of their own, and ends them.
type lab struct {
	dir      string // folder of our executables
	scratch  string // folder for files
	cores    []int  // processors for programs under test; none = all
	running  []*stack.Process
	cleanups []func()
}

// newLab returns a lab for the executables in dir, whose programs run on the given processors.
func newLab(dir string, cores []int) (*lab, error) {
	scratch, err := os.MkdirTemp("", "tandem-bench")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the benchmark: %w", err)
	}
	return &lab{dir: dir, scratch: scratch, cores: cores}, nil
}

// later registers f to be called when the lab closes, in reverse order of registration.
func (l *lab) later(f func()) { l.cleanups = append(l.cleanups, f) }

// close ends everything that runs. Programs are killed: nothing of them is needed.
func (l *lab) close() error {
	for _, f := range slices.Backward(l.cleanups) {
		f()
	}
	var errs []error
	for _, p := range l.running {
		errs = append(errs, p.Kill())
	}
	return errors.Join(append(errs, os.RemoveAll(l.scratch))...)
}

// start runs one of our programs as a subject, measured at its address of a purpose.
func (l *lab) start(ctx context.Context, program stack.Program, purpose, metrics string) (*subject, error) {
	program.Cores = l.cores
	p, err := stack.Start(ctx, program)
	if err != nil {
		return nil, err
	}
	l.running = append(l.running, p)
	s := &subject{Process: p}
	if s.addr, err = p.Address(purpose); err != nil {
		return nil, err
	}
	if metrics != "" {
		s.metrics, err = p.Address(metrics)
	}
	return s, err
}

// baseline runs a baseline that forwards to target.
func (l *lab) baseline(ctx context.Context, baseline, target string) (*subject, error) {
	return l.start(ctx, stack.Program{Name: "baseline", Path: filepath.Join(l.dir, "tandem"),
		Args: []string{"bench", "--baseline=" + baseline, "--baseline-target=" + target}}, baseline, "")
}

// sidecar runs our sidecar in front of an engine.
func (l *lab) sidecar(ctx context.Context, engine *engine, flags ...string) (*subject, error) {
	program, err := stack.Sidecar(l.dir, engine.addr(), append(flags, "--log-level=error")...)
	if err != nil {
		return nil, err
	}
	return l.start(ctx, program, "http", "metrics")
}

// engine serves answers until the lab closes.
func (l *lab) engine(ctx context.Context, buffer int, answer answer) (*engine, error) {
	e, stop, err := startEngine(ctx, buffer, answer)
	if err == nil {
		l.later(stop)
	}
	return e, err
}

// pages serves the metrics page of an engine, at one address for all of them.
func (l *lab) pages() (addr string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("serving metrics pages: %w", err)
	}
	text := page(pageSize)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) })}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	l.later(func() { _ = server.Close(); serving.Wait() })
	return listener.Addr().String(), nil
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("asking for %s: %s", url, answer.Status)
	}
	return string(b), err
}
