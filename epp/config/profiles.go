package config

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

// readProfiles reads the scheduling profiles. If there are none it makes one of all filters, scorers and pickers in the order
// of the file; in llm-d, that order changes from start to start.
func (r *reader) readProfiles() {
	if len(r.doc.SchedulingProfiles) == 0 {
		p := profile{name: "default"}
		for _, one := range r.cfg.plugins {
			if instance, ok := r.trial.instance(one); ok && one.added == "" && inProfile(instance) {
				p.entries = append(p.entries, entry{one, 1, isA[epp.Scorer](instance)})
			}
		}
		r.finishProfile(p)
		return
	}
	paths := map[string]string{}
	for i, spec := range r.doc.SchedulingProfiles {
		path := fmt.Sprintf("schedulingProfiles[%d]", i)
		switch first, twice := paths[spec.Name]; {
		case spec.Name == "":
			r.missing(join(path, "name"), "is missing")
		case twice:
			r.problem(join(path, "name"), "%s is the name of %s too", quote(spec.Name), first)
		default:
			paths[spec.Name] = path
		}
		p := profile{name: spec.Name, path: path}
		for j := range spec.Plugins {
			r.readEntry(&p, &spec.Plugins[j], fmt.Sprintf("%s.plugins[%d]", path, j))
		}
		r.finishProfile(p)
	}
}

const notForProfiles = "%s is %s; a profile has filters, scorers and a picker"

func (r *reader) readEntry(p *profile, spec *entrySpec, path string) {
	weight := 1.0
	if spec.Weight != nil {
		weight = *spec.Weight
	}
	if !(weight >= 0) || math.IsInf(weight, 1) {
		r.problem(join(path, "weight"), "must be a number from 0, got %v", weight)
	}
	at := join(path, "pluginRef")
	to, ok := r.find(at, spec.PluginRef)
	switch {
	case !ok:
		return
	case to.foreign != "":
		r.problem(at, notForProfiles, quote(spec.PluginRef), to.foreign)
		return
	case to.plugin == nil:
		return
	}
	r.used[to.plugin] = true
	instance, ok := r.trial.instance(to.plugin)
	if ok && !inProfile(instance) {
		r.problem(at, notForProfiles, quote(spec.PluginRef), describe(to.plugin, instance))
		return
	}
	scores := isA[epp.Scorer](instance)
	if ok && !scores && spec.Weight != nil {
		r.warn(join(path, "weight"), "has no effect: %s is %s", quote(spec.PluginRef), describe(to.plugin, instance))
	}
	p.entries = append(p.entries, entry{to.plugin, weight, scores})
}

// finishProfile checks that a profile has one picker, or adds one: the first of the file, or a new one.
func (r *reader) finishProfile(p profile) {
	var picker *plugin
	doubtful := false // a plugin that could not be built may be the picker
	for i, e := range p.entries {
		r.used[e.plugin] = true
		switch instance, ok := r.trial.instance(e.plugin); {
		case !ok:
			doubtful = true
		case !isA[epp.Picker](instance):
		case picker == nil:
			picker = e.plugin
		default:
			r.problem(r.pathOfEntry(p, i), "%s is a second picker; %s is one already", quote(e.name), quote(picker.name))
		}
	}
	if picker == nil && !doubtful {
		if picker = r.first(isA[epp.Picker]); picker == nil {
			picker = r.add(typePicker, "a profile has no picker")
		}
		if picker != nil {
			r.used[picker] = true
			p.entries = append(p.entries, entry{plugin: picker})
		}
	}
	r.cfg.profiles = append(r.cfg.profiles, p)
}

// pathOfEntry returns the path of an entry of a profile in the file.
func (r *reader) pathOfEntry(p profile, i int) string {
	if p.path == "" {
		return p.entries[i].path
	}
	return fmt.Sprintf("%s.plugins[%d].pluginRef", p.path, i)
}

// checkHandler checks that there is one profile handler, and that it accepts the profiles.
func (r *reader) checkHandler() {
	handlers := instancesOf[epp.Handler](r)
	if len(handlers) == 0 {
		r.addHandler()
		return
	}
	for _, h := range handlers[1:] {
		r.problem(h.path, "%s is a second profile handler; %s is one already", quote(h.name), quote(handlers[0].name))
	}
	names := r.cfg.profileNames()
	if slices.Contains(names, "") { // it has been reported
		return
	}
	instance, _ := r.trial.instance(handlers[0])
	stages, err := instance.(epp.Handler).Stages(names)
	if err != nil {
		r.problem(handlers[0].path, "%s", oneLine(err))
		return
	}
	if isA[epp.Chooser](instance) {
		return
	}
	for _, p := range r.cfg.profiles {
		if !slices.ContainsFunc(stages, func(row epp.StageRow) bool { return row.Profile == p.name }) {
			r.warn(p.path, "%s has no effect: %s has no decider for it", quote(p.name), quote(handlers[0].name))
		}
	}
}

// addHandler adds the profile handler for a single profile. Several profiles need a handler in the file.
func (r *reader) addHandler() {
	switch profiles := len(r.cfg.profiles); {
	case r.doubtful(): // the plugin that could not be built may be the handler
	case profiles > 1:
		r.problem("schedulingProfiles",
			"%d profiles, and no handler says when each of them runs; add a disagg-profile-handler to plugins", profiles)
	default:
		r.add(typeSingleHandler, "there is one profile")
	}
}

// doubtful reports whether some plugins could not be built: the plugin that a caller looks for may be one of them.
func (r *reader) doubtful() bool {
	for _, one := range r.names {
		if _, ok := r.trial.instance(one.plugin); one.broken() || one.plugin != nil && !ok {
			return true
		}
	}
	return false
}

// checkSingles checks that there is at most one plugin of each kind that allows only one.
func (r *reader) checkSingles() {
	checkSingle[epp.Charger](r)
	checkSingle[epp.Admission](r)
	checkSingle[epp.LinkEstimator](r)
}

func checkSingle[T any](r *reader) {
	all := instancesOf[T](r)
	for i, p := range all {
		if i > 0 {
			instance, _ := r.trial.instance(p)
			r.problem(p.path, "%s is %s; there can be one, and %s is one already",
				quote(p.name), describe(p, instance), quote(all[0].name))
		}
	}
}

// instancesOf returns the plugins whose instance is a T.
func instancesOf[T any](r *reader) (all []*plugin) {
	for _, p := range r.cfg.plugins {
		if instance, ok := r.trial.instance(p); ok && isA[T](instance) {
			all = append(all, p)
		}
	}
	return all
}
