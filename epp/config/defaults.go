package config

import (
	_ "embed"
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

//go:embed default.yaml
var defaultYAML []byte

// Default returns the configuration of a picker that is given none: prompts are computed on prefill endpoints if the pool has
// some, else on decode.
func Default() []byte { return slices.Clone(defaultYAML) }

//go:embed conformance.yaml
var conformanceYAML []byte

// Conformance returns the configuration of a picker that is given none and runs for conformance tests of gateways.
func Conformance() []byte { return slices.Clone(conformanceYAML) }

// Types that are added to a configuration that needs them and does not have them.
const (
	typeSingleHandler = "single-profile-handler"
	typePicker        = "max-score-picker"
	typeMetrics       = "metrics-data-source"
	typeExtractor     = "core-metrics-extractor"
	typeDetector      = "utilization-detector"
	typeModels        = "models-data-source"
	typeGPUs          = "dcgm-data-source"
	typeMatcher       = "approx-prefix-cache-producer"
)

// extractors are the types that read what the sources of a type fetch.
var extractors = map[string]string{typeMetrics: typeExtractor, typeModels: "models-data-extractor", typeGPUs: "dcgm-extractor"}

// producers are the types that other plugins read from. A configuration with such a reader and no producer gets one with
// default parameters. llm-d derives this from its plugins' declarations; the table is the result.
var producers = []struct {
	producer string
	is       func(instance any) bool // whether a plugin can take the producer's place
	readers  []string
}{
	{"predicted-latency-producer", isA[epp.Predictor],
		[]string{"latency-scorer", "slo-headroom-tier-filter", "cheapest-variant-filter", "latency-slo-admitter", "cost-pd-decider", "drift-pd-decider", "replica-sizer", "role-turner"}},
	{typeMatcher, knowsCaches,
		[]string{"prefix-cache-scorer", "prefix-cache-affinity-filter", "token-load-scorer", "prefix-based-pd-decider", "pd-profile-handler", "no-hit-lru-scorer", "burst-prefix-cache-producer",
			"predicted-latency-producer"}},
	{"inflight-load-producer", isA[epp.Charger],
		[]string{"active-request-scorer", "token-load-scorer", "prefix-cache-affinity-filter", "predicted-latency-producer"}},
}

// knowsCaches reports whether plugins that name no producer of prefix matches can read this one.
func knowsCaches(instance any) bool {
	return isA[epp.Matcher](instance) && !isA[epp.Assigner](instance)
}

// addedByName are further types that are added if a parameter names one that the file does not have.
var addedByName = []string{"mm-embeddings-cache-producer", "topology-extractor", "session-id-producer", "agent-identity"}

func isProducer(typeName string) bool {
	if slices.Contains(addedByName, typeName) {
		return true
	}
	for _, rule := range producers {
		if rule.producer == typeName {
			return true
		}
	}
	return false
}

func (r *reader) addProducers() {
	for _, rule := range producers {
		if r.first(rule.is) != nil || r.doubtful() { // the plugin that could not be built may be the producer
			continue
		}
		for _, p := range r.cfg.plugins {
			if slices.Contains(rule.readers, p.row.Type) {
				r.add(rule.producer, quote(p.name)+" reads it")
				break
			}
		}
	}
}

// first returns the first plugin, in the order of the file, for whose instance is returns true; or nil.
func (r *reader) first(is func(instance any) bool) *plugin {
	for _, p := range r.cfg.plugins {
		if instance, ok := r.trial.instance(p); ok && is(instance) {
			return p
		}
	}
	return nil
}

// firstOf returns the first plugin of a type in the order of the file, or nil.
func (r *reader) firstOf(typeName string) *plugin {
	for _, p := range r.cfg.plugins {
		if p.row.Type == typeName {
			return p
		}
	}
	return nil
}

// add adds a plugin with default parameters, named after its type unless that name is in use. It returns nil if the table
// does not have the type.
func (r *reader) add(typeName, why string) *plugin {
	t, ok := r.types[typeName]
	if !ok {
		r.problem("plugins", "%s is needed (%s), and there is no such plugin type", typeName, why)
		return nil
	}
	name := typeName
	for n := 2; r.has(name); n++ {
		name = fmt.Sprintf("%s-%d", typeName, n)
	}
	p := &plugin{name: name, row: t.row, params: t.row.New(), added: why}
	r.names[name] = named{plugin: p}
	r.cfg.plugins = append(r.cfg.plugins, p)
	r.trial.make(p)
	return p
}
