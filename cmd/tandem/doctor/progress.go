package doctor

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// progressInterval is the time between two lines about checks that still run.
const progressInterval = 2 * time.Second

// progress tells a person which checks still run.
type progress struct {
	w       io.Writer
	mu      sync.Mutex // guards running
	running []string   // names of checks
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w}
	for _, c := range checks {
		p.running = append(p.running, c.name)
	}
	return p
}

// done removes a check.
func (p *progress) done(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = slices.DeleteFunc(p.running, func(n string) bool { return n == name })
}

// start writes a line at each interval until stop is called, which waits for the last one.
func (p *progress) start() (stop func()) {
	ended := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.write()
			case <-ended:
				return
			}
		}
	})
	return func() {
		close(ended)
		writing.Wait()
	}
}

func (p *progress) write() {
	p.mu.Lock()
	running := slices.Clone(p.running)
	p.mu.Unlock()
	if len(running) > 0 {
		fmt.Fprintf(p.w, "%d of %d checks done, waiting for %s\n", len(checks)-len(running), len(checks), few(running))
	}
}
