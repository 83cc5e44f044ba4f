package plugin

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// scored returns a scorer's scores by the names of the candidates.
func scored(t *testing.T, s epp.Scorer, r *epp.Round, c []epp.Candidate) map[string]float64 {
	t.Helper()
	scores, byName := make([]float64, len(c)), map[string]float64{}
	s.Score(r, c, scores)
	for i := range c {
		byName[c[i].Name] = scores[i]
	}
	return byName
}

// wantScores compares scores with those of a table, in the order of the candidates' names.
func wantScores(t *testing.T, got map[string]float64, want ...float64) {
	t.Helper()
	for i, score := range want {
		if name := string(rune('a' + i)); math.Abs(got[name]-score) > 1e-4 {
			t.Errorf("%s gets %v, want %v", name, got[name], score)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d scores, want %d", len(got), len(want))
	}
}

// at makes the labels of an endpoint with the extractor's default labels, and a label for racks.
func at(host, rack, zone, region string) map[string]string {
	return map[string]string{"kubernetes.io/hostname": host, "rack": rack, "topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": region}
}

// TestTopology: what is kept, and the scores, near a decode endpoint on host h1, rack r1, zone z1 and region e1.
func TestTopology(t *testing.T) {
	extractor, err := decode(t, "topology-extractor", "rack: rack")
	if err != nil {
		t.Fatal(err)
	}
	if others["with-racks"], err = extractor.Build(builder()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { delete(others, "with-racks") })
	everywhere := []map[string]string{at("h1", "r1", "z1", "e1"), at("h2", "r1", "z1", "e1"), at("h3", "r2", "z1", "e1"), at("h4", "r3", "z2", "e1"),
		at("h5", "r4", "z3", "e2"), nil}
	far := everywhere[3:]
	for _, test := range []struct {
		name, parameters string
		decode           map[string]string
		candidates       []map[string]string
		keeps            string
	}{
		{"host is the default", "", everywhere[0], everywhere, "a"},
		{"rack, without a label for racks: the host decides", "minAffinity: rack", everywhere[0], everywhere, "a"},
		{"rack", "{minAffinity: rack, topologyProducerName: with-racks}", everywhere[0], everywhere, "ab"},
		{"zone", "minAffinity: zone", everywhere[0], everywhere, "abc"},
		{"region", "minAffinity: region", everywhere[0], everywhere, "abcd"},
		{"no candidate is near: all", "minAffinity: zone", everywhere[0], far, "abc"},
		{"decode's place is not known: all", "minAffinity: region", nil, everywhere, "abcdef"},
		{"an unknown host is not shared with an unknown one", "", at("", "", "z1", ""), []map[string]string{at("", "", "z2", ""), at("", "", "z1", "")}, "ab"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := round(source(1))
			f := build[epp.Filter](t, "topology-affinity-filter", test.parameters)
			if got := f.Filter(r, labelled(test.candidates...)); len(got) != len(test.candidates) {
				t.Errorf("keeps %s in the first stage, want all", names(got))
			}
			r.Before = []epp.Chosen{{Stage: epp.StageDecode, Endpoint: labelled(test.decode)[0].Endpoint}}
			if got := names(f.Filter(r, labelled(test.candidates...))); got != test.keeps {
				t.Errorf("keeps %s, want %s", got, test.keeps)
			}
		})
	}

	r := round(source(1))
	s := build[epp.Scorer](t, "topology-affinity-scorer", "topologyProducerName: with-racks")
	wantScores(t, scored(t, s, r, labelled(everywhere...)), 0, 0, 0, 0, 0, 0)
	r.Before = []epp.Chosen{{Stage: epp.StageDecode, Endpoint: labelled(everywhere[0])[0].Endpoint}}
	wantScores(t, scored(t, s, r, labelled(everywhere...)), 1, 0.2, 0.05, 0.02, 0, 0)
}

// TestContextLength: scores and what is kept, by the formula of the documentation worked out by hand.
func TestContextLength(t *testing.T) {
	ranges := []map[string]string{
		{"llm-d.ai/context-length-range": "0-2000"},
		{"llm-d.ai/context-length-range": "0-32000"},
		{"llm-d.ai/context-length-range": "2000-8000"},
		{"llm-d.ai/context-length-range": "1000-1000"},
		{"llm-d.ai/context-length-range": "many"},
		nil,
	}
	for _, test := range []struct {
		tokens int
		scores []float64
		keeps  string
	}{
		// a: 0.3+0.7×(0.7/1.2+0.3×1000/2000); b: 0.3+0.7×(0.7/4.2+0.3×31000/32000); c: 0.3/2
		{1000, []float64{0.8133, 0.6201, 0.15, 0.79, 0.5, 0.5}, "abdef"},
		{2000, []float64{0.7083, 0.6135, 0.8163, 0.15, 0.5, 0.5}, "abcef"},
		{40000, []float64{0.0077, 0.0333, 0.0091, 0.0075, 0.5, 0.5}, "ef"},
	} {
		r := round(source(1))
		r.Request.Prompt.Tokens = test.tokens
		wantScores(t, scored(t, build[epp.Scorer](t, "context-length-aware", ""), r, labelled(ranges...)), test.scores...)
		if _, filters := build[any](t, "context-length-aware", "").(epp.Filter); filters {
			t.Error("it filters by default")
		}
		if got := names(build[epp.Filter](t, "context-length-aware", "enableFiltering: true").Filter(r, labelled(ranges...))); got != test.keeps {
			t.Errorf("%d tokens: keeps %s, want %s", test.tokens, got, test.keeps)
		}
	}
}

func TestLoadAware(t *testing.T) {
	c := []epp.Candidate{loaded("a", 0, 9), loaded("b", 32, 0), loaded("c", 64, 0), loaded("d", 128, 0), loaded("e", 500, 0), loaded("f", 0, 0, unread),
		loaded("g", 0, 0, aged(0, 0.5))}
	wantScores(t, scored(t, build[epp.Scorer](t, "load-aware-scorer", ""), round(source(1)), c), 0.5, 0.375, 0.25, 0, 0, 0.25, 0.375)
	wantScores(t, scored(t, build[epp.Scorer](t, "load-aware-scorer", "threshold: 64"), round(source(1)), c), 0.5, 0.25, 0, 0, 0, 0.25, 0.375)
}

func TestUtilization(t *testing.T) {
	c := []epp.Candidate{loaded("a", 0, 4, kv(0.2), since(4, 4)), loaded("b", 1, 8, kv(0.9), since(9, 9)), loaded("c", 0, 0, unread, since(5, 5))}
	// Since the page, two requests were sent to each of a and b.
	later := []epp.Candidate{loaded("a", 0, 4, since(4, 6)), loaded("b", 1, 8, since(9, 11)), loaded("c", 0, 0, unread, since(5, 7))}
	for _, test := range []struct{ parameters, keeps, keepsLater string }{
		{"conditions: [{metric: waiting-queue, maxValue: 0}]", "ac", "ac"}, // a has no queue, so it may have room
		{"conditions: [{metric: waiting-queue, maxValue: 1}]", "abc", "ac"},
		{"conditions: [{metric: waiting-queue, maxValue: 3}]", "abc", "abc"},
		{"conditions: [{metric: running-requests, maxValue: 4}]", "ac", "c"},
		{"conditions: [{metric: running-requests, maxValue: 8}]", "abc", "abc"}, // b has a queue, so no more run there
		{"conditions: [{metric: kv-cache-utilization, maxValue: 0.85}]", "ac", "abc"},
		{"conditions: [{metric: active-requests, maxValue: 4}]", "a", ""},
		{"conditions: [{metric: active-requests, maxValue: 5}, {metric: waiting-queue, maxValue: 0}]", "ac", ""},
		{"conditions: [{metric: active-requests, maxValue: 1}]", "", ""},
		{"{conditions: [{metric: active-requests, maxValue: 1}], fallbackOnEmpty: true}", "abc", "abc"},
	} {
		f := build[epp.Filter](t, "utilization-filter", test.parameters)
		if got := names(f.Filter(round(source(1)), slices.Clone(c))); got != test.keeps {
			t.Errorf("{%s} keeps %q, want %q", test.parameters, got, test.keeps)
		}
		if got := names(f.Filter(round(source(1)), slices.Clone(later))); got != test.keepsLater {
			t.Errorf("{%s} keeps %q after a burst, want %q", test.parameters, got, test.keepsLater)
		}
		if _, sheds := f.(epp.Shedder); !sheds {
			t.Error("a profile that it leaves without endpoints does not count as full")
		}
	}
}
