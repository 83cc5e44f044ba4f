package plugin

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
)

// variantPod is a pod of a variant with predictions, in ms: medians and 90th percentiles.
type variantPod struct {
	labels                         map[string]string
	ttft50, ttft90, tpot50, tpot90 float64
}

// variant makes a pod of a variant whose medians are half of its 90th percentiles.
func variant(name string, ttft90, tpot90 float64) variantPod {
	return variantPod{map[string]string{epp.VariantLabel: name}, ttft90 / 2, ttft90, tpot90 / 2, tpot90}
}

// priced makes one that has a label with its cost.
func priced(cost string, ttft90, tpot90 float64) variantPod {
	p := variant("", ttft90, tpot90)
	p.labels = map[string]string{"price": cost}
	return p
}

// costing makes one that has the label with its cost which a VariantAutoscaling object gives.
func costing(cost string, ttft90, tpot90 float64) variantPod {
	p := variant("", ttft90, tpot90)
	p.labels = map[string]string{epp.VariantCostLabel: cost}
	return p
}

// variantPods makes candidates named a, b, c and so on. One without predictions has none.
func variantPods(pods []variantPod) []epp.Candidate {
	c := make([]epp.Candidate, len(pods))
	for i, p := range pods {
		c[i] = epp.Candidate{Endpoint: epp.NewEndpoint("", string(rune('a'+i)), netip.AddrPort{}, "", p.labels), Load: &epp.Load{}}
		if p.ttft90 > 0 {
			c[i].Compute(latency.TTFT50, p.ttft50/1000)
			c[i].Compute(latency.TTFT90, p.ttft90/1000)
			c[i].Compute(latency.TPOT50, p.tpot50/1000)
			c[i].Compute(latency.TPOT90, p.tpot90/1000)
		}
	}
	return c
}

// gpus are costs of three variants.
const gpus = "costs: {l40s: 1, a100: 2, h100: 4}"

func TestCheapestVariant(t *testing.T) {
	slow, middle, fast := variant("l40s", 3000, 80), variant("a100", 1000, 40), variant("h100", 300, 10)
	for _, tc := range []struct {
		name, parameters string
		ttft, tpot       string // wanted by the client; "": it says nothing
		stage            epp.Stage
		pods             []variantPod
		kept             string
	}{
		{"the cheapest meets it", gpus, "5000", "100", epp.StageDecode, []variantPod{fast, middle, slow}, "c"},
		{"the cheapest does not", gpus, "2000", "100", epp.StageDecode, []variantPod{fast, middle, slow}, "b"},
		{"only the dearest does", gpus, "400", "100", epp.StageDecode, []variantPod{fast, middle, slow}, "a"},
		{"by the time of further tokens", gpus, "5000", "20", epp.StageDecode, []variantPod{fast, middle, slow}, "a"},
		{"none does", gpus, "100", "5", epp.StageDecode, []variantPod{fast, middle, slow}, "abc"},
		{"the client says nothing", gpus, "", "", epp.StageDecode, []variantPod{fast, middle, slow}, "b"},
		{"the client says nothing, and may wait", "{" + gpus + ", ttftMs: 5000, tpotMs: 100}", "", "", epp.StageDecode, []variantPod{fast, middle, slow}, "c"},
		{"just so", gpus, "3000", "80", epp.StageDecode, []variantPod{fast, middle, slow}, "c"},
		{"just so, with headroom", "{" + gpus + ", headroom: 0.1}", "3000", "80", epp.StageDecode, []variantPod{fast, middle, slow}, "b"},
		{"by medians", "{" + gpus + ", quantile: 0.5}", "1500", "40", epp.StageDecode, []variantPod{fast, middle, slow}, "c"},
		{"one pod of the cheapest is idle", gpus, "2000", "100", epp.StageDecode, []variantPod{fast, slow, variant("l40s", 900, 60), slow}, "c"},
		{"several of one variant", gpus, "2000", "100", epp.StageDecode, []variantPod{middle, variant("a100", 2500, 40), middle, fast}, "ac"},
		{"a prefill stage", gpus, "5000", "20", epp.StagePrefill, []variantPod{fast, middle, slow}, "c"},
		{"only further tokens count", "{" + gpus + ", predictions: [tpot]}", "100", "100", epp.StageDecode, []variantPod{fast, middle, slow}, "c"},
		{"only further tokens count, in a prefill stage", "{" + gpus + ", predictions: [tpot]}", "1000", "100", epp.StagePrefill, []variantPod{fast, middle, slow}, "b"},
		{"only the first token counts", "{" + gpus + ", predictions: [ttft]}", "5000", "5", epp.StageDecode, []variantPod{fast, middle, slow}, "c"},
		{"a pod without a variant counts as the dearest", gpus, "2000", "50", epp.StageDecode, []variantPod{variant("", 100, 10), middle}, "b"},
		{"a pod without a variant, as the dearest", gpus, "400", "50", epp.StageDecode, []variantPod{variant("other", 100, 10), middle, fast}, "ac"},
		{"variants of one price", "costs: {l40s: 1, a100: 1}", "5000", "100", epp.StageDecode, []variantPod{slow, middle}, "ab"},
		{"another label", "{" + gpus + ", variantLabel: gpu}", "5000", "100", epp.StageDecode,
			[]variantPod{fast, {map[string]string{"gpu": "l40s"}, 1, 1, 1, 1}}, "b"},
		{"prices of labels", "costLabel: price", "2000", "100", epp.StageDecode, []variantPod{priced("4", 300, 10), priced("0.5", 3000, 80), priced("2", 1000, 40)}, "c"},
		{"no price, or none that can be", "costLabel: price", "2000", "100", epp.StageDecode, []variantPod{priced("dear", 1, 1), priced("-1", 1, 1), variant("", 1, 1), priced("2", 2500, 40), priced("4", 300, 10)}, "abce"},
		{"costs of VariantAutoscaling objects", "", "2000", "100", epp.StageDecode, []variantPod{costing("4", 300, 10), costing("0.5", 3000, 80), costing("2", 1000, 40)}, "c"},
		{"costs, not labels", gpus, "2000", "100", epp.StageDecode, []variantPod{costing("4", 300, 10), middle}, "b"},
		{"none has a price", "costLabel: price", "2000", "100", epp.StageDecode, []variantPod{variant("", 300, 10), variant("", 3000, 10)}, "a"},
		{"nothing is predicted", gpus, "2000", "100", epp.StageDecode, []variantPod{variant("l40s", 0, 0), variant("h100", 0, 0)}, "ab"},
		{"nothing is predicted of the cheapest", gpus, "2000", "100", epp.StageDecode, []variantPod{variant("l40s", 0, 0), fast}, "b"},
		{"no pods", gpus, "2000", "100", epp.StageDecode, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, r := build[epp.Filter](t, "cheapest-variant-filter", tc.parameters), wants(source(1), tc.ttft, tc.tpot)
			r.Stage = tc.stage
			left := f.Filter(r, variantPods(tc.pods))
			if kept := names(left); kept != tc.kept {
				t.Errorf("kept %q, want %q", kept, tc.kept)
			}
			if again := names(f.Filter(r, left)); again != tc.kept {
				t.Errorf("then kept %q", again)
			}
		})
	}
}

// TestCheapestVariantUnreachable: a cheap pod that cannot be reached does not take requests from dearer ones.
func TestCheapestVariantUnreachable(t *testing.T) {
	f, r := build[epp.Explainer](t, "cheapest-variant-filter", gpus), wants(source(1), "2000", "50")
	all := variantPods([]variantPod{variant("l40s", 100, 10), variant("h100", 100, 10)})
	all[0].Load.Unreachable = true
	left := f.Filter(r, slices.Clone(all))
	if names(left) != "b" {
		t.Fatalf("kept %q, want the one that can be reached", names(left))
	}
	if got, want := f.Explain(r, all, left, &all[0]), `variant "l40s" at 1: it cannot be reached`; got != want {
		t.Errorf("explained %q, want %q", got, want)
	}
}

// TestCheapestVariantExplains: explanations have the variant, its cost, what is predicted and what is wanted.
func TestCheapestVariantExplains(t *testing.T) {
	for _, tc := range []struct {
		name, parameters string
		pods             []variantPod // the first one is dropped
		want             string
	}{
		{"dearer", gpus, []variantPod{variant("h100", 300, 10), variant("a100", 1000, 40)},
			`variant "h100" at 4; variant "a100" at 2 has a pod that is predicted to do what is wanted`},
		{"too late", gpus, []variantPod{variant("l40s", 3000, 40), variant("a100", 1000, 40)},
			`variant "l40s" at 1: first token after 3s (p90), at most 2s is wanted`},
		{"too slow, by medians", "{" + gpus + ", quantile: 0.5}", []variantPod{variant("l40s", 3000, 123.4), variant("a100", 1000, 40)},
			`variant "l40s" at 1: 61.7ms for each further token (p50), at most 50ms is wanted`},
		{"both, with headroom", "{" + gpus + ", headroom: 0.1}", []variantPod{variant("a100", 3000, 80), variant("a100", 1000, 40)},
			`variant "a100" at 2: first token after 3s (p90), at most 1.8s is wanted, and 80ms for each further token (p90), at most 45ms is wanted`},
		{"not known", gpus, []variantPod{variant("b200", 100, 5), variant("a100", 1000, 40)},
			`variant "b200" at the highest cost, 4; variant "a100" at 2 has a pod that is predicted to do what is wanted`},
		{"no variant", gpus, []variantPod{variant("", 100, 5), variant("a100", 1000, 40)},
			`no variant at the highest cost, 4; variant "a100" at 2 has a pod that is predicted to do what is wanted`},
		{"not predicted", gpus, []variantPod{variant("l40s", 0, 0), variant("a100", 1000, 40)},
			`variant "l40s" at 1: nothing is predicted of it`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, r := build[epp.Explainer](t, "cheapest-variant-filter", tc.parameters), wants(source(1), "2000", "50")
			all := variantPods(tc.pods)
			left := f.Filter(r, variantPods(tc.pods))
			if names(left) != "b" {
				t.Fatalf("kept %q", names(left))
			}
			if got := f.Explain(r, all, left, &all[0]); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

// BenchmarkCheapestVariant chooses among 100 pods of three variants, of which the cheapest is busy.
func BenchmarkCheapestVariant(b *testing.B) {
	for name, parameters := range map[string]string{"costs": gpus, "labels": "costLabel: price"} {
		b.Run(name, func(b *testing.B) {
			f, r := build[epp.Filter](b, "cheapest-variant-filter", parameters), wants(source(1), "2000", "50")
			pods := make([]variantPod, 100)
			for i := range pods {
				pods[i] = variant([]string{"l40s", "a100", "h100"}[i%3], []float64{3000, 1000, 300}[i%3], 40)
				pods[i].labels["price"] = []string{"1", "2", "4"}[i%3]
			}
			all := variantPods(pods)
			c := make([]epp.Candidate, len(all))
			b.ReportAllocs()
			for b.Loop() {
				copy(c, all)
				f.Filter(r, c)
			}
		})
	}
}
