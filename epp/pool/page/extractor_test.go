package page

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

func TestParseSpec(t *testing.T) {
	cases := []struct {
		text string
		want metricSpec
		err  string
	}{
		{text: "vllm:num_requests_waiting", want: metricSpec{family: "vllm:num_requests_waiting"}},
		{text: " a {} ", want: metricSpec{family: "a"}},
		{text: "a{x=1}", want: metricSpec{"a", []labelMatch{{"x", "1"}}}},
		{text: `a{x=1,y="2"}`, want: metricSpec{"a", []labelMatch{{"x", "1"}, {"y", "2"}}}},
		{text: `a{ x = 1 , y = "}, \"2\"" , }`, want: metricSpec{"a", []labelMatch{{"x", "1"}, {"y", `}, "2"`}}}},
		{text: "a{x=}", want: metricSpec{"a", []labelMatch{{"x", ""}}}},
		{text: "", err: "no metric name"},
		{text: "{x=1}", err: "no metric name"},
		{text: "1a", err: "no metric name"},
		{text: "a b", err: "no metric name"},
		{text: "a{", err: "closing brace"},
		{text: "a{x", err: "want name=value"},
		{text: "a{x=1", err: "no closing brace"},
		{text: `a{x="1}`, err: "no closing quote"},
		{text: `a{x="1"y=2}`, err: "want a comma"},
		{text: `a{x="1"}}`, err: "want a comma"},
		{text: "a{x!=1}", err: "the only operator"},
		{text: "a{x=~1}", err: "the only operator"},
		{text: "a{1x=1}", err: "no label name"},
		{text: "a{,}", err: "want name=value"},
	}
	for _, c := range cases {
		t.Run(c.text, func(t *testing.T) {
			got, err := parseSpec(c.text)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

// problemsOf lists what Problems reports.
func problemsOf(p interface{ Problems(epp.Report) }) (problems []string) {
	p.Problems(func(field, format string, args ...any) {
		problems = append(problems, field+": "+fmt.Sprintf(format, args...))
	})
	return problems
}

func TestExtractorProblems(t *testing.T) {
	with := func(change func(*Extractor)) Extractor {
		x := DefaultExtractor()
		change(&x)
		return x
	}
	one := func(c EngineConfig) Extractor {
		return with(func(x *Extractor) { x.EngineConfigs = []EngineConfig{c} })
	}
	cases := []struct {
		name string
		x    Extractor
		want string // the only problem has it; "" = there is none
	}{
		{"defaults", DefaultExtractor(), ""},
		{"an engine of one's own", with(func(x *Extractor) { x.DefaultEngine, x.EngineConfigs = "mine", []EngineConfig{{Name: "mine"}} }), ""},
		{"custom metrics", one(EngineConfig{Name: "mine", CustomMetrics: []CustomMetric{{"k", "m{a=b}"}}}), ""},
		{"no label key", with(func(x *Extractor) { x.EngineLabelKey = "" }), "engineLabelKey: must not be empty"},
		{"default engine unknown", with(func(x *Extractor) { x.DefaultEngine = "vlm" }), `defaultEngine: no engine is named "vlm"; there are sglang, triton`},
		{"no name", one(EngineConfig{}), "engineConfigs[0].name: must not be empty"},
		{"reserved name", one(EngineConfig{Name: "default"}), "engineConfigs[0].name: must not be default"},
		{"twice", with(func(x *Extractor) { x.EngineConfigs = []EngineConfig{{Name: "a"}, {Name: "a"}} }), `engineConfigs[1].name: "a" is there twice`},
		{"bad spec", one(EngineConfig{Name: "a", KVUsageSpec: "a{b!=c}"}), "engineConfigs[0].kvUsageSpec: the label"},
		{"bad custom metric", one(EngineConfig{Name: "a", CustomMetrics: []CustomMetric{{"k", ""}}}), "engineConfigs[0].customMetrics[0].metricSpec"},
		{"custom metric without a key", one(EngineConfig{Name: "a", CustomMetrics: []CustomMetric{{"", "m"}}}), "customMetrics[0].attributeKey"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := problemsOf(&c.x)
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if _, err := c.x.Compile(); (err != nil) != (c.want != "") {
				t.Errorf("compiling: %v", err)
			}
		})
	}
}

func TestEngineOfAnEndpoint(t *testing.T) {
	x := DefaultExtractor()
	x.EngineConfigs = []EngineConfig{{Name: "mine", RunningRequestsSpec: "mine_running"}, {Name: "sglang", RunningRequestsSpec: "patched"}}
	all, err := x.Compile()
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name   string
		labels map[string]string
		family string // the first that is read
		known  bool
	}{
		{"no label", nil, "vllm:num_requests_waiting", true},
		{"built in", map[string]string{engineLabel: "trtllm-serve"}, "trtllm_num_requests_waiting", true},
		{"older label", map[string]string{engineLabelOlder: "trtllm-serve"}, "trtllm_num_requests_waiting", true},
		{"both labels", map[string]string{engineLabel: "mine", engineLabelOlder: "trtllm-serve"}, "mine_running", true},
		{"of one's own", map[string]string{engineLabel: "mine"}, "mine_running", true},
		{"replaced as a whole", map[string]string{engineLabel: "sglang"}, "patched", true},
		{"unknown", map[string]string{engineLabel: "tgi"}, "vllm:num_requests_waiting", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			prog, known := all.Of(c.labels)
			if prog.families[0].name != c.family || known != c.known {
				t.Errorf("got %s, %v, want %s, %v", prog.families[0].name, known, c.family, c.known)
			}
		})
	}
}

func TestOverride(t *testing.T) {
	x := DefaultExtractor()
	shared := x
	if err := x.Override("my_queue", "", "my_lora{a=b}"); err != nil {
		t.Fatal(err)
	}
	if err := x.Override("", "my_usage", ""); err != nil {
		t.Fatal(err)
	}
	got := x.engine("vllm")
	if got.QueuedRequestsSpec != "my_queue" || got.KVUsageSpec != "my_usage" || got.LoRASpec != "my_lora{a=b}" ||
		got.RunningRequestsSpec != "vllm:num_requests_running" || len(x.EngineConfigs) != 1 {
		t.Errorf("got %+v", x.EngineConfigs)
	}
	if old := shared.engine("vllm"); old.QueuedRequestsSpec != "vllm:num_requests_waiting" {
		t.Errorf("the override shows in a copy: %+v", old)
	}
	before := slices.Clone(x.EngineConfigs)
	if err := x.Override("other", "a{", ""); err == nil || !reflect.DeepEqual(x.EngineConfigs, before) {
		t.Errorf("a bad spec: got %v and %+v", err, x.EngineConfigs)
	}
	x.DefaultEngine = "unknown"
	if err := x.Override("a", "", ""); err == nil {
		t.Error("overriding an engine that is not there: no error")
	}
}

func TestCacheLabelsHaveDefaults(t *testing.T) {
	c := EngineConfig{Name: "mine", CacheInfoSpec: "info"}
	got, _ := loadOf(t, c.compile(), strings.NewReader(`info{block_size="16",num_gpu_blocks="9"} 1`))
	if got.Cache != (epp.CacheInfo{BlockTokens: 16, Blocks: 9}) {
		t.Errorf("got %+v", got.Cache)
	}
}

// backlog is a signal of an engine that nothing else knows.
var backlog = epp.Declare(epp.Declaration{Name: "backlog", Pages: map[string]string{"zeta": "zeta:backlog_tokens"}})

// TestDeclaredEngine: a declaration with a new engine name makes the engine known.
func TestDeclaredEngine(t *testing.T) {
	load, ok := loadOf(t, builtinProgram(t, "zeta"), strings.NewReader("# TYPE zeta:backlog_tokens gauge\nzeta:backlog_tokens 500\n"))
	if value, known := load.Signals.Value(backlog); !ok || !known || value != 500 {
		t.Errorf("read %v, %t (%t)", value, known, ok)
	}
}
