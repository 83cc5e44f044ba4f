package config

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

// Built is a configuration at work.
type Built struct {
	Profiles    []epp.Profile
	Stages      epp.Stages
	DeciderName string      // of Stages.Decider in the configuration; "" if there is none
	Matcher     epp.Matcher // nil: nobody looks at prefix caches
	Producers   []epp.Producer
	Detector    epp.Detector // nil: nothing is refused for being less urgent
	Charge      epp.Charge
	Discovery   any        // what dataLayer.discovery names; nil if it names nothing
	Sources     []Source   // what is read about endpoints
	Instances   []Instance // all plugins, each after those it refers to

	workshop *workshop
}

// Instance is a plugin at work.
type Instance struct {
	Name, Type string
	Value      any
}

// Source is a data source with its extractors.
type Source struct {
	Source     any
	Extractors []any
}

// Of gives all instances that are a T, each after those it refers to.
func Of[T any](b *Built) (all []T) {
	for _, i := range b.Instances {
		if t, ok := i.Value.(T); ok {
			all = append(all, t)
		}
	}
	return all
}

// Close ends all instances that can be closed, the latest built first.
func (b *Built) Close() error { return b.workshop.close() }

// Build builds all plugins. If one cannot be built, those that were are closed again.
func (c *Config) Build(log *slog.Logger, keep *epp.Keep) (*Built, error) {
	w := newWorkshop(log, keep)
	b := &Built{workshop: w}
	if err := c.build(b, w); err != nil {
		if closing := w.close(); closing != nil {
			err = fmt.Errorf("%w (then %w)", err, closing)
		}
		return nil, err
	}
	return b, nil
}

func (c *Config) build(b *Built, w *workshop) (err error) {
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

// fill gives the instances their places.
func (b *Built) fill(c *Config) {
	made := b.workshop.made
	for _, p := range c.profiles {
		b.Profiles = append(b.Profiles, p.build(made))
	}
	for _, m := range Of[epp.Matcher](b) {
		b.Matcher = m
	}
	b.Producers = Of[epp.Producer](b)
	for _, charger := range Of[epp.Charger](b) {
		b.Charge = charger.Charge()
	}
	b.Detector, _ = made[c.detector].(epp.Detector)
	if c.discovery != nil {
		b.Discovery = made[c.discovery]
	}
	for _, s := range c.sources {
		one := Source{Source: made[s.plugin]}
		for _, e := range s.extractors {
			one.Extractors = append(one.Extractors, made[e])
		}
		b.Sources = append(b.Sources, one)
	}
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

// askHandler asks the profile handler for the stages, and finds out the name of the decider that it took.
func (b *Built) askHandler(c *Config) (err error) {
	for _, p := range b.workshop.order {
		handler, ok := b.workshop.made[p].(epp.Handler)
		if !ok {
			continue
		}
		if b.Stages, err = handler.Stages(c.profileNames()); err != nil {
			return fmt.Errorf("asking plugin %s for the stages: %w", p.name, err)
		}
		if b.Stages.Decider != nil {
			b.DeciderName = b.workshop.decider(p)
		}
	}
	return nil
}

// decider is the name of the decider that a plugin refers to.
func (w *workshop) decider(p *plugin) string {
	for _, to := range w.refs[p] {
		if isA[epp.Decider](w.made[to]) {
			return to.name
		}
	}
	return ""
}
