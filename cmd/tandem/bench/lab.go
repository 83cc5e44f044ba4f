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
)

// maxLanes is the most exchanges that are under way at once.
const maxLanes = 1000

// lab is where one series is measured: it starts the programs, on a processor of their own, and ends them.
type lab struct {
	dir      string // of our executables
	scratch  string // for files
	cores    []int  // that programs under test run on; none = all
	running  []*stack.Process
	cleanups []func()
}

// newLab makes a lab with the executables of dir, whose programs run on some processors.
func newLab(dir string, cores []int) (*lab, error) {
	scratch, err := os.MkdirTemp("", "tandem-bench")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the benchmark: %w", err)
	}
	return &lab{dir: dir, scratch: scratch, cores: cores}, nil
}

// later has f called when the lab closes, before those that were told earlier.
func (l *lab) later(f func()) { l.cleanups = append(l.cleanups, f) }

// close ends all that runs. Programs are killed: nothing of them is to be kept.
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

// start runs one of our programs as a subject that is measured at the address of a purpose.
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

// floor runs a floor that passes on to target.
func (l *lab) floor(ctx context.Context, floor, target string) (*subject, error) {
	return l.start(ctx, stack.Program{Name: "floor", Path: filepath.Join(l.dir, "tandem"),
		Args: []string{"bench", "--floor=" + floor, "--floor-target=" + target}}, floor, "")
}

// sidecar runs our sidecar beside an engine.
func (l *lab) sidecar(ctx context.Context, engine *engine) (*subject, error) {
	program, err := stack.Sidecar(l.dir, engine.addr(), "--log-level=error")
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
