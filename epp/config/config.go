package config

import (
	"reflect"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Config is a configuration that was read, completed by defaults, and checked. It does not change.
type Config struct {
	// Warnings name what works differently from what the author of the file may expect: outdated names, and features of llm-d
	// that this picker does not have.
	Warnings []string

	plugins        []*plugin // as in the file, then those that were added
	profiles       []profile
	injectDefaults bool
	sources        []source
	discovery      *plugin   // nil: none
	detector       *plugin   // nil: none
	parsers        []*plugin // that are listed; none: the usual APIs are read
	queueing       *queueing // nil: requests do not wait
	syncInterval   time.Duration
}

// Types returns the types of all plugins, without repetition: those of the file in its order, then those that were added.
func (c *Config) Types() (types []string) {
	for _, p := range c.plugins {
		if !slices.Contains(types, p.row.Type) {
			types = append(types, p.row.Type)
		}
	}
	return types
}

// NamesDiscovery reports whether the configuration names a source of endpoints.
func (c *Config) NamesDiscovery() bool { return c.discovery != nil }

func (c *Config) profileNames() []string {
	names := make([]string, len(c.profiles))
	for i, p := range c.profiles {
		names[i] = p.name
	}
	return names
}

// plugin is one plugin of a configuration.
type plugin struct {
	name   string
	row    epp.Row
	params epp.Plugin
	path   string // in the file; "" if it was added
	added  string // why it was added; "" if it is in the file
}

// references returns the plugins that the parameters name, by parameter.
func (p *plugin) references() map[string]string {
	if r, ok := p.params.(epp.Referrer); ok {
		return r.References()
	}
	return nil
}

// profile is one scheduling profile.
type profile struct {
	name    string
	entries []entry
	path    string // in the file; "" if it was added
}

// entry is one plugin of a profile.
type entry struct {
	*plugin
	weight float64
	scores bool // it has a scorer; otherwise the weight has no meaning
}

// source is a source of endpoints' metrics, with its extractors.
type source struct {
	*plugin
	extractors []*plugin
}

// Parse reads an EndpointPickerConfig, YAML or JSON, whose plugins have types of the table. The error is Problems: all of
// them at once.
//
// Parse builds each plugin and closes it again, to find out its uses. So a configuration that Parse accepts can be built,
// unless something outside of it, such as a certificate, has changed in between.
func Parse(data []byte, table []epp.Row) (*Config, error) {
	root, err := parseTree(data)
	if err == nil {
		err = otherKind(root)
	}
	if err != nil {
		return nil, err
	}
	r := newReader(table)
	defer r.trial.close() // errors of closing matter only for plugins that were in use
	r.decode(root, "", reflect.ValueOf(&r.doc).Elem())
	r.readHeader()
	r.readPlugins()
	r.readIgnored()
	r.readParsers()
	r.addProducers()
	r.readDetector()
	r.readFlowControl()
	r.readProfiles()
	r.readDataLayer()
	r.checkHandler()
	r.checkSingles()
	r.warnUnused()
	if err := r.err(); err != nil {
		return nil, err
	}
	for _, w := range r.warnings.inOrder() {
		r.cfg.Warnings = append(r.cfg.Warnings, w.String())
	}
	return r.cfg, nil
}
