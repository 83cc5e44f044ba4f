package page

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/epp"
)

const (
	engineLabel      = epp.EngineLabel
	engineLabelOlder = epp.EngineLabelOlder
)

// Extractor says which values of a metrics page are read: the parameters of llm-d's core-metrics-extractor.
type Extractor struct {
	// EngineLabelKey is the label that names an endpoint's engine. With the default key, the older label
	// inference.networking.k8s.io/engine-type names the engine of endpoints that lack it.
	EngineLabelKey string `yaml:"engineLabelKey"`
	// DefaultEngine is the engine of endpoints whose label is missing, or names an engine that the picker does not know. A page
	// that has nothing of that engine, and is SGLang's, is read as that of sglang.
	DefaultEngine string `yaml:"defaultEngine"`
	// EngineConfigs are further engines. vllm, sglang, trtllm-serve, triton-tensorrt-llm and triton are built in; an entry
	// with one of these names replaces the built-in engine.
	EngineConfigs []EngineConfig `yaml:"engineConfigs"`
}

// EngineConfig says which series of an engine's metrics page have which values. A spec is family{label=value,…}: the series
// of the family that have all these labels; quotes around values are optional. An empty spec switches its value off.
type EngineConfig struct {
	// Name is the value of the engine label.
	Name string `yaml:"name"`
	// QueuedRequestsSpec is the gauge of waiting requests.
	QueuedRequestsSpec string `yaml:"queuedRequestsSpec"`
	// DelayedRequestsSpec is the gauge of those waiting requests that wait for something other than capacity, above all for
	// their KV cache from a prefill engine. llm-d has no such key. If a page lacks it, all waiting requests count as queued, so that
	// a decode engine seems busier while it waits for KV caches.
	DelayedRequestsSpec string `yaml:"delayedRequestsSpec"`
	// RunningRequestsSpec is the gauge of running requests.
	RunningRequestsSpec string `yaml:"runningRequestsSpec"`
	// KVUsageSpec is the gauge of the used share of the KV cache, 0 to 1.
	KVUsageSpec string `yaml:"kvUsageSpec"`
	// LoRASpec is the gauge whose labels running_lora_adapters and waiting_lora_adapters are comma-separated lists, and whose
	// label max_lora is a number. Its values are times: the series with the latest counts.
	LoRASpec string `yaml:"loraSpec"`
	// CacheInfoSpec is the gauge whose labels have the size of the KV cache.
	CacheInfoSpec string `yaml:"cacheInfoSpec"`
	// CacheBlockSizeLabelName is the label of CacheInfoSpec with the tokens of a block. Default block_size.
	CacheBlockSizeLabelName string `yaml:"cacheBlockSizeLabelName"`
	// CacheNumBlocksLabelName is the label of CacheInfoSpec with the number of blocks. Default num_gpu_blocks.
	CacheNumBlocksLabelName string `yaml:"cacheNumBlocksLabelName"`
	// CacheBlockSizeSpec is the gauge of the tokens of a block, for engines without such a label.
	CacheBlockSizeSpec string `yaml:"cacheBlockSizeSpec"`
	// CacheNumBlocksSpec is the gauge of the number of blocks, for engines without such a label.
	CacheNumBlocksSpec string `yaml:"cacheNumBlocksSpec"`
	// CustomMetrics are further values, at most 100. An entry whose attributeKey is the name of a signal replaces the series of
	// that signal. The others are for endpoint-attribute-filter and endpoint-attribute-scorer; if a page has a value of several
	// engines, their sum counts.
	CustomMetrics []CustomMetric `yaml:"customMetrics"`
}

// maxCustom bounds the custom metrics of an engine.
const maxCustom = 100

// CustomMetric names a value and its series.
type CustomMetric struct {
	// AttributeKey is the name of the value.
	AttributeKey string `yaml:"attributeKey"`
	// MetricSpec is the gauge or counter that has the value.
	MetricSpec string `yaml:"metricSpec"`
}

// builtin are the engines that have more series than those of signals, which are in the signals' declarations. The names are
// those of the engine versions that llm-d documents.
var builtin = []EngineConfig{
	{
		Name:                    "vllm",
		LoRASpec:                "vllm:lora_requests_info",
		CacheInfoSpec:           "vllm:cache_config_info",
		CacheBlockSizeLabelName: "block_size",
		CacheNumBlocksLabelName: "num_gpu_blocks",
	},
	{
		Name: epp.EngineSGLang,
		// llm-d documents the labels; SGLang 0.5 has the gauges in their place.
		CacheInfoSpec:           "sglang:cache_config_info",
		CacheBlockSizeLabelName: "page_size",
		CacheNumBlocksLabelName: "num_pages",
		CacheBlockSizeSpec:      "sglang:page_size",
		CacheNumBlocksSpec:      "sglang:num_pages",
	},
	{
		Name:               "trtllm-serve",
		CacheBlockSizeSpec: "trtllm_kv_cache_tokens_per_block",
		CacheNumBlocksSpec: "trtllm_kv_cache_max_blocks",
	},
	{
		Name:               "triton-tensorrt-llm",
		CacheBlockSizeSpec: "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
		CacheNumBlocksSpec: "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
	},
	{
		Name: "triton",
	},
}

// withSignals returns a built-in engine with the series of all signals that it reports.
func (c EngineConfig) withSignals() *EngineConfig {
	for _, s := range epp.Signals() {
		d := s.Declaration()
		series := d.Pages[c.Name]
		if d.Kind != epp.PageSignal || series == "" {
			continue
		}
		if d.Parameter == "" {
			c.CustomMetrics = append(c.CustomMetrics, CustomMetric{AttributeKey: d.Name, MetricSpec: series})
			continue
		}
		_, text := c.signalSpec(s)
		*text = series
	}
	return &c
}

// DefaultExtractor returns the extractor without parameters: built-in engines, and vllm for endpoints without the label.
func DefaultExtractor() Extractor {
	return Extractor{EngineLabelKey: engineLabel, DefaultEngine: "vllm"}
}

// Problems reports parameters that are invalid.
func (x *Extractor) Problems(report epp.Report) {
	if x.EngineLabelKey == "" {
		report("engineLabelKey", "must not be empty; the default is %s", engineLabel)
	}
	seen := map[string]bool{}
	for i := range x.EngineConfigs {
		c := &x.EngineConfigs[i]
		at := fmt.Sprintf("engineConfigs[%d].", i)
		switch {
		case c.Name == "":
			report(at+"name", "must not be empty: endpoints name it by the label %s", x.EngineLabelKey)
		case c.Name == "default":
			report(at+"name", "must not be default, which is reserved; choose the engine of unlabelled endpoints by defaultEngine")
		case seen[c.Name]:
			report(at+"name", "%q is there twice", c.Name)
		}
		seen[c.Name] = true
		c.problems(func(field, format string, args ...any) { report(at+field, format, args...) })
	}
	if x.engine(x.DefaultEngine) == nil {
		report("defaultEngine", "no engine is named %q; there are %s", x.DefaultEngine, strings.Join(x.names(), ", "))
	}
}

func (c *EngineConfig) problems(report epp.Report) {
	for _, s := range c.specs() {
		if s.text == "" {
			continue
		}
		if _, err := parseSpec(s.text); err != nil {
			report(s.field, "%v", err)
		}
	}
	if n := len(c.CustomMetrics); n > maxCustom {
		report("customMetrics", "must be at most %d, got %d", maxCustom, n)
	}
	for i, m := range c.CustomMetrics {
		if m.AttributeKey == "" {
			report(fmt.Sprintf("customMetrics[%d].attributeKey", i), "must not be empty")
		}
		if _, err := parseSpec(m.MetricSpec); err != nil {
			report(fmt.Sprintf("customMetrics[%d].metricSpec", i), "%v", err)
		}
	}
}

// Override replaces specs of the default engine, as older configurations do by flags (--total-queued-requests-metric,
// --kv-cache-usage-percentage-metric, --lora-info-metric). An empty argument changes nothing. The error says which spec is
// invalid; then nothing is changed.
func (x *Extractor) Override(queued, kvUsage, lora string) error {
	old := x.engine(x.DefaultEngine)
	if old == nil {
		return fmt.Errorf("no engine is named %q", x.DefaultEngine)
	}
	c := *old
	for _, o := range []struct {
		text string
		spec *string
	}{{queued, &c.QueuedRequestsSpec}, {kvUsage, &c.KVUsageSpec}, {lora, &c.LoRASpec}} {
		if o.text == "" {
			continue
		}
		if _, err := parseSpec(o.text); err != nil {
			return fmt.Errorf("reading the metric %q: %w", o.text, err)
		}
		*o.spec = o.text
	}
	others := slices.DeleteFunc(slices.Clone(x.EngineConfigs), func(e EngineConfig) bool { return e.Name == c.Name })
	x.EngineConfigs = append(others, c)
	return nil
}

// engine returns the configuration of an engine, nil if there is none.
func (x *Extractor) engine(name string) *EngineConfig {
	named := func(c EngineConfig) bool { return c.Name == name }
	if i := slices.IndexFunc(x.EngineConfigs, named); i >= 0 {
		return &x.EngineConfigs[i]
	}
	if i := slices.IndexFunc(builtin, named); i >= 0 {
		return builtin[i].withSignals()
	}
	if slices.Contains(declaredEngines(), name) {
		return (&EngineConfig{Name: name}).withSignals()
	}
	return nil
}

// declaredEngines returns the engines for which signals are declared. They need no entry in builtin.
func declaredEngines() (names []string) {
	for _, s := range epp.Signals() {
		names = slices.AppendSeq(names, maps.Keys(s.Declaration().Pages))
	}
	return names
}

// names returns the names of all engines, each once.
func (x *Extractor) names() []string {
	names := declaredEngines()
	for _, list := range [][]EngineConfig{x.EngineConfigs, builtin} {
		for i := range list {
			names = append(names, list[i].Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Programs are the compiled engines.
type Programs struct {
	Label  string // that names the engine of an endpoint
	byName map[string]*Program
	usual  *Program
}

// Compile prepares the programs that read metrics pages. The error lists all problems.
func (x *Extractor) Compile() (*Programs, error) {
	var problems []string
	x.Problems(func(field, format string, args ...any) {
		problems = append(problems, field+": "+fmt.Sprintf(format, args...))
	})
	if len(problems) > 0 {
		return nil, fmt.Errorf("reading the metrics settings: %s", strings.Join(problems, "; "))
	}
	all := &Programs{Label: x.EngineLabelKey, byName: make(map[string]*Program)}
	for _, name := range x.names() {
		all.byName[name] = x.engine(name).compile()
	}
	all.usual = all.byName[x.DefaultEngine]
	return all, nil
}

// Of returns the program for an endpoint with these labels. ok is false if they name an engine without a configuration.
func (p *Programs) Of(labels map[string]string) (prog *Program, ok bool) {
	name := p.named(labels)
	if name == "" {
		return p.usual, true
	}
	if prog, ok = p.byName[name]; !ok {
		prog = p.usual
	}
	return prog, ok
}

// named returns the engine that labels name, "" if they name none.
func (p *Programs) named(labels map[string]string) string {
	name := labels[p.Label]
	if name == "" && p.Label == engineLabel {
		name = labels[engineLabelOlder]
	}
	return name
}

// Noticed returns the program for an endpoint whose page is one of an engine. ok is false if the labels name an engine that is
// configured: then the operator says how the page is read.
func (p *Programs) Noticed(labels map[string]string, engine string) (prog *Program, ok bool) {
	if p.byName[p.named(labels)] != nil {
		return nil, false
	}
	prog, ok = p.byName[engine]
	return prog, ok
}
