package charts_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// TestVariants: each variant of a role is a workload of its own, with a budget for disruptions, and an autoscaler if the role has one, that asks for a size which
// the picker computes within the same limits.
func TestVariants(t *testing.T) {
	for name, variants := range map[string]map[string]int{ // most replicas
		"variants":         {"prefill": 8, "decode-l40s": 16, "decode-h100": 8},
		"variants-of-both": {"prefill-a100": 4, "prefill-h100": 2, "decode-l40s": 3, "decode-h200": 1, "decode-spare": 0},
	} {
		t.Run(name, func(t *testing.T) {
			all := render(t, append(cases(t)[name], monitors...)...)
			workloads := slices.Concat(all.of("Deployment"), all.of("LeaderWorkerSet"))
			var found []string
			for _, w := range workloads {
				component := w.GetLabels()["app.kubernetes.io/component"]
				if component != "prefill" && component != "decode" {
					continue
				}
				variant := strings.TrimPrefix(w.GetName(), "demo-tandem-")
				found = append(found, variant)
				if label := w.GetLabels()["llm-d.ai/variant"]; label != variant && label+variant != component {
					t.Errorf("%s has the label %q", w.GetName(), label)
				}
				selected := selectorOf(t, all.named(t, "PodDisruptionBudget", "-"+variant))
				for _, other := range all.pods(t) {
					own := other.GetName() == w.GetName()+"-pod" || other.GetName() == w.GetName()+workerSuffix
					if finds := labels.SelectorFromSet(selected).Matches(labels.Set(other.GetLabels())); finds != own {
						t.Errorf("the budget of %s finds the pods of %s: %v", w.GetName(), other.GetName(), finds)
					}
				}
			}
			if slices.Sort(found); !slices.Equal(found, slices.Sorted(maps.Keys(variants))) {
				t.Errorf("workloads of %v", found)
			}
			sizes := sizerOf(t, all)
			for _, scaler := range slices.Concat(all.of("HorizontalPodAutoscaler"), all.of("ScaledObject")) {
				text, err := json.Marshal(scaler.Object["spec"])
				if err != nil {
					t.Fatal(err)
				}
				role, variant := scaler.GetLabels()["app.kubernetes.io/component"], strings.TrimPrefix(scaler.GetName(), "demo-tandem-")
				size, known := sizes[variant]
				if !known || size.most != variants[variant] || size.role != role {
					t.Errorf("the picker computes %+v for %s", size, variant)
				}
				for _, limit := range []string{fmt.Sprintf(`"minReplica%s":%d`, countOf(scaler), size.least), fmt.Sprintf(`"maxReplica%s":%d`, countOf(scaler), size.most)} {
					if !strings.Contains(string(text), limit) {
						t.Errorf("%s lacks %s: %s", scaler.GetName(), limit, text)
					}
				}
				if asks := strings.Contains(string(text), `"variant":"`+variant+`"`); asks != (variant != role) {
					t.Errorf("%s names its variant: %v: %s", scaler.GetName(), asks, text)
				}
			}
		})
	}
}

// countOf returns how the limits of an autoscaler end.
func countOf(scaler *unstructured.Unstructured) string {
	if scaler.GetKind() == "ScaledObject" {
		return "Count"
	}
	return "s"
}

// sizeLimits are what the picker is told of one size.
type sizeLimits struct {
	role        string
	least, most int
}

// sizerOf returns the sizes that the picker of a release computes, by variant, or by role where a role has none.
func sizerOf(t *testing.T, all objects) map[string]sizeLimits {
	t.Helper()
	type limits struct {
		Variant, Role string
		Min           int `yaml:"minReplicas"`
		Max           int `yaml:"maxReplicas"`
	}
	var picker struct {
		Plugins []struct {
			Type       string
			Parameters struct {
				Prefill, Decode *limits
				Variants        []limits
			}
		}
	}
	if err := yaml.Unmarshal([]byte(data(t, all.named(t, "ConfigMap", "-epp"), "config.yaml")), &picker); err != nil {
		t.Fatal(err)
	}
	sizes := map[string]sizeLimits{}
	for _, p := range picker.Plugins {
		if p.Type != "replica-sizer" {
			continue
		}
		for role, of := range map[string]*limits{"prefill": p.Parameters.Prefill, "decode": p.Parameters.Decode} {
			if of != nil {
				sizes[role] = sizeLimits{role, of.Min, of.Max}
			}
		}
		for _, v := range p.Parameters.Variants {
			sizes[v.Variant] = sizeLimits{v.Role, v.Min, v.Max}
		}
	}
	return sizes
}

// TestVariantsHaveTheirOwnValues: what a variant sets takes the place of the role's value, and what it does not set stays.
func TestVariantsHaveTheirOwnValues(t *testing.T) {
	r := render(t, cases(t)["variants-of-both"]...)
	for _, tc := range []struct {
		kind, suffix string
		has, lacks   []string
	}{
		{"Deployment", "-prefill-a100", []string{"vllm/vllm-openai:v0.32.0-cu128", "--max-num-batched-tokens=8192", "NCCL_DEBUG", `"llm-d.ai/variant-cost":"3.5"`, `"nvidia.com/gpu":2`, `"key":"a100"`}, []string{"16384"}},
		{"Deployment", "-prefill-h100", []string{`"vllm/vllm-openai:v0.32.0"`, "--max-num-batched-tokens=16384", `"llm-d.ai/variant-cost":"8"`, `"memory":"128Gi"`}, []string{"NCCL_DEBUG"}},
		{"LeaderWorkerSet", "-decode-l40s", []string{`"replicas":3`, `"team":"find"`, `"sizeLimit":"8Gi"`, `"nvidia.com/gpu":2`, `"llm-d.ai/variant":"decode-l40s"`}, []string{"search"}},
		{"LeaderWorkerSet", "-decode-h200", []string{`"replicas":1`, `"team":"search"`, "NVIDIA-H200", `"nvidia.com/gpu":4`}, []string{"8Gi"}},
		{"LeaderWorkerSet", "-decode-spare", []string{`"replicas":0`}, nil},
	} {
		text, err := json.Marshal(r.named(t, tc.kind, tc.suffix).Object)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range tc.has {
			if !strings.Contains(string(text), want) {
				t.Errorf("…%s lacks %s", tc.suffix, want)
			}
		}
		for _, unwanted := range tc.lacks {
			if strings.Contains(string(text), unwanted) {
				t.Errorf("…%s has %s", tc.suffix, unwanted)
			}
		}
	}
}
