package plugin

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/filter"
)

// set makes candidates of a DisaggregatedSet, given as "revision/role×pods"; an empty revision is a pod without labels.
func set(t *testing.T, groups string) []epp.Candidate {
	t.Helper()
	var labels []map[string]string
	for _, group := range strings.Fields(groups) {
		revision, rest, _ := strings.Cut(group, "/")
		role, count, _ := strings.Cut(rest, "×")
		n := 0
		if _, err := fmt.Sscan(count, &n); err != nil {
			t.Fatal(err)
		}
		for range n {
			l := map[string]string{"set": "x", "disaggregatedset.x-k8s.io/revision": revision, "disaggregatedset.x-k8s.io/role": role}
			if revision == "" {
				l = nil
			}
			labels = append(labels, l)
		}
	}
	return labelled(labels...)
}

// TestRolloutShares: the shares of requests that revisions get, and that all endpoints which are left are of one revision.
func TestRolloutShares(t *testing.T) {
	for _, test := range []struct {
		name, mode, pods string
		want             map[string]float64 // share of requests by revision
	}{
		{"max-role: the most numerous role", "max-role", "a/prefill×2 a/decode×9 b/prefill×1 b/decode×1", map[string]float64{"a": 0.9, "b": 0.1}},
		{"sum: all roles", "sum", "a/prefill×2 a/decode×9 b/prefill×1 b/decode×1", map[string]float64{"a": 11.0 / 13, "b": 2.0 / 13}},
		{"a revision without prefill gets none", "max-role", "a/prefill×1 a/decode×6 b/decode×2", map[string]float64{"a": 1}},
		{"a revision that is not complete does not count for the dominant role", "max-role", "a/prefill×3 a/decode×1 b/prefill×1 b/decode×2 c/decode×9",
			map[string]float64{"a": 0.75, "b": 0.25}},
		{"equal roles: the first one", "max-role", "a/prefill×3 a/decode×1 b/prefill×1 b/decode×3", map[string]float64{"a": 0.75, "b": 0.25}},
		{"pods of no revision, and of other roles", "sum", "a/prefill×1 a/decode×1 a/encode×5 /×3", map[string]float64{"a": 1}},
		{"no revision is complete", "sum", "a/prefill×1 b/decode×1", map[string]float64{"": 1}},
		{"no pods", "sum", "", map[string]float64{"": 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := build[epp.Screener](t, "disaggregatedset-rollout-screener",
				fmt.Sprintf("{scope: {labelSelector: set=x}, revisionGating: {mode: %s, requireRoles: {values: [prefill, decode]}}}", test.mode))
			const requests = 20_000
			got, r, c := map[string]float64{}, asked(), set(t, test.pods)
			left := make([]epp.Candidate, len(c))
			for range requests {
				copy(left, c)
				kept, revision := s.Screen(r, left), ""
				for i := range kept {
					switch one := kept[i].Labels["disaggregatedset.x-k8s.io/revision"]; {
					case one == "" || revision != "" && one != revision:
						t.Fatalf("revisions %q and %q are left together", revision, one)
					default:
						revision = one
					}
				}
				got[revision] += 1.0 / requests
			}
			for revision, want := range test.want { // within 5 standard deviations, and always the same under the seed
				if off := 5*math.Sqrt(want*(1-want)/requests) + 1e-9; math.Abs(got[revision]-want) > off {
					t.Errorf("%q gets %.3f of the requests, want %.3f", revision, got[revision], want)
				}
			}
			if len(got) != len(test.want) {
				t.Errorf("shares %v, want %v", got, test.want)
			}
			screen := func() { copy(left, c); s.Screen(r, left) }
			least := testing.AllocsPerRun(1, screen)
			for range 100 { // with the race detector, pools drop some of what they are given
				least = min(least, testing.AllocsPerRun(1, screen))
			}
			if least != 0 {
				t.Errorf("%v allocations", least)
			}
		})
	}
}

// TestRolloutHeaders: what a strict header leaves, and what answers tell.
func TestRolloutHeaders(t *testing.T) {
	const pods = "a/prefill×1 a/decode×1 b/prefill×1 b/decode×1 c/decode×1" // named a to e
	const gating = "requireRoles: {values: [prefill, decode]}"
	const strict = "headerSelectors: [{name: revision, headerName: X-Rev, labelKey: disaggregatedset.x-k8s.io/revision, mode: strict}]"
	const role = "headerSelectors: [{name: role, headerName: X-Role, labelKey: disaggregatedset.x-k8s.io/role, mode: MODE}]"
	for _, test := range []struct {
		name, parameters string
		headers          []string
		keeps            string
	}{
		{"the revision that is asked for", "revisionGating: {mode: sum, " + gating + "}, " + strict, []string{"x-rev", "b"}, "cd"},
		{"by the gating's own header", "revisionGating: {mode: sum, requiredRoles: [prefill, decode], revisionHeaderName: X-Rev}", []string{"x-rev", "a"}, "ab"},
		{"one that lacks a role", "revisionGating: {mode: sum, " + gating + "}, " + strict, []string{"x-rev", "c"}, ""},
		{"one that does not exist", "revisionGating: {mode: sum, " + gating + "}, " + strict, []string{"x-rev", "z"}, ""},
		{"disabled: all", "revisionGating: {mode: disabled}, " + strict, nil, "abcde"},
		{"disabled: the revision that is asked for, whatever it lacks", "revisionGating: {mode: disabled}, " + strict, []string{"x-rev", "c"}, "e"},
		{"disabled: one that does not exist", "revisionGating: {mode: disabled}, " + strict, []string{"x-rev", "z"}, ""},
		{"another label, strict", "revisionGating: {mode: disabled}, " + strings.Replace(role, "MODE", "strict", 1), []string{"x-role", "prefill"}, "ac"},
		{"another label, preferred", "revisionGating: {mode: disabled}, " + strings.Replace(role, "MODE", "prefer", 1), []string{"x-role", "prefill"}, "abcde"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := build[epp.Screener](t, "disaggregatedset-rollout-screener", "{scope: {labelSelector: set in (x)}, "+test.parameters+"}")
			c := set(t, pods)
			served := c[2].Endpoint
			if got := names(s.Screen(asked(test.headers...), c)); got != test.keeps {
				t.Errorf("keeps %q, want %q", got, test.keeps)
			}
			told := map[string]string{}
			s.(epp.Stamper).Stamp(&epp.Answer{By: served}, func(name, value string) { told[name] = value })
			want := map[string]string{"x-rev": "b"}
			if strings.Contains(test.parameters, "X-Role") {
				want = map[string]string{"x-role": "prefill"}
			}
			if fmt.Sprint(told) != fmt.Sprint(want) {
				t.Errorf("answers tell %v, want %v", told, want)
			}
		})
	}
}

func TestSelector(t *testing.T) {
	pods := []map[string]string{{"app": "x", "zone": "a"}, {"app": "y", "zone": "b"}, {"zone": "c"}, nil}
	for text, want := range map[string]string{
		"app=x": "a", "app == y": "b", "app!=x": "bcd", "app": "ab", "!app": "cd", "zone in (a, c)": "ac", "zone notin (a,b)": "cd",
		"app=x,zone=a": "a", "app, zone in (b), zone!=a": "b", "app=": "", "llm-d.ai/role=x": "",
	} {
		s, err := filter.ParseSelector(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		got := ""
		for i, labels := range pods {
			if s.Matches(labels) {
				got += string(rune('a' + i))
			}
		}
		if got != want {
			t.Errorf("%q matches %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"", "a=b,", "a in b", "!a=b", "a=b c=d", "a in (b", "=b"} {
		if _, err := filter.ParseSelector(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
