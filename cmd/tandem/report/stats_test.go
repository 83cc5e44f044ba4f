package report

import (
	"math"
	"slices"
	"strings"
	"testing"
	"testing/quick"
)

func TestPercentile(t *testing.T) {
	hundred := make(spread, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for name, c := range map[string]struct {
		of   spread
		p    int
		want float64
	}{
		"one, median":        {spread{7}, 50, 7},
		"one, p99":           {spread{7}, 99, 7},
		"two, median":        {spread{1, 2}, 50, 1},
		"two, p51":           {spread{1, 2}, 51, 2},
		"three, median":      {spread{1, 2, 9}, 50, 2},
		"hundred, p1":        {hundred, 1, 1},
		"hundred, median":    {hundred, 50, 50},
		"hundred, p99":       {hundred, 99, 99},
		"hundred, p100":      {hundred, 100, 100},
		"five, p99 is worst": {spread{1, 2, 3, 4, 100}, 99, 100},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.of.percentile(c.p); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	if got := (spread{}).percentile(50); !math.IsNaN(got) {
		t.Errorf("of nothing: %v", got)
	}
}

// TestPercentileIsNearestRank compares percentile with the definition.
func TestPercentileIsNearestRank(t *testing.T) {
	holds := func(values []uint8, percent uint8) bool {
		p := int(percent)%100 + 1
		var s spread
		for _, v := range values {
			s = append(s, float64(v))
		}
		slices.Sort(s)
		if len(s) == 0 {
			return true
		}
		notAbove := func(limit float64) (n int) {
			for _, v := range s {
				if v <= limit {
					n++
				}
			}
			return n
		}
		got := s.percentile(p)
		i := slices.Index(s, got)
		return i >= 0 && notAbove(got)*100 >= p*len(s) && (i == 0 || notAbove(s[i-1])*100 < p*len(s))
	}
	if err := quick.Check(holds, nil); err != nil {
		t.Error(err)
	}
}

func TestSortedLeavesOutImpossibleValues(t *testing.T) {
	got := sorted([]float64{3, math.NaN(), -1, math.Inf(1), 0, math.Inf(-1), 1e13, 2})
	if want := (spread{0, 2, 3}); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestThinned(t *testing.T) {
	var s spread
	for i := range 1000 {
		s = append(s, float64(i))
	}
	thin := s.thinned(120)
	if len(thin) != 120 || thin[0] != 0 || thin[119] != 999 || !slices.IsSorted(thin) {
		t.Errorf("%d values from %v to %v", len(thin), thin[0], thin[len(thin)-1])
	}
	if same := s[:120].thinned(120); !slices.Equal(same, s[:120]) {
		t.Errorf("few values were thinned to %v", same)
	}
}

// mixed returns one class with remote and local requests, and one whose requests all failed.
func mixed() *Data {
	phases := func(prefill float64) map[string]float64 {
		p := map[string]float64{"epp": 1, "recv": 1, "handoff": 1, "first": 10, "decode": 50}
		if prefill > 0 {
			p["prefill"] = prefill
		}
		return p
	}
	return &Data{Requests: []Request{
		{Number: 1, Class: "talk", Decision: "remote", Reason: "uncached", Total: 150, Phases: phases(80), KVBytes: 4096},
		{Number: 2, Class: "gone", KVBytes: -1, Failure: "refused"},
		{Number: 3, Class: "talk", Decision: "local", Reason: "below-threshold", Stream: true, TTFT: 10, Total: 60, ITL: []float64{4, 6},
			Phases: phases(0)},
		{Number: 4, Class: "talk", Decision: "remote", Reason: "uncached", Stream: true, TTFT: 120, Total: 170, ITL: []float64{5},
			Phases: phases(90), KVBytes: 4096},
		{Number: 5, Class: "talk", Decision: "refused", Reason: "saturated", Total: 0.5},
	}}
}

func TestClassCells(t *testing.T) {
	got := classes(mixed())
	if len(got) != 2 {
		t.Fatalf("%d classes", len(got))
	}
	for i, want := range []struct{ times, phases []string }{
		// Request 1 is not streamed, so its time is not among the times to the first token.
		{[]string{"talk", "4", "2", "1", "10.0", "max 120.0", "5.0", "max 6.0", "150.0", "max 170.0"},
			[]string{"talk", "1.0", "1.0", "85.0", "1.0", "10.0", "50.0", "94.5%"}},
		{[]string{"gone", "1", "0", "0", absent, absent, absent, absent, absent, absent},
			[]string{"gone", absent, absent, absent, absent, absent, absent, absent}},
	} {
		if cells := got[i].timeCells(); !slices.Equal(cells, want.times) {
			t.Errorf("times %q, want %q", cells, want.times)
		}
		if cells := got[i].phaseCells(shownPhases(&Data{})); !slices.Equal(cells, want.phases) {
			t.Errorf("phases %q, want %q", cells, want.phases)
		}
	}
}

func TestTail(t *testing.T) {
	values := func(n int) (s spread) {
		for i := range n {
			s = append(s, float64(i+1))
		}
		return s
	}
	for _, c := range []struct {
		n             int
		cell, numbers string
	}{
		{0, absent, ""},
		{8, "max 8.0", "p50 4.0 · max 8.0 ms · n 8"},
		{298, "max 298.0", "p50 149.0 · max 298.0 ms · n 298"},
		{299, "297.0", "p50 150.0 · p99 297.0 ms · n 299"},
		{1000, "990.0", "p50 500.0 · p99 990.0 ms · n 1000"},
	} {
		if got := values(c.n).tailCell(); got != c.cell {
			t.Errorf("of %d values: %q, want %q", c.n, got, c.cell)
		}
		if c.n == 0 {
			continue
		}
		if got := values(c.n).numbers(); got != c.numbers {
			t.Errorf("of %d values: %q, want %q", c.n, got, c.numbers)
		}
		drawn := string(strip("any", values(c.n), linear(1000)))
		if strings.Contains(drawn, `class="tail"`) != (c.n >= 299) || strings.Contains(drawn, "p99") != (c.n >= 299) {
			t.Errorf("of %d values: %s", c.n, drawn)
		}
	}
}

func TestOutcomes(t *testing.T) {
	var names []string
	for _, g := range outcomes(mixed()) {
		names = append(names, g.name())
	}
	if want := []string{"talk, remote", "talk, local"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

func TestTypical(t *testing.T) {
	d := mixed()
	if r := typical(d); r == nil || r.Number != 4 {
		t.Errorf("of a streamed and a plain one: %+v, want the streamed one", r)
	}
	d.Requests[3].ITL = nil
	if r := typical(d); r == nil || r.Number != 4 {
		t.Errorf("of two: %+v, want the one with the earlier first token", r)
	}
	delete(d.Requests[3].Phases, "handoff")
	if r := typical(d); r == nil || r.Number != 1 {
		t.Errorf("of one without a phase: %+v, want the other", r)
	}
	d.Requests[0].Decision = "local"
	if r := typical(d); r != nil {
		t.Errorf("of none: %+v", r)
	}
}

func TestExamples(t *testing.T) {
	shown := func(d *Data) (all []int) {
		for _, e := range examples(d) {
			all = append(all, e.request.Number)
		}
		return all
	}
	d := mixed()
	d.Requests[2].TTFT = 130
	for _, c := range []struct {
		name  string
		given *Data
		want  []int
	}{
		{"a typical one and a slower local one", d, []int{4, 3}},
		{"the typical one is the slowest", mixed(), []int{4}},
		{"only local ones", &Data{Requests: mixed().Requests[2:3]}, []int{3}},
		{"no stream", &Data{Requests: mixed().Requests[:1]}, []int{1}},
		{"none", &Data{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := shown(c.given); !slices.Equal(got, c.want) {
				t.Errorf("shows %v, want %v", got, c.want)
			}
		})
	}
}

func TestReasonsAreCounted(t *testing.T) {
	want := []reasonCount{{"remote", "uncached", 2}, {"local", "below-threshold", 1}, {"refused", "saturated", 1}}
	if got := reasons(mixed()); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSummaryAndVerdict(t *testing.T) {
	checks := func(passed ...bool) (all []Check) {
		for _, p := range passed {
			all = append(all, Check{Passed: p})
		}
		return all
	}
	d := mixed()
	for name, c := range map[string]struct{ got, want string }{
		"mixed": {summary(d), "5 requests in 0.2 s: 2 prefilled remotely, 1 locally, 1 refused, 1 without an answer."},
		"all known": {summary(&Data{Requests: d.Requests[:1], KVMoved: 4096}), "1 request in 0.1 s: 1 prefilled remotely, 0 locally. " +
			"4.0 KiB of KV cache moved from prefill to decode engines."},
		"nothing":      {summary(&Data{}), "No request was sent."},
		"no check":     {verdict(&Data{}), "Nothing was checked."},
		"one check":    {verdict(&Data{Checks: checks(true)}), "The one check passed."},
		"two checks":   {verdict(&Data{Checks: checks(true, true)}), "All 2 checks passed."},
		"failed check": {verdict(&Data{Checks: checks(true, false)}), "FAILED: 1 of 2 checks."},
	} {
		t.Run(name, func(t *testing.T) {
			if c.got != c.want {
				t.Errorf("got %q, want %q", c.got, c.want)
			}
		})
	}
}
