package plugin

import (
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
	} {
		f := build[epp.Filter](t, "endpoint-attribute-filter", "{attribute: depth, "+test.parameters+"}")
		if got := names(f.Filter(round(source(1)), attributed(0, 1, 2, 3, 4, -1))); got != test.keeps {
			t.Errorf("{%s} keeps %q, want %q", test.parameters, got, test.keeps)
		}
	}
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
