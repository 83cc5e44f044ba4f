package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

// workshop builds plugins, each after those it refers to.
type workshop struct {
	log  *slog.Logger
	keep *epp.Keep
	// fail is told, once, of every plugin that could not be built. What refers to it is not built either, silently.
	fail  func(p *plugin, err error)
	refs  map[*plugin][]*plugin
	state map[*plugin]state
	made  map[*plugin]any
	open  []*plugin // under construction, outermost first
	order []*plugin // in the order they were made
}

// state is how far a plugin has got.
type state uint8

const (
	stateNew state = iota
	stateOpen
	stateMade
	stateSpoilt // cannot be built
)

func newWorkshop(log *slog.Logger, keep *epp.Keep) *workshop {
	return &workshop{log: log, keep: keep, refs: map[*plugin][]*plugin{}, state: map[*plugin]state{}, made: map[*plugin]any{}}
}

// spoil marks a plugin that shall not be built, because of something that was told already.
func (w *workshop) spoil(p *plugin) { w.state[p] = stateSpoilt }

// refer says that a plugin needs another.
func (w *workshop) refer(from, to *plugin) { w.refs[from] = append(w.refs[from], to) }

// instance is what became of a plugin, if it could be built.
func (w *workshop) instance(p *plugin) (any, bool) {
	instance, ok := w.made[p]
	return instance, ok
}

// make builds a plugin after those it refers to.
func (w *workshop) make(p *plugin) (ok bool) {
	switch w.state[p] {
	case stateMade, stateSpoilt:
		return w.state[p] == stateMade
	case stateOpen:
		w.fail(p, fmt.Errorf("plugins refer to each other in a circle: %s", circle(w.open[slices.Index(w.open, p):])))
		return false
	}
	w.state[p], w.open = stateOpen, append(w.open, p)
	defer func() { w.open = w.open[:len(w.open)-1] }()
	for _, to := range w.refs[p] {
		if !w.make(to) {
			w.spoil(p)
			return false
		}
	}
	b := epp.Builder{Name: p.name, Log: w.log.With("plugin", p.name), Instance: w.instances(p), Keep: w.keep}
	instance, err := p.params.Build(&b)
	if err != nil {
		w.spoil(p)
		w.fail(p, err)
		return false
	}
	w.state[p], w.made[p] = stateMade, instance
	w.order = append(w.order, p)
	return true
}

// circle names the plugins of a circle.
func circle(members []*plugin) (text string) {
	for _, p := range members {
		text += quote(p.name) + " → "
	}
	return text + quote(members[0].name)
}

// instances gives a plugin the instances of those it refers to.
func (w *workshop) instances(p *plugin) func(string) (any, bool) {
	return func(name string) (any, bool) {
		for _, to := range w.refs[p] {
			if to.name == name {
				return w.made[to], true
			}
		}
		return nil, false
	}
}

// close ends what was made, the latest first.
func (w *workshop) close() error {
	var errs []error
	for _, p := range slices.Backward(w.order) {
		if c, ok := w.made[p].(io.Closer); ok {
			if err := c.Close(); err != nil {
				errs = append(errs, fmt.Errorf("closing plugin %s: %w", p.name, err))
			}
		}
	}
	w.order = nil
	return errors.Join(errs...)
}
