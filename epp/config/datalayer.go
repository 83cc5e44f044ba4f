package config

import (
	"fmt"
	"slices"
)

// readDataLayer reads the sources of endpoints and of their metrics.
func (r *reader) readDataLayer() {
	layer := &r.doc.DataLayer
	r.cfg.injectDefaults = layer.InjectDefaults == nil || *layer.InjectDefaults
	r.readDiscovery(&layer.Discovery)
	for i := range layer.Sources {
		r.readSource(&layer.Sources[i], fmt.Sprintf("dataLayer.sources[%d]", i))
	}
	if r.cfg.injectDefaults {
		r.addMetrics()
	}
	if i := r.sourceOf(typeMetrics); i < 0 || len(r.cfg.sources[i].extractors) == 0 {
		r.warn("dataLayer.injectDefaults", "no source with an extractor: no metrics are read, the engines' loads are unknown")
	}
}

func (r *reader) readDiscovery(spec *discoverySpec) {
	const path = "dataLayer.discovery"
	switch {
	case spec.Endpoints == nil && spec.PluginRef != "":
		r.cfg.discovery = r.findLayer(path+".pluginRef", spec.PluginRef, kindDiscovery)
	case spec.Endpoints == nil:
	case spec.PluginRef != "" && spec.PluginRef != spec.Endpoints.PluginRef:
		r.problem(path, "pluginRef and endpoints.pluginRef name different plugins")
	default:
		r.cfg.discovery = r.findLayer(path+".endpoints.pluginRef", spec.Endpoints.PluginRef, kindDiscovery)
	}
}

func (r *reader) readSource(spec *sourceSpec, path string) {
	at := join(path, "pluginRef")
	if r.names[spec.PluginRef].foreign == roleNotice {
		r.checkNotified(spec, path)
		return
	}
	s := source{plugin: r.findLayer(at, spec.PluginRef, kindSource)}
	for i, ref := range spec.Extractors {
		at := fmt.Sprintf("%s.extractors[%d].pluginRef", path, i)
		switch e := r.findLayer(at, ref.PluginRef, kindExtractor); {
		case e == nil:
		case len(s.extractors) > 0:
			r.problem(at, "%s is a second extractor; %s is one already", quote(e.name), quote(s.extractors[0].name))
		case s.plugin != nil && e.row.Type != extractors[s.row.Type]:
			r.problem(at, "%s is of type %s, and a %s needs a %s", quote(e.name), e.row.Type, s.row.Type, extractors[s.row.Type])
		default:
			s.extractors = append(s.extractors, e)
		}
	}
	if s.plugin == nil {
		return
	}
	if i := r.sourceOf(s.row.Type); i >= 0 {
		r.problem(at, "%s is a second %s; %s is one already", quote(s.name), s.row.Type, quote(r.cfg.sources[i].name))
		return
	}
	r.cfg.sources = append(r.cfg.sources, s)
}

// sourceOf returns the index of the source of a type, -1 if there is none.
func (r *reader) sourceOf(typeName string) int {
	return slices.IndexFunc(r.cfg.sources, func(s source) bool { return s.row.Type == typeName })
}

// checkNotified checks the extractors of a source of notifications: in llm-d, any plugin can be one. They are told of changes
// without it.
func (r *reader) checkNotified(spec *sourceSpec, path string) {
	for i, ref := range spec.Extractors {
		if to, ok := r.find(fmt.Sprintf("%s.extractors[%d].pluginRef", path, i), ref.PluginRef); ok && to.plugin != nil {
			r.used[to.plugin] = true
		}
	}
}

// findLayer looks up a plugin of the data layer. It returns nil, and reports why, if there is none of this kind.
func (r *reader) findLayer(path, name string, kind layerKind) *plugin {
	to, ok := r.find(path, name)
	switch {
	case !ok:
	case to.foreign != "":
		r.problem(path, "%s is %s, want %s", quote(name), to.foreign, kind.article())
	case to.plugin == nil:
	case dataLayerKind(to.plugin) != kind:
		r.used[to.plugin] = true
		instance, _ := r.trial.instance(to.plugin)
		r.problem(path, "%s is %s, want %s", quote(name), describe(to.plugin, instance), kind.article())
	default:
		r.used[to.plugin] = true
		return to.plugin
	}
	return nil
}

// addMetrics makes sure that the engines' metrics are read: by the source and the extractor of the file, or by added ones. Other
// sources get their extractor, too.
func (r *reader) addMetrics() {
	if r.sourceOf(typeMetrics) < 0 {
		if from := r.firstOrAdd(typeMetrics, "dataLayer.injectDefaults"); from != nil {
			r.cfg.sources = append(r.cfg.sources, source{plugin: from})
		}
	}
	for i := range r.cfg.sources {
		if s := &r.cfg.sources[i]; len(s.extractors) == 0 {
			if extractor := r.firstOrAdd(extractors[s.row.Type], "dataLayer.injectDefaults"); extractor != nil {
				s.extractors = []*plugin{extractor}
			}
		}
	}
}

// firstOrAdd returns the first plugin of a type in the order of the file, or adds one for the reason why.
func (r *reader) firstOrAdd(typeName, why string) *plugin {
	p := r.firstOf(typeName)
	if p == nil {
		p = r.add(typeName, why)
	}
	if p != nil {
		r.used[p] = true
	}
	return p
}
