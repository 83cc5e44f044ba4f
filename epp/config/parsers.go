package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// readParsers reads which parsers are listed.
func (r *reader) readParsers() {
	handler := r.doc.RequestHandler
	for i, listed := range handler.Parsers {
		r.readParser(fmt.Sprintf("requestHandler.parsers[%d].pluginRef", i), listed.PluginRef)
	}
	if handler.Parser != nil {
		r.readParser("requestHandler.parser.pluginRef", handler.Parser.PluginRef)
	}
	if r.doc.Parser != nil {
		r.readParser("parser.pluginRef", r.doc.Parser.PluginRef)
	}
}

// readParser reads a reference to a parser. Like llm-d, it adds one if the name is a parser's type.
func (r *reader) readParser(path, name string) {
	if _, isType := r.types[name]; isType && !r.has(name) && r.firstOf(name) == nil {
		r.add(name, path+" names it")
	}
	to, there := r.names[name]
	p := to.plugin
	switch {
	case !there:
		_, _ = r.find(path, name, slices.DeleteFunc(slices.Clone(r.ordered), func(t string) bool { return !strings.HasSuffix(t, "-parser") })...)
		return
	case p == nil: // without effect, or broken
		r.checkForeign(path, name, roleParser)
		return
	}
	r.used[p] = true
	if instance, ok := r.trial.instance(p); ok && !isA[epp.Parser](instance) {
		r.problem(path, "%s is %s, want a request parser", quote(name), describe(p, instance))
		return
	}
	if !slices.Contains(r.cfg.parsers, p) {
		r.cfg.parsers = append(r.cfg.parsers, p)
	}
}

// reads returns the APIs that the listed parsers are for.
func (b *Built) reads(c *Config) epp.APISet {
	if len(c.parsers) == 0 {
		return 0
	}
	var all []pd.API
	for _, p := range c.parsers {
		all = append(all, b.builder.made[p].(epp.Parser).Parses()...)
	}
	return epp.NewAPISet(all...)
}
