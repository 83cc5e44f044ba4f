package config

import "github.com/tandem-serving/tandem/epp"

// readDetector reads the saturation detector. Like llm-d, it adds one by default: then requests of negative priority are
// refused while the pool is full, and others are not affected.
func (r *reader) readDetector() {
	const path, newer = "saturationDetector.pluginRef", "flowControl.saturationDetector.pluginRef"
	older := r.doc.SaturationDetector
	_, usual := r.types[typeDetector]
	switch flow := r.doc.FlowControl; {
	case flow != nil && flow.SaturationDetector != nil:
		r.cfg.detector = r.findDetector(newer, flow.SaturationDetector.PluginRef)
		if older != nil && older.PluginRef != flow.SaturationDetector.PluginRef {
			r.warn(path, "has no effect together with %s", newer)
		}
	case older != nil:
		r.cfg.detector = r.findDetector(path, older.PluginRef)
	case usual:
		r.cfg.detector = r.firstOrAdd(typeDetector, "there is no saturationDetector")
	}
}

// findDetector returns the detector with a name. Like llm-d, it adds one if the name is a detector's type. It returns nil,
// and reports why, if there is none.
func (r *reader) findDetector(path, name string) *plugin {
	if _, isType := r.types[name]; isType && !r.has(name) && r.firstOf(name) == nil {
		r.add(name, path+" names it")
	}
	to, ok := r.find(path, name)
	if !ok || to.broken() {
		return nil
	}
	if to.foreign != "" {
		r.problem(path, "%s is %s, want a saturation detector", quote(name), to.foreign)
		return nil
	}
	r.used[to.plugin] = true
	if instance, ok := r.trial.instance(to.plugin); ok && !isA[epp.Detector](instance) {
		r.problem(path, "%s is %s, want a saturation detector", quote(name), describe(to.plugin, instance))
		return nil
	}
	return to.plugin
}
