package demo

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// watchInterval is the time between two reads of the picker's endpoints.
const watchInterval = 100 * time.Millisecond

// watcher samples the load while requests run.
type watcher struct {
	stop    context.CancelFunc
	done    chan struct{} // closed when samples and err are set
	samples []report.LoadSample
	err     error
}

// watch starts to sample the load and to show the progress. The caller must call end.
func (s *stage) watch(ctx context.Context, started time.Time, line *progress) *watcher {
	ctx, stop := context.WithCancel(ctx)
	w := &watcher{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(watchInterval)
		defer tick.Stop()
		for {
			line.show()
			samples, err := s.load(ctx, started)
			if err != nil {
				if ctx.Err() == nil {
					w.err = err
				}
				return
			}
			w.samples = append(w.samples, samples...)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return w
}

// end waits for the last sample. The error is the given one or, if that is nil, the one that ended sampling.
func (w *watcher) end(err error) ([]report.LoadSample, error) {
	w.stop()
	<-w.done
	if err == nil {
		err = w.err
	}
	return w.samples, err
}

// load reads the load of the endpoints from the picker.
func (s *stage) load(ctx context.Context, started time.Time) ([]report.LoadSample, error) {
	var state struct {
		Endpoints []struct {
			Name, Role string
			Signals    epp.Readings
			InFlight   int `json:"inflight_requests"`
		}
	}
	at := inMillis(time.Since(started))
	if err := s.get(ctx, s.picker, "/debug/endpoints", &state); err != nil {
		return nil, fmt.Errorf("watching the load: %w", err)
	}
	samples := make([]report.LoadSample, len(state.Endpoints))
	for i, e := range state.Endpoints {
		known := func(s epp.Signal) float64 { // 0 where the engine does not report it
			if v := e.Signals.Of(s.String()).Value; v != nil {
				return *v
			}
			return 0
		}
		samples[i] = report.LoadSample{At: at, Endpoint: e.Name, Role: e.Role, InFlight: e.InFlight,
			Waiting: int(known(epp.Waiting)), Running: int(known(epp.Running)), KVUsage: known(epp.KVUsage)}
	}
	return samples, nil
}

// progress is a status line on a terminal, updated in place.
type progress struct {
	to    io.Writer // nil: none
	total int       // requests

	mu                            sync.Mutex
	running, local, remote, other int
}

func (p *progress) began() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running++
}

func (p *progress) ended(x *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	switch {
	case x.failure == nil && x.answer.decision.Verdict == pd.Local:
		p.local++
	case x.failure == nil && x.answer.decision.Verdict == pd.Remote:
		p.remote++
	default:
		p.other++
	}
}

// show updates the line.
func (p *progress) show() {
	p.mu.Lock()
	text := fmt.Sprintf("%d of %d answered, %d running · prefilled locally %d, remotely %d", p.local+p.remote+p.other, p.total,
		p.running, p.local, p.remote)
	if p.other > 0 {
		text += fmt.Sprintf(" · failed %d", p.other)
	}
	p.mu.Unlock()
	p.say("%s", text)
}

// say replaces the line. Write errors are ignored.
func (p *progress) say(format string, args ...any) {
	if p.to != nil {
		fmt.Fprintf(p.to, boot.EraseLine+format, args...)
	}
}

func (p *progress) clear() { p.say("") }
