package replay

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/replay/engine"
)

// kindNamed is engines of a built-in table.
func kindNamed(t testing.TB, name string) Kind {
	t.Helper()
	k := Kind{Engine: engine.VLLM()}
	var err error
	if k.Table, k.Hardware, err = engine.Preset(name); err != nil {
		t.Fatal(err)
	}
	k.Engine.KVTokens = k.Hardware.KVTokens
	return k
}

// mixed is a pool of six decode engines: two on fast GPUs that cost four times as much as the four others.
func mixed(t testing.TB, configuration string) Options {
	t.Helper()
	o := options(t, 2048, "6D")
	o.Variants = []Variant{
		{Name: "l40s", Engines: []string{"decode-[0-3]"}, Cost: 1, Kind: kindNamed(t, "llama-8b-l40s")},
		{Name: "h100", Engines: []string{"decode-*"}, Cost: 4, Kind: kindNamed(t, "llama-8b-h100")},
	}
	var err error
	if o.Config, err = config.Parse([]byte(configuration), plugin.Table); err != nil {
		t.Fatal(err)
	}
	return o
}

const (
	byLoad = `
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: active-request-scorer}
- {type: cheapest-variant-filter, parameters: {costs: {l40s: 1, h100: 4}}}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer}
`
	byVariant = byLoad + "  - {pluginRef: cheapest-variant-filter}\n"
)

// twoClasses is four minutes of chats and of background requests, whose clients may wait.
func twoClasses() *Trace {
	trace := &Trace{BlockTokens: 512, Classes: []Class{
		{Name: "chat", SLO: SLO{TTFT: time.Second, TPOT: 18 * time.Millisecond}},
		{Name: "background", SLO: SLO{TTFT: 10 * time.Second, TPOT: 100 * time.Millisecond}},
	}}
	for i := range 1200 {
		trace.Requests = append(trace.Requests, Request{Due: time.Duration(i) * 200 * time.Millisecond, Input: 1500, Output: 150, Class: i % 2})
	}
	return trace
}

// TestVariants: engines of each variant are as it says, cost what it says, and the picker tells them apart by their label.
func TestVariants(t *testing.T) {
	slo := SLO{TTFT: time.Second}
	loaded, chosen := replayed(t, mixed(t, byLoad), twoClasses()), replayed(t, mixed(t, byVariant), twoClasses())
	if loaded.GPUs != 6 {
		t.Errorf("the pool has %d GPUs", loaded.GPUs)
	}
	for i, r := range []*Result{loaded, chosen} {
		requests, met := 0, 0
		for j, want := range []Share{{Variant: "l40s", Engines: 4, Cost: 4}, {Variant: "h100", Engines: 2, Cost: 8}} {
			got := r.Shares(slo)[j]
			requests, met = requests+got.Requests, met+got.Met
			if got.Variant != want.Variant || got.Engines != want.Engines || got.Cost != want.Cost {
				t.Errorf("run %d: %+v, want %+v", i, got, want)
			}
		}
		s := r.Summary(slo)
		if requests != 1200 || met != int(s.Met*1200+0.5) {
			t.Errorf("run %d: the variants served %d requests, and %d of them as wanted; the pool %v", i, requests, met, s.Met)
		}
		if cost := 12 * r.End.Hours(); s.Cost != cost || s.PerMet != 1000*cost/float64(met) {
			t.Errorf("run %d: cost %v, %v for 1,000 requests that met the SLO", i, s.Cost, s.PerMet)
		}
	}
	before, after := loaded.ByClass(slo), chosen.ByClass(slo)
	if before[0].Met > 0.8 || after[0].Met < 0.95 {
		t.Errorf("of the chats %v met their SLO without the filter, and %v with it", before[0].Met, after[0].Met)
	}
	if after[1].Met < 0.99 {
		t.Errorf("of the others %v met theirs with the filter", after[1].Met)
	}
	for i := range chosen.Records {
		if r := &chosen.Records[i]; i > 200 && r.Class == 1 && r.Decode >= "decode-4" {
			t.Fatalf("request %d, which may wait, is on %s", i, r.Decode)
		}
	}
	if shares := replayed(t, options(t, 2048, "2D"), &Trace{BlockTokens: 512, Requests: []Request{{Input: 10, Output: 1}}}).Shares(slo); shares != nil {
		t.Errorf("a pool without variants has %v", shares)
	}
}

// TestVariantSizes: of a pool with too few cheap engines, more of these are wanted, and no more of the dear ones that help.
func TestVariantSizes(t *testing.T) {
	sized := strings.Replace(byVariant, "plugins:\n", `plugins:
- type: replica-sizer
  parameters:
    attainment: 0.95
    stabilizationWindowSeconds: 60
    prefill: {maxReplicas: 0}
    variants:
    - {variant: h100, ttftMs: 1000, tpotMs: 18, variantCost: 4, maxReplicas: 20}
    - {variant: l40s, ttftMs: 10000, tpotMs: 100, variantCost: 1, maxReplicas: 20}
`, 1)
	trace := twoClasses()
	for i := range trace.Requests {
		trace.Requests[i].Due /= 2 // ten requests a second
		trace.Requests[i].Class = min(1, i%4)
	}
	o := mixed(t, sized)
	o.Variants[0].Engines = []string{"decode-0"}
	r := replayed(t, o, trace)
	cheap, dear := r.Shares(SLO{})[0], r.Shares(SLO{})[1]
	if cheap.Engines != 1 || cheap.Desired <= 1 {
		t.Errorf("%d of %d cheap engines are wanted, want more", cheap.Desired, cheap.Engines)
	}
	if dear.Engines != 5 || dear.Desired >= 5 || dear.Desired < 1 {
		t.Errorf("%d of %d dear engines are wanted, want fewer", dear.Desired, dear.Engines)
	}
}

// TestVariantSizesOfBothRoles: of a pool with prefill engines, each variant of both roles is sized, and the busy ones that are too few are to become more.
func TestVariantSizesOfBothRoles(t *testing.T) {
	o := options(t, 2048, "2P+4D")
	o.Variants = []Variant{
		{Name: "l40s", Engines: []string{"decode-0"}, Cost: 1, Kind: kindNamed(t, "llama-8b-l40s")},
		{Name: "h100", Engines: []string{"decode-*"}, Cost: 4, Kind: kindNamed(t, "llama-8b-h100")},
		{Name: "l40s-prefill", Engines: []string{"prefill-0"}, Cost: 1, Kind: kindNamed(t, "llama-8b-l40s")},
		{Name: "h100-prefill", Engines: []string{"prefill-*"}, Cost: 4, Kind: kindNamed(t, "llama-8b-h100")},
	}
	var err error
	if o.Config, err = config.Parse([]byte(bothSized), plugin.Table); err != nil {
		t.Fatal(err)
	}
	trace := twoClasses()
	for i := range trace.Requests {
		trace.Requests[i].Due /= 2 // ten requests a second
		trace.Requests[i].Class = min(1, i%4)
		trace.Requests[i].Output = 400
	}
	shares := replayed(t, o, trace).Shares(SLO{})
	for i, most := range []int{20, 2, 20, 2} { // three of four requests may wait
		if s := &shares[i]; s.Desired < 1 || s.Desired > most {
			t.Errorf("%d engines of %s are wanted, of which there are %d", s.Desired, s.Variant, s.Engines)
		}
	}
	if shares[0].Desired <= 1 {
		t.Errorf("%d cheap decode engines are wanted, want more", shares[0].Desired)
	}
}

// bothSized is a configuration that sizes variants of both roles.
const bothSized = `
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: cost-pd-decider}}}
- {type: cost-pd-decider}
- {type: decode-filter}
- {type: prefill-filter}
- {type: cheapest-variant-filter, parameters: {costs: {l40s: 1, h100: 4, l40s-prefill: 1, h100-prefill: 4}, predictions: [tpot]}}
- {type: active-request-scorer}
- {type: token-load-scorer}
- {type: max-score-picker}
- type: replica-sizer
  parameters:
    attainment: 0.95
    stabilizationWindowSeconds: 60
    variants:
    - {variant: h100, ttftMs: 1000, tpotMs: 18, variantCost: 4, minReplicas: 1, maxReplicas: 20}
    - {variant: l40s, ttftMs: 10000, tpotMs: 100, variantCost: 1, minReplicas: 1, maxReplicas: 20}
    - {variant: h100-prefill, role: prefill, ttftMs: 1000, variantCost: 4, minReplicas: 1, maxReplicas: 20}
    - {variant: l40s-prefill, role: prefill, ttftMs: 10000, variantCost: 1, minReplicas: 1, maxReplicas: 20}
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: cheapest-variant-filter}, {pluginRef: active-request-scorer}, {pluginRef: max-score-picker}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: cheapest-variant-filter}, {pluginRef: token-load-scorer}, {pluginRef: max-score-picker}]
`

// TestVariantProblems lists pools that cannot be.
func TestVariantProblems(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(o *Options)
		want   string
	}{
		{"an engine without one", func(o *Options) { o.Variants = o.Variants[:1] }, "decode-4 is in no variant"},
		{"no name", func(o *Options) { o.Variants[1].Name = "" }, "variant 2 has no name or no engines"},
		{"no engines", func(o *Options) { o.Variants[1].Engines = nil }, "variant 2 has no name or no engines"},
		{"no pattern", func(o *Options) { o.Variants[0].Engines = []string{"["} }, `variant l40s: "[" is no pattern`},
		{"no cost", func(o *Options) { o.Variants[0].Cost = 0 }, "variant l40s cannot cost 0"},
		{"another scheduler", func(o *Options) { o.Variants[1].Engine.TokenArrives = true }, "have different schedulers"},
		{"a small KV cache", func(o *Options) { o.Variants[1].Engine.KVTokens = 160 }, "does not fit into a KV cache of 160"},
		{"other blocks", func(o *Options) { o.Variants[1].Engine.BlockTokens = 48 }, "not whole blocks of 48"},
		{"the oracle", func(o *Options) { o.Oracle = true }, "the oracle knows only pools whose engines are alike"},
		{"an autoscaler", func(o *Options) {
			o.Scaling = &Scaling{Prefill: ScaledRole{Max: 1, Ready: 1}, Decode: ScaledRole{Min: 1, Max: 6, Ready: 1}}
		}, "a pool that scales has no variants"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := mixed(t, byLoad)
			tc.damage(&o)
			if err := o.Check(twoClasses()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
