package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
)

// Options are the settings of a Live configuration.
type Options struct {
	Table []epp.Row // plugin types
	Log   *slog.Logger
	Keep  *epp.Keep
	// Swap replaces the configuration in use. After it has returned without an error, the plugins of the old one are closed;
	// picks that still use them must be able to finish.
	Swap    func(c *Config, b *Built) error
	Metrics prometheus.Registerer // nil: none
}

// Live is a configuration in use that follows its file. A file that cannot be used changes nothing but State.
type Live struct {
	opt     Options
	metrics *metrics
	data    []byte // of the configuration in use
	built   *Built
	pending []byte // the current file, if it could be read but not used

	mu    sync.Mutex
	state State
}

// State describes the configuration in use, and the last change of its file.
type State struct {
	Generation int       // 1 = the first one; increases with every new one
	Since      time.Time // when it came into use
	Err        error     // why the current file cannot be used; nil if it is in use
	ErrAt      time.Time // time of Err; zero without it
}

// Detail returns the state in words, for probes.
func (s State) Detail() string {
	text := fmt.Sprintf("configuration %d in use since %s", s.Generation, s.Since.UTC().Format(time.RFC3339))
	if s.Err != nil {
		text += fmt.Sprintf("; the file changed and cannot be used (%s): %s", s.ErrAt.UTC().Format(time.RFC3339), oneLine(s.Err))
	}
	return text
}

// Start puts a configuration into use, given as the text of its file. The error is Problems if the text is wrong.
func Start(data []byte, opt Options) (*Live, error) {
	l := &Live{opt: opt}
	if err := l.use(data); err != nil {
		return nil, err
	}
	l.metrics = newMetrics(opt.Metrics)
	return l, nil
}

// State returns the state. It is safe for concurrent use.
func (l *Live) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// retryInterval is how often a file that could not be used is tried again: the cause may be outside of it, such as a
// certificate or an endpoints file that Kubernetes mounts a minute later.
const retryInterval = 5 * time.Second

// Follow puts every change of the file into use, until ctx ends.
func (l *Live) Follow(ctx context.Context, path string) {
	changes := make(chan func())
	begin := l.data
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		epp.WatchFile(ctx, path, MaxSize, begin, func(data []byte, err error) {
			select {
			case changes <- func() { l.changed(path, data, err) }:
			case <-ctx.Done():
			}
		})
	})
	again := time.NewTicker(retryInterval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case change := <-changes:
			change()
		case <-again.C:
			l.retry(path)
		}
	}
}

// Close closes the plugins. Follow must have returned.
func (l *Live) Close() error { return l.built.Close() }

func (l *Live) changed(path string, data []byte, err error) {
	l.pending = nil
	switch {
	case err != nil:
		l.tell(path, resultUnreadable, fmt.Errorf("reading the configuration: %w", err))
	case bytes.Equal(data, l.data): // it is again the configuration in use
		l.tell(path, resultOK, nil)
	default:
		l.pending = data
		l.try(path, nil)
	}
}

// retry tries again to use the file.
func (l *Live) retry(path string) {
	if l.pending != nil {
		l.try(path, l.State().Err)
	}
}

// try puts the pending file into use. told is the error of the previous try, which is not reported again.
func (l *Live) try(path string, told error) {
	err := l.use(l.pending)
	switch {
	case err == nil:
		l.pending = nil
		l.tell(path, resultOK, nil)
	case told == nil || told.Error() != err.Error():
		l.tell(path, resultInvalid, err)
	}
}

// tell reports the result of a change of the file.
func (l *Live) tell(path, result string, err error) {
	l.metrics.count(result)
	l.setErr(err)
	if err != nil {
		l.opt.Log.Error("configuration not reloaded, the last good one stays in use", "file", path, "error", err)
		return
	}
	l.opt.Log.Info("configuration reloaded", "file", path, "generation", l.State().Generation)
}

// use builds a configuration, swaps it in, and closes the old one.
func (l *Live) use(data []byte) error {
	c, err := Parse(data, l.opt.Table)
	if err != nil {
		return err
	}
	b, err := c.Build(l.opt.Log, l.opt.Keep)
	if err != nil {
		return fmt.Errorf("building the configuration: %w", err)
	}
	if err := l.opt.Swap(c, b); err != nil {
		return errors.Join(fmt.Errorf("putting the configuration to use: %w", err), b.Close())
	}
	for _, warning := range c.Warnings {
		l.opt.Log.Warn("configuration", "warning", warning)
	}
	old := l.built
	l.data, l.built = data, b
	l.mu.Lock()
	l.state = State{Generation: l.state.Generation + 1, Since: time.Now()}
	l.mu.Unlock()
	if old != nil {
		if err := old.Close(); err != nil {
			l.opt.Log.Error("plugins of the replaced configuration not closed", "error", err)
		}
	}
	return nil
}

func (l *Live) setErr(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Err, l.state.ErrAt = err, time.Time{}
	if err != nil {
		l.state.ErrAt = time.Now()
	}
}
