package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

// builder builds plugins, each after those it refers to.
type builder struct {
	log  *slog.Logger
	keep *epp.Keep
	// fail is called once for every plugin that could not be built. Plugins that refer to it are not built either; fail is not
	// called for them.
	fail  func(p *plugin, err error)
	refs  map[*plugin][]*plugin
	state map[*plugin]state
	made  map[*plugin]any
	open  []*plugin // under construction, outermost first
	order []*plugin // in the order they were made
}

// state is the progress of building a plugin.
type state uint8

const (
	stateNew state = iota
	stateOpen
	stateMade
	stateFailed // cannot be built
)

func newBuilder(log *slog.Logger, keep *epp.Keep) *builder {
	return &builder{log: log, keep: keep, refs: map[*plugin][]*plugin{}, state: map[*plugin]state{}, made: map[*plugin]any{}}
}

// exclude marks a plugin that must not be built, because a problem of it was reported.
func (b *builder) exclude(p *plugin) { b.state[p] = stateFailed }

// refer records that a plugin refers to another.
func (b *builder) refer(from, to *plugin) { b.refs[from] = append(b.refs[from], to) }

// instance returns the instance of a plugin, if it could be built.
func (b *builder) instance(p *plugin) (any, bool) {
	instance, ok := b.made[p]
	return instance, ok
}

// make builds a plugin, after those it refers to.
func (b *builder) make(p *plugin) (ok bool) {
	switch b.state[p] {
	case stateMade, stateFailed:
		return b.state[p] == stateMade
	case stateOpen:
		b.fail(p, fmt.Errorf("plugins refer to each other in a circle: %s", circle(b.open[slices.Index(b.open, p):])))
		return false
	}
	b.state[p], b.open = stateOpen, append(b.open, p)
	defer func() { b.open = b.open[:len(b.open)-1] }()
	for _, to := range b.refs[p] {
		if !b.make(to) {
			b.exclude(p)
			return false
		}
	}
	with := epp.Builder{Name: p.name, Log: b.log.With("plugin", p.name), Instance: b.instances(p), Keep: b.keep}
	instance, err := p.params.Build(&with)
	if err != nil {
		b.exclude(p)
		b.fail(p, err)
		return false
	}
	b.state[p], b.made[p] = stateMade, instance
	b.order = append(b.order, p)
	return true
}

// circle returns the names of plugins that refer to each other in a circle.
func circle(members []*plugin) (text string) {
	for _, p := range members {
		text += quote(p.name) + " → "
	}
	return text + quote(members[0].name)
}

// instances returns the look-up of the instances that a plugin refers to.
func (b *builder) instances(p *plugin) func(string) (any, bool) {
	return func(name string) (any, bool) {
		for _, to := range b.refs[p] {
			if to.name == name {
				return b.made[to], true
			}
		}
		return nil, false
	}
}

// close closes the instances, the latest first.
func (b *builder) close() error {
	var errs []error
	for _, p := range slices.Backward(b.order) {
		if c, ok := b.made[p].(io.Closer); ok {
			if err := c.Close(); err != nil {
				errs = append(errs, fmt.Errorf("closing plugin %s: %w", p.name, err))
			}
		}
	}
	b.order = nil
	return errors.Join(errs...)
}
