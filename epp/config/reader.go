package config

import (
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp"
)

// reader turns a document into a Config, step by step.
type reader struct {
	*findings
	decoder
	doc     document
	types   map[string]typeName // all spellings of the table's types
	names   map[string]named    // plugins of the file by name
	trial   *builder            // builds the plugins to find out their uses
	used    map[*plugin]bool    // plugins that something refers to
	cfg     *Config
	ordered []string // spellings in the order of the table, for suggestions
}

// typeName is one spelling of a plugin type.
type typeName struct {
	row epp.Row
	old bool // a deprecated spelling
}

// named is what a name of the file refers to: a plugin, or a foreign one without effect. If both are missing, the plugin has
// a problem that was reported.
type named struct {
	path    string
	plugin  *plugin
	foreign role
}

func (n named) broken() bool { return n.plugin == nil && n.foreign == "" }

func newReader(table []epp.Row) *reader {
	found := newFindings()
	r := &reader{
		findings: found,
		decoder:  decoder{found},
		types:    map[string]typeName{},
		names:    map[string]named{},
		used:     map[*plugin]bool{},
		cfg:      &Config{},
		trial:    newBuilder(slog.New(slog.DiscardHandler), &epp.Keep{}),
	}
	r.trial.fail = r.failed
	for _, row := range table {
		for _, spelling := range slices.Concat([]string{row.Type}, row.Aliases) {
			r.types[spelling] = typeName{row: row}
			r.ordered = append(r.ordered, spelling)
		}
		for _, spelling := range row.Deprecated {
			r.types[spelling] = typeName{row: row, old: true}
		}
	}
	return r
}

func (r *reader) readHeader() {
	why, other := otherVersions[r.doc.APIVersion]
	switch {
	case other:
		r.warn("apiVersion", "%s %s", r.doc.APIVersion, why)
	case r.doc.APIVersion == "":
		r.problem("apiVersion", "is missing; want %s", apiVersion)
	case r.doc.APIVersion != apiVersion && r.doc.APIVersion != newVersion:
		r.problem("apiVersion", "want %s, got %s", apiVersion, quote(r.doc.APIVersion))
	}
	if r.doc.Kind == "" {
		r.problem("kind", "is missing; want %s", kind)
	}
}

// readPlugins decodes the parameters of all plugins, checks their references, and builds them.
func (r *reader) readPlugins() {
	for i, spec := range r.doc.Plugins {
		path := fmt.Sprintf("plugins[%d]", i)
		name := spec.Name
		if name == "" {
			name = spec.Type
		}
		one := r.readPlugin(spec, path, name)
		if first, twice := r.names[name]; twice {
			r.problem(join(path, "name"), "%s is the name of %s too", quote(name), first.path)
			continue
		}
		r.names[name] = one
		if one.plugin != nil {
			r.cfg.plugins = append(r.cfg.plugins, one.plugin)
		}
	}
	for _, p := range r.cfg.plugins {
		r.checkReferences(p)
	}
	for _, p := range r.cfg.plugins {
		r.trial.make(p)
	}
}

func (r *reader) readPlugin(spec pluginSpec, path, name string) named {
	at := join(path, "type")
	t, known := r.types[spec.Type]
	foreign, harmless := accepted[spec.Type]
	instead, notServed := refused[spec.Type]
	switch {
	case spec.Type == "":
		r.missing(at, "is missing")
		return named{path: path}
	case harmless:
		r.warn(at, "%s has no effect: %s", spec.Type, foreign.why)
		return named{path: path, foreign: foreign.role}
	case notServed:
		r.problem(at, "%s is a plugin of llm-d that is not served here; %s", spec.Type, instead)
		return named{path: path}
	case !known:
		r.problem(at, "there is no plugin type %s%s", quote(spec.Type), r.nearest(spec.Type, r.ordered))
		return named{path: path}
	case t.row.Flag != "":
		r.problem(at, "%s is served only by a picker that is started with %s", spec.Type, t.row.Flag)
		return named{path: path}
	case t.old:
		r.warn(at, "%s is an old name of %s", spec.Type, t.row.Type)
	}
	p := &plugin{name: name, row: t.row, params: t.row.New(), path: path}
	r.readParameters(p, &spec)
	return named{path: path, plugin: p}
}

func (r *reader) readParameters(p *plugin, spec *pluginSpec) {
	path, before := join(p.path, "parameters"), len(r.problems)+r.more
	for field, instead := range movedFields[p.row.Type] {
		r.moved[join(path, field)] = instead
	}
	switch {
	case spec.Parameters.Kind == 0:
	case spec.Parameters.Kind == yaml.MappingNode && len(fieldsOf(reflect.TypeOf(p.params).Elem(), nil)) == 0:
		r.warnParameterless(p, &spec.Parameters, path)
	default:
		r.decode(&spec.Parameters, path, reflect.ValueOf(p.params).Elem())
	}
	if c, ok := p.params.(epp.Corrector); ok {
		c.Correct(func(field, format string, args ...any) { r.warn(inside(path, field), format, args...) })
	}
	p.params.Problems(func(field, format string, args ...any) { r.problem(inside(path, field), format, args...) })
	if len(r.problems)+r.more > before {
		r.trial.exclude(p)
	}
}

// warnParameterless warns about parameters of a plugin that has none. llm-d does not read them.
func (r *reader) warnParameterless(p *plugin, given *yaml.Node, path string) {
	r.eachPair(given, path, func(_, _ *yaml.Node, at string) {
		r.warn(at, "has no effect: %s has no parameters", p.row.Type)
	})
}

// inside returns the path of a field that a plugin reports, such as engineConfigs[0].name.
func inside(path, field string) string {
	if field == "" {
		return path
	}
	return path + "." + field
}

// checkReferences looks up the plugins that a plugin's parameters name.
func (r *reader) checkReferences(p *plugin) {
	refs := p.references()
	for _, field := range slices.Sorted(maps.Keys(refs)) {
		path := inside(join(p.path, "parameters"), field)
		if name := refs[field]; isProducer(name) && !r.has(name) && r.firstOf(name) == nil {
			r.add(name, quote(p.name)+" names it")
		}
		to, _ := r.find(path, refs[field])
		if to.foreign != "" {
			r.problem(path, "%s is %s, which has no effect", quote(refs[field]), to.foreign)
		}
		if to.plugin == nil {
			r.trial.exclude(p)
			continue
		}
		r.used[to.plugin] = true
		r.trial.refer(p, to.plugin)
	}
}

// find returns the plugin that a reference names, and reports a name that does not exist. others are further possible names.
func (r *reader) find(path, name string, others ...string) (to named, ok bool) {
	if name == "" {
		r.missing(path, "names no plugin")
		return to, false
	}
	if to, ok = r.names[name]; !ok {
		r.problem(path, "no plugin is named %s%s", quote(name), r.meant(name, others))
	}
	return to, ok
}

func (r *reader) has(name string) bool { _, ok := r.names[name]; return ok }

// meant returns the end of a sentence about a name that no plugin has.
func (r *reader) meant(name string, others []string) string {
	t, isType := r.types[name]
	switch p := r.firstOf(t.row.Type); {
	case r.full(): // a search takes long if there are many names and many mistakes
		return ""
	case isType && p != nil:
		return fmt.Sprintf("; the one of that type is named %s", quote(p.name))
	case isType:
		return "; add one of that type to plugins"
	}
	return r.nearest(name, slices.Concat(slices.Sorted(maps.Keys(r.names)), others))
}

// failed reports that a plugin could not be built. If the error begins with the name of a reference, it is reported there.
func (r *reader) failed(p *plugin, err error) {
	path, text := p.path, oneLine(err)
	if field, rest, ok := strings.Cut(text, ": "); ok {
		if _, about := p.references()[field]; about {
			path, text = inside(join(path, "parameters"), field), rest
		}
	}
	r.problem(path, "%s", text)
}

// oneLine returns the text of an error in one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// warnUnused warns about plugins that have an effect only if something refers to them, if nothing does.
func (r *reader) warnUnused() {
	for _, p := range r.cfg.plugins {
		instance, ok := r.trial.instance(p)
		if r.cfg.queueing != nil && isA[epp.FlowNamer](instance) {
			continue // the queues go by it
		}
		if ok && !r.used[p] && (passive(instance) || dataLayerKind(p) != "") {
			r.warn(p.path, "%s has no effect: nothing refers to it", quote(p.name))
		}
	}
}
