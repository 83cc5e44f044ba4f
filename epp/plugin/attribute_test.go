package plugin

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// attributed makes candidates whose pages have these values of the attribute depth; a negative one stands for a page without it.
func attributed(values ...float64) []epp.Candidate {
	c := make([]epp.Candidate, len(values))
	for i, v := range values {
		c[i] = loaded(string(rune('a'+i)), 0, 0)
		if v >= 0 {
			c[i].Load.Attributes = &epp.Attributes{{Key: "other", Value: 99}, {Key: "depth", Value: v}}
		}
	}
	return c
}

// TestAttributeFilter: whom each condition keeps of five values and of an endpoint without the value.
func TestAttributeFilter(t *testing.T) {
	for _, test := range []struct{ parameters, keeps string }{
		{"algorithm: {type: threshold, threshold: {operator: LessThan, value: 2}}", "abf"},
		{"algorithm: {type: threshold, threshold: {operator: LessThanOrEqual, value: 2}}", "abcf"},
		{"algorithm: {type: threshold, threshold: {operator: GreaterThan, value: 2}}", "def"},
		{"algorithm: {type: threshold, threshold: {operator: GreaterThanOrEqual, value: 2}}", "cdef"},
		{"algorithm: {type: threshold, threshold: {operator: Equal, value: 2}}", "cf"},
		{"algorithm: {type: threshold, threshold: {operator: NotEqual, value: 2}}", "abdef"},
		{"algorithm: {type: range, range: {min: 1, max: 3}}", "bcdf"},
		{"onMissing: Fail, algorithm: {type: range, range: {min: 1, max: 3}}", "bcd"},
		{"onMissing: Fail, algorithm: {type: range, range: {min: 7, max: 8}}", ""},
		{"onMissing: Fail, fallbackOnEmpty: true, algorithm: {type: range, range: {min: 7, max: 8}}", "abcdef"},
		{"algorithm: {type: topK, topK: {k: 2}}", "def"},
		{"onMissing: Fail, algorithm: {type: topK, topK: {k: 2}}", "de"},
		{"onMissing: Fail, algorithm: {type: topK, topK: {k: 1, higherIsBetter: false}}", "a"},
		{"onMissing: Fail, algorithm: {type: topK, topK: {k: 3, higherIsBetter: false}}", "abc"},
		{"onMissing: Fail, algorithm: {type: topK, topK: {k: 5}}", "abcde"},
		{"onMissing: Fail, algorithm: {type: topK, topK: {k: 99}}", "abcde"},
		{"onMissing: Fail, algorithm: {type: percentile, percentile: {percentile: 0}}", "abcde"},
		{"onMissing: Fail, algorithm: {type: percentile, percentile: {percentile: 20}}", "abcde"},
		{"onMissing: Fail, algorithm: {type: percentile, percentile: {percentile: 21}}", "bcde"},
		{"onMissing: Fail, algorithm: {type: percentile, percentile: {percentile: 50}}", "cde"},
		{"algorithm: {type: percentile, percentile: {percentile: 100}}", "ef"},
		{"onMissing: Fail, algorithm: {type: percentile, percentile: {percentile: 0, higherIsBetter: false}}", "a"},
		{"onMissing: Fail, algorithm: {type: percentile, percentile: {percentile: 25, higherIsBetter: false}}", "ab"},
		{"onMissing: Fail, algorithm: {type: percentile, percentile: {percentile: 60, higherIsBetter: false}}", "abc"},
		{"onMissing: Fail, algorithm: {type: percentile, percentile: {percentile: 100, higherIsBetter: false}}", "abcde"},
	} {
		f := build[epp.Filter](t, "endpoint-attribute-filter", "{attribute: depth, "+test.parameters+"}")
		if got := names(f.Filter(round(source(1)), attributed(0, 1, 2, 3, 4, -1))); got != test.keeps {
			t.Errorf("{%s} keeps %q, want %q", test.parameters, got, test.keeps)
		}
	}
}

// TestAttributeRankOfFew: values that are equal, or not known, or read from a page that is too old.
func TestAttributeRankOfFew(t *testing.T) {
	const top2, upper, fail = "type: topK, topK: {k: 2}", "type: percentile, percentile: {percentile: 90}", "onMissing: Fail, "
	for _, test := range []struct {
		name, parameters string
		pods             []epp.Candidate
		keeps            int
		drawn            bool // at random: each of them is kept at times
	}{
		{"ties, two places", fail + "algorithm: {" + top2 + "}", attributed(3, 3, 3, 3), 2, true},
		{"ties, one place left", fail + "algorithm: {" + top2 + "}", attributed(3, 5, 3, 3), 2, true},
		{"ties at a percentile", fail + "algorithm: {" + upper + "}", attributed(3, 1, 3, 3), 3, false},
		{"none known", "algorithm: {" + top2 + "}", attributed(-1, -1, -1), 3, false},
		{"none known, none kept", fail + "algorithm: {" + top2 + "}", attributed(-1, -1, -1), 0, false},
		{"none known, all kept", fail + "fallbackOnEmpty: true, algorithm: {" + upper + "}", attributed(-1, -1, -1), 3, false},
		{"no candidates", "algorithm: {" + upper + "}", nil, 0, false},
		{"too old", fail + "algorithm: {" + upper + "}", []epp.Candidate{attributed(3)[0], stale(attributed(9)[0])}, 1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, r := build[epp.Filter](t, "endpoint-attribute-filter", "{attribute: depth, "+test.parameters+"}"), round(source(1))
			kept := map[string]bool{}
			for range 100 {
				left := f.Filter(r, slices.Clone(test.pods))
				if len(left) != test.keeps {
					t.Fatalf("keeps %q, want %d of them", names(left), test.keeps)
				}
				for i := range left {
					kept[left[i].Name] = true
				}
			}
			if test.drawn && len(kept) != len(test.pods) {
				t.Errorf("of equal ones only %v are ever kept", kept)
			}
		})
	}
}

func stale(c epp.Candidate) epp.Candidate {
	c.Trust = 0
	return c
}

// TestAttributeOfGPU: the producer dcgm-extractor has its own page, whose values do not age with the load.
func TestAttributeOfGPU(t *testing.T) {
	gpu := func(name string, use float64) epp.Candidate {
		c := loaded(name, 0, 0)
		c.Load.Attributes = &epp.Attributes{{Key: "GPUUtilization", Value: 1 - use}}
		c.Load.Further = &epp.Further{Attributes: epp.Attributes{{Producer: "dcgm-extractor", Key: "GPUUtilization", Value: use}}}
		return c
	}
	pods := []epp.Candidate{gpu("a", 0.2), gpu("b", 0.9), stale(gpu("c", 0.1)), loaded("d", 0, 0)}
	const parameters = "producer: dcgm-extractor, onMissing: Fail, algorithm: {type: threshold, threshold: {operator: LessThan, value: 0.5}}"
	f := build[epp.Filter](t, "endpoint-attribute-filter", "{attribute: GPUUtilization, "+parameters+"}")
	if got := names(f.Filter(round(source(1)), slices.Clone(pods))); got != "ac" {
		t.Errorf("kept are %q, want ac", got)
	}
	s := build[epp.Scorer](t, "endpoint-attribute-scorer",
		"{attributeKey: GPUUtilization, producer: dcgm-extractor, algorithm: {type: linear_lower_is_better, normalization: {fixedRange: {min: 0, max: 1}}}}")
	wantScores(t, scored(t, s, round(source(1)), pods), 0.8, 0.1, 0.9, 0)
}

func TestAttributeScorer(t *testing.T) {
	const lower, higher = "type: linear_lower_is_better", "type: linear_higher_is_better"
	for _, test := range []struct {
		algorithm string
		values    []float64
		want      []float64
	}{
		{lower, []float64{0, 1, 4, -1}, []float64{1, 0.75, 0, 0}},
		{higher, []float64{0, 1, 4, -1}, []float64{0, 0.25, 1, 0}},
		{lower + ", normalization: {adaptiveRange: {}}", []float64{3, 3, -1}, []float64{1, 1, 0}},
		{higher, []float64{3}, []float64{1}},
		{higher, []float64{-1, -1}, []float64{0, 0}},
		{lower + ", normalization: {fixedRange: {min: 1, max: 3}}", []float64{0, 1, 2, 3, 9, -1}, []float64{1, 1, 0.5, 0, 0, 0}},
		{higher + ", normalization: {fixedRange: {min: 1, max: 3}}", []float64{0, 1, 2, 3, 9, -1}, []float64{0, 0, 0.5, 1, 1, 0}},
	} {
		s := build[epp.Scorer](t, "endpoint-attribute-scorer", "{attributeKey: depth, algorithm: {"+test.algorithm+"}}")
		wantScores(t, scored(t, s, round(source(1)), attributed(test.values...)), test.want...)
	}
}
