package config

import "fmt"

// readDataLayer reads where endpoints come from and what is read about them.
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
	s := source{plugin: r.findLayer(join(path, "pluginRef"), spec.PluginRef, kindSource)}
	for i, ref := range spec.Extractors {
		if e := r.findLayer(fmt.Sprintf("%s.extractors[%d].pluginRef", path, i), ref.PluginRef, kindExtractor); e != nil {
			s.extractors = append(s.extractors, e)
		}
	}
	if s.plugin != nil {
		r.cfg.sources = append(r.cfg.sources, s)
	}
}

// findLayer looks up a plugin of the data layer. It gives nil, and tells why, if there is none of this kind.
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

// addMetrics sees to it that the engines' metrics are read: by the source and the extractor of the file, else by ones that
// are added.
func (r *reader) addMetrics() {
	for _, s := range r.cfg.sources {
		if s.row.Type == typeMetrics {
			return
		}
	}
	const why = "dataLayer.injectDefaults"
	from, extractor := r.firstOf(typeMetrics), r.firstOf(typeExtractor)
	if from == nil {
		from = r.add(typeMetrics, why)
	}
	if extractor == nil {
		extractor = r.add(typeExtractor, why)
	}
	if from != nil && extractor != nil {
		r.used[from], r.used[extractor] = true, true
		r.cfg.sources = append(r.cfg.sources, source{from, []*plugin{extractor}})
	}
}
