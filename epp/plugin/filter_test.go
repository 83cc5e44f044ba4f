package plugin

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// labelled makes candidates named by their labels, which are given as key=value pairs of one candidate.
func labelled(labels ...map[string]string) []epp.Candidate {
	c := make([]epp.Candidate, len(labels))
	for i, l := range labels {
		c[i] = epp.Candidate{Endpoint: epp.NewEndpoint("", string(rune('a'+i)), netip.AddrPort{}, "", l), Load: &epp.Load{}}
	}
	return c
}

func names(c []epp.Candidate) string {
	var all []byte
	for i := range c {
		all = append(all, c[i].Name...)
	}
	return string(all)
}

func TestRoleFilters(t *testing.T) {
	roles := []string{"", "prefill", "decode", "encode", "prefill-decode", "encode-prefill", "encode-decode", "encode-prefill-decode", "both", "nonsense"}
	var labels []map[string]string
	for _, role := range roles {
		labels = append(labels, map[string]string{pd.RoleLabel: role})
	}
	labels[0] = nil
	for typ, want := range map[string]string{"decode-filter": "aceghi", "prefill-filter": "befhi", "encode-filter": "dfgh"} {
		if got := names(build[epp.Filter](t, typ, "").Filter(round(source(1)), labelled(labels...))); got != want {
			t.Errorf("%s keeps %q, want %q", typ, got, want)
		}
	}
}

func TestLabelSelector(t *testing.T) {
	pods := []map[string]string{
		{"gpu": "h200", "zone": "a"}, {"gpu": "h100", "zone": "a"}, {"gpu": "h100", "zone": "b"}, {"zone": ""}, nil,
	}
	for _, test := range []struct{ parameters, want string }{
		{"", "abcde"},
		{"matchLabels: {gpu: h100}", "bc"},
		{"matchLabels: {gpu: h100, zone: b}", "c"},
		{"matchLabels: {zone: ''}", "d"},
		{"matchLabels: {none: x}", ""},
		{"matchExpressions: [{key: gpu, operator: In, values: [h100, h200]}]", "abc"},
		{"matchExpressions: [{key: gpu, operator: NotIn, values: [h100]}]", "ade"},
		{"matchExpressions: [{key: zone, operator: Exists}]", "abcd"},
		{"matchExpressions: [{key: gpu, operator: DoesNotExist}]", "de"},
		{"{matchLabels: {zone: a}, matchExpressions: [{key: gpu, operator: In, values: [h100]}]}", "b"},
		{"matchExpressions: [{key: gpu, operator: Exists}, {key: zone, operator: NotIn, values: [b]}]", "ab"},
		{"{label: gpu, validValues: [h100]}", "bc"},
		{"{label: gpu, validValues: [h200], allowsNoLabel: true}", "ade"},
		{"{label: gpu, allowsNoLabel: true}", "de"},
	} {
		f := build[epp.Filter](t, "label-selector-filter", test.parameters)
		if got := names(f.Filter(round(source(1)), labelled(pods...))); got != test.want {
			t.Errorf("{%s} keeps %q, want %q", test.parameters, got, test.want)
		}
	}
}

// TestPrefixCacheAffinity uses a prompt of which 1,024 tokens can be cached, and 1,000 tokens a second.
func TestPrefixCacheAffinity(t *testing.T) {
	type pod struct{ cached, inFlight int }
	const always = "peakPrefillThroughput: 1000"
	for _, test := range []struct {
		name, parameters string
		pods             []pod
		want             string
	}{
		{"no candidates", always, nil, ""},
		{"one, cold", always, []pod{{0, 0}}, "a"},
		{"all cold", always, []pod{{0, 0}, {819, 0}}, "ab"},
		{"with the prompt from 0.80 on", always, []pod{{819, 0}, {820, 0}, {1024, 0}}, "bc"},
		{"all with the prompt, one slow", always, []pod{{1024, 0}, {1024, 1e6}}, "ab"},
		{"with the prompt, as late as it may be", always, []pod{{1024, 18_500}, {0, 500}}, "a"},
		{"with the prompt, too late", always, []pod{{1024, 18_501}, {0, 500}}, "ab"},
		{"one of those with the prompt is too late", always, []pod{{1024, 90_000}, {1024, 0}, {0, 0}}, "ab"},
		{"one of the cold is idle", always, []pod{{1024, 20_000}, {0, 50_000}, {0, 0}}, "abc"},
		{"with the prompt and faster", always, []pod{{1024, 0}, {0, 20_000}}, "a"},
		{"a lower bound", "{peakPrefillThroughput: 1000, maxTTFTPenaltyMs: 100}", []pod{{1024, 101}, {0, 0}}, "ab"},
		{"more throughput", "{peakPrefillThroughput: 2000, maxTTFTPenaltyMs: 100}", []pod{{1024, 101}, {0, 0}}, "a"},
		{"however late", "maxTTFTPenaltyMs: 0", []pod{{1024, 1 << 39}, {0, 0}}, "a"},
		{"as many more tokens as it may have", "{maxTTFTPenaltyMs: 0, maxTokensInFlightPenalty: 700}", []pod{{1024, 1000}, {0, 300}}, "a"},
		{"too many more tokens", "{maxTTFTPenaltyMs: 0, maxTokensInFlightPenalty: 700}", []pod{{1024, 1001}, {0, 300}}, "ab"},
		{"the lower bound of tokens and time", "{peakPrefillThroughput: 1000, maxTTFTPenaltyMs: 100, maxTokensInFlightPenalty: 700}", []pod{{1024, 101}, {0, 0}}, "ab"},
		{"the lower bound of time and tokens", "{peakPrefillThroughput: 1000, maxTokensInFlightPenalty: 100}", []pod{{1024, 101}, {0, 0}}, "ab"},
		{"switched off", "affinityThreshold: 0", []pod{{1024, 0}, {0, 0}}, "ab"},
		{"strict", "affinityThreshold: 1", []pod{{1023, 0}, {1024, 0}}, "b"},
		{"exploring", "explorationProbability: 1", []pod{{1024, 0}, {0, 0}}, "ab"},
	} {
		c := labelled(make([]map[string]string, len(test.pods))...)
		for i, p := range test.pods {
			c[i].Cached, c[i].InFlight.Tokens = p.cached, p.inFlight
		}
		f := build[epp.Filter](t, "prefix-cache-affinity-filter", test.parameters)
		if got := names(f.Filter(round(source(1)), c)); got != test.want {
			t.Errorf("%s: keeps %q, want %q", test.name, got, test.want)
		}
	}
}

func TestPrefixCacheAffinityExplores(t *testing.T) {
	f := build[epp.Filter](t, "prefix-cache-affinity-filter", "explorationProbability: 0.25")
	c := labelled(nil, nil)
	c[0].Cached = 1024
	r := round(source(6))
	const runs = 4000
	explored := 0
	for range runs {
		explored += len(f.Filter(r, slices.Clone(c))) - 1
	}
	if want, off := runs/4, 4*27; explored < want-off || explored > want+off { // 4 standard deviations
		t.Errorf("explored %d times of %d, want about %d", explored, runs, want)
	}
}

// TestNoPromptNoAffinity: a request without a prompt prefers no endpoint, though every cache holds "all" of an empty prompt.
func TestNoPromptNoAffinity(t *testing.T) {
	r := round(source(1))
	r.Request = &epp.Request{}
	c := labelled(nil, nil)
	if got := names(build[epp.Filter](t, "prefix-cache-affinity-filter", "").Filter(r, c)); got != "ab" {
		t.Errorf("keeps %q", got)
	}
	scores := make([]float64, 2)
	build[epp.Scorer](t, "prefix-cache-scorer", "").Score(r, c, scores)
	if scores[0] != 0 || scores[1] != 0 {
		t.Errorf("scores %v", scores)
	}
}
