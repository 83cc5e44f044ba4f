package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
)

// Built is a configuration with its plugins built.
type Built struct {
	Profiles  []epp.Profile
	Stages    epp.Stages
	Chooser   epp.Chooser           // nil: the stages serve every request
	Choices   map[string]epp.Stages // what it chooses among
	Preparers []epp.NamedPreparer   // in the order in which they were built
	Screeners []epp.NamedScreener   // in the order in which they were built
	Admitters []epp.NamedAdmitter   // in the order in which they were built
	Admission epp.Admission         // nil: every request is picked for at once
	Matchers  []epp.Matcher         // know prefix caches; plugins that name none of them use the first
	Producers []epp.Producer
	Links     epp.LinkEstimator // nil: links are not known
	Detector  epp.Detector      // nil: no request is refused for its priority
	// Queues are the settings of the queues in which requests wait for capacity, as Detector measures it; nil: they do not wait.
	Queues    *flow.Settings
	Reads     epp.APISet // APIs whose requests are read
	Charge    epp.Charge
	Discovery any      // the plugin that dataLayer.discovery names; nil = none
	Sources   []Source // sources of endpoints' metrics
	// SyncInterval is the least time between two messages to other replicas of the picker; 0: it is not configured.
	SyncInterval time.Duration
	Instances    []Instance // all plugins, each after those it refers to

	builder *builder
}

// Instance is a plugin that was built.
type Instance struct {
	Name, Type string
	Value      any
}

// Source is a data source with its extractors.
type Source struct {
	Name       string
	Source     any
	Extractors []any
}

// Of returns all instances that are a T, each after those it refers to.
func Of[T any](b *Built) (all []T) {
	for _, i := range b.Instances {
		if t, ok := i.Value.(T); ok {
			all = append(all, t)
		}
	}
	return all
}

// Close closes all instances that can be closed, the latest built first.
func (b *Built) Close() error { return b.builder.close() }

// Build builds all plugins. If one cannot be built, it closes the others again.
func (c *Config) Build(log *slog.Logger, keep *epp.Keep) (*Built, error) {
	w := newBuilder(log, keep)
	b := &Built{builder: w}
	if err := c.build(b, w); err != nil {
		if closing := w.close(); closing != nil {
			err = fmt.Errorf("%w (then %w)", err, closing)
		}
		return nil, err
	}
	return b, nil
}

func (c *Config) build(b *Built, w *builder) (err error) {
	w.fail = func(p *plugin, cause error) { err = fmt.Errorf("building plugin %s: %w", p.name, cause) }
	byName := make(map[string]*plugin, len(c.plugins))
	for _, p := range c.plugins {
		byName[p.name] = p
	}
	for _, p := range c.plugins {
		refs := p.references()
		for _, field := range slices.Sorted(maps.Keys(refs)) {
			w.refer(p, byName[refs[field]])
		}
	}
	for _, p := range c.plugins {
		if !w.make(p) {
			return err
		}
	}
	for _, p := range w.order {
		b.Instances = append(b.Instances, Instance{p.name, p.row.Type, w.made[p]})
	}
	b.fill(c)
	return b.askHandler(c)
}

// only returns the one instance that is a T, nil if there is none: see checkSingles.
func only[T any](b *Built) (one T) {
	for _, one = range Of[T](b) {
		break
	}
	return one
}

// fill sets the fields of Built from the instances.
func (b *Built) fill(c *Config) {
	made := b.builder.made
	b.Reads = b.reads(c)
	for _, p := range c.profiles {
		b.Profiles = append(b.Profiles, p.build(made))
	}
	b.Matchers = c.matchers(made)
	b.Links, b.Admission = only[epp.LinkEstimator](b), only[epp.Admission](b)
	b.Producers = Of[epp.Producer](b)
	if charger := only[epp.Charger](b); charger != nil {
		b.Charge = charger.Charge()
	}
	for _, i := range b.Instances {
		if p, ok := i.Value.(epp.Preparer); ok {
			b.Preparers = append(b.Preparers, epp.NamedPreparer{Name: i.Name, Preparer: p})
		}
		if s, ok := i.Value.(epp.Screener); ok {
			b.Screeners = append(b.Screeners, epp.NamedScreener{Name: i.Name, Screener: s})
		}
		if a, ok := i.Value.(epp.Admitter); ok {
			b.Admitters = append(b.Admitters, epp.NamedAdmitter{Name: i.Name, Admitter: a})
		}
	}
	b.Detector, _ = made[c.detector].(epp.Detector)
	b.SyncInterval = c.syncInterval
	if c.queueing != nil {
		b.Queues = c.queueing.build(made)
	}
	if c.discovery != nil {
		b.Discovery = made[c.discovery]
	}
	for _, s := range c.sources {
		one := Source{Name: s.name, Source: made[s.plugin]}
		for _, e := range s.extractors {
			one.Extractors = append(one.Extractors, made[e])
		}
		b.Sources = append(b.Sources, one)
	}
}

// matchers returns all matchers, first the one that plugins read which name none.
func (c *Config) matchers(made map[*plugin]any) (all []epp.Matcher) {
	place := func(p *plugin) int {
		switch {
		case p.name == typeMatcher: // llm-d's default
			return 0
		case knowsCaches(made[p]):
			return 1
		}
		return 2
	}
	for _, p := range slices.SortedStableFunc(slices.Values(c.plugins), func(a, b *plugin) int { return cmp.Compare(place(a), place(b)) }) {
		if m, ok := made[p].(epp.Matcher); ok {
			all = append(all, m)
		}
	}
	return all
}

func (p *profile) build(made map[*plugin]any) epp.Profile {
	built := epp.Profile{Name: p.name}
	for _, e := range p.entries {
		instance := made[e.plugin]
		if f, ok := instance.(epp.Filter); ok {
			built.Filters = append(built.Filters, epp.NamedFilter{Name: e.name, Filter: f})
		}
		if s, ok := instance.(epp.Scorer); ok {
			built.Scorers = append(built.Scorers, epp.NamedScorer{Name: e.name, Weight: e.weight, Scorer: s})
		}
		if picker, ok := instance.(epp.Picker); ok {
			built.Picker = picker
		}
	}
	return built
}

// askHandler gets the stages from the profile handler.
func (b *Built) askHandler(c *Config) (err error) {
	for _, p := range b.builder.order {
		handler, ok := b.builder.made[p].(epp.Handler)
		if !ok {
			continue
		}
		if b.Stages, err = handler.Stages(c.profileNames()); err != nil {
			return fmt.Errorf("asking plugin %s for the stages: %w", p.name, err)
		}
		if b.Chooser, ok = handler.(epp.Chooser); ok {
			b.Choices = b.Chooser.Choices(c.profileNames())
		}
	}
	return nil
}
