package load

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// sideWith returns a side with a metric's value in each round.
func sideWith(name, metric string, values ...float64) *SideResult {
	s := &SideResult{Name: name}
	for i, v := range values {
		s.Rounds = append(s.Rounds, RoundResult{Number: i + 1, Figures: map[string]float64{metric: v}})
	}
	return s
}

func TestCompare(t *testing.T) {
	base := []float64{100, 110, 90, 105, 95, 100}
	plus := func(d ...float64) (v []float64) {
		for i := range base {
			v = append(v, base[i]+d[i%len(d)])
		}
		return v
	}
	tests := []struct {
		name, metric  string
		first, second []float64
		difference    float64
		verdict       string
	}{
		{"faster in every pair", "ttft_p50_ms", plus(-5, -7), base, -6, Better},
		{"slower in every pair", "ttft_p50_ms", plus(5, 7), base, 6, Worse},
		{"more throughput", "output_tokens_per_s", plus(5, 7), base, 6, Better},
		{"less goodput", "goodput_per_s", plus(-5), base, -5, Worse},
		{"once the other way round", "ttft_p50_ms", plus(-5, -5, -5, -5, -5, 1), base, -5, NoDifference},
		{"equal", "failed_percent", base, base, 0, NoDifference},
		{"too few", "ttft_p50_ms", base[:5], plus(9)[:5], -9, TooFewRounds},
		{"interrupted before the last pair", "ttft_p50_ms", plus(-5), base[:5], -5, TooFewRounds},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := compare(sideWith("a", test.metric, test.first...), sideWith("b", test.metric, test.second...))
			d := c.find(test.metric)
			if d == nil || d.Verdict != test.verdict || d.Difference != test.difference || (d.Low != nil) != (test.verdict != TooFewRounds) {
				t.Errorf("%+v", d)
			}
			if len(c.Differences) != 1 {
				t.Errorf("%d differences", len(c.Differences))
			}
		})
	}
}

// The machine's drift over the rounds is larger than the difference, and cancels out in the pairs.
func TestPairsCancelDrift(t *testing.T) {
	drift := []float64{0, 50, 120, 200, 260, 400, 500, 650}
	var a, b []float64
	for i, d := range drift {
		a, b = append(a, 100+d+float64(i%3)), append(b, 110+d)
	}
	if d := compare(sideWith("a", "e2e_p50_ms", a...), sideWith("b", "e2e_p50_ms", b...)).find("e2e_p50_ms"); d.Verdict != Better || *d.High > -7 {
		t.Errorf("%+v", d)
	}
}

// A metric that a round does not support is not compared.
func TestCompareLeavesOutGaps(t *testing.T) {
	a, b := sideWith("a", "ttft_p95_ms", 1, 2, 3), sideWith("b", "ttft_p95_ms", 1, 2, 3)
	delete(b.Rounds[1].Figures, "ttft_p95_ms")
	if c := compare(a, b); len(c.Differences) != 0 || c.Pairs != 3 {
		t.Errorf("%+v", c)
	}
}

func TestSweep(t *testing.T) {
	tests := []struct {
		name     string
		verdicts []string
		from     int
		upTo     int
		says     string
	}{
		{"crosses over", []string{Worse, Worse, NoDifference, Better, Better}, 800, 200, "from 800 input tokens on (200 by the count"},
		{"pays always", []string{Better, Better}, 100, 0, "from 100 input tokens on"},
		{"pays never", []string{Worse, NoDifference, Worse}, 0, 100, "there is no length"},
		{"a single better length between is not believed", []string{Worse, Better, NoDifference, Better}, 800, 100, "from 800"},
		{"too few rounds", []string{TooFewRounds, TooFewRounds}, 0, 0, "no verdict: it needs 6 rounds"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tr := &trial{settings: &settings{}}
			var points []PointResult
			for i, v := range test.verdicts {
				tokens := 100 << i
				tr.points = append(tr.points, &point{tokens: tokens})
				points = append(points, PointResult{PickerCount: tokens / 4,
					Comparison: &Comparison{First: "force", Second: "bypass", Differences: []Difference{{Metric: "e2e_p50_ms", Verdict: v}}}})
			}
			s := tr.sweep(points)
			if s.PaysFrom != test.from || s.CostsUpTo != test.upTo || !strings.Contains(s.Verdict, test.says) {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	remote := DecisionCount{Decision: pd.Remote.String(), Reason: "uncached", Count: 3}
	local := DecisionCount{Decision: pd.Local.String(), Reason: "short-prompt", Count: 7}
	late := 25.0
	tests := []struct {
		name string
		side SideResult
		want string // "": none
	}{
		{"fine", SideResult{Answered: 10, Mode: "auto", TokensCounted: true, EventTokens: 1, Decisions: []DecisionCount{remote, local}}, ""},
		{"failures", SideResult{Requests: 10, Failed: 3, TokensCounted: true}, "3 of 10 requests failed"},
		{"unsent", SideResult{Unsent: 2}, "2 requests were not sent"},
		{"late", SideResult{Late: &Distribution{P95: &late}}, "sent 25 ms or more after they were due"},
		{"no counts", SideResult{Answered: 1}, "events with text are counted"},
		{"merged events", SideResult{Answered: 1, TokensCounted: true, EventTokens: 3}, "3.0 tokens on average"},
		{"not Tandem", SideResult{Answered: 1, TokensCounted: true, Mode: "auto"}, "x-tandem-pd has no effect"},
		{"never remote", SideResult{Answered: 1, TokensCounted: true, Mode: "auto", Decisions: []DecisionCount{local}}, "no request was prefilled remotely"},
		{"header is off", SideResult{Answered: 1, TokensCounted: true, Mode: "bypass", Decisions: []DecisionCount{remote}}, "in spite of bypass"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			notes := test.side.warnings(true)
			if test.want == "" && len(notes) > 0 || test.want != "" && (len(notes) != 1 || !strings.Contains(notes[0], test.want)) {
				t.Errorf("%q", notes)
			}
		})
	}
}
