package report

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func renderTrial(t testing.TB, trial *Trial) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := TrialHTML(&b, trial); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// trials returns the pages of trials to check.
func trials() map[string]*Trial {
	long := strings.Repeat("W", 3000)
	inf, nan := math.Inf(1), math.NaN()
	return map[string]*Trial{"sample": sampleTrial(), "sweep": sampleSweep(), "empty": {Title: "Nothing", Lead: "Nothing."},
		"hostile": {Title: evil + long, Lead: evil, About: []string{evil, long}, Notes: []string{evil, long}, Compared: evil,
			Tiles: []TrialTile{{evil, long}, {long, evil}},
			Differences: []TrialDifference{{evil, long, evil, nan, nan, nan, []float64{nan, inf, -inf}},
				{long, evil, "better", inf, -inf, inf, nil}, {"far", "0", "worse", 1e30, -1e30, 1e30, []float64{1e8}}},
			Charts: []TrialChart{{evil, long, []TrialLane{{evil, long, true, []float64{nan, inf, -1, 1e300, 5}}, {Name: "none"}}}, {Title: "no lanes"}},
			Curves: []TrialCurves{{evil, evil, long, evil, []TrialLine{{evil, true, []MeasuredPoint{{nan, 1}, {1, inf}, {0, 5}}}}},
				{"one", "x", "y", "", []TrialLine{{"a", false, []MeasuredPoint{{5, 5}}}, {Name: "b"}}}},
			Tables: []MeasuredTable{{Name: evil, Columns: []string{evil, long}, Rows: []MeasuredRow{{Cells: []string{evil, long}, Marked: true}},
				Notes: []string{evil}}}}}
}

// values returns n values around a center, some of them far above.
func values(seed uint64, n int, center float64) (all []float64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for range n {
		all = append(all, center*math.Exp(0.3*r.NormFloat64()))
	}
	return all
}

func sampleTrial() *Trial {
	return &Trial{Title: "tandem load: tiny at http://127.0.0.1:8080",
		Lead:     "auto against bypass, over 6 pairs of rounds: better: ITL p99 (-75.7%); no difference that the noise allows to see: TTFT p50.",
		About:    []string{"2026-11-21 14:03:00 UTC", "chat, streamed", "open loop, 25 requests/s, poisson"},
		Notes:    []string{"bypass: 3 of 480 requests failed; latencies are those of the others."},
		Tiles:    []TrialTile{{"requests answered", "957 of 960"}, {"ITL p99, ms: auto | bypass", "12.7 | 55.0"}},
		Compared: "auto against bypass",
		Differences: []TrialDifference{
			{"TTFT p50, ms", "40.6, 36.6 · +1.5% · no difference", "", 1.5, -12, 17, []float64{-12, 3, 17, 1, 0, 2}},
			{"ITL p99, ms", "12.59, 54.89 · -75.7% · better", "better", -75.7, -80, -60, []float64{-80, -60, -70, -76, -77, -75}},
			{"E2E p95, ms", "300, 200 · +50.0% · worse", "worse", 50, 20, 139, []float64{20, 139, 50, 51, 49, 60}},
			{"output tokens/s", "600, 598 · +0.3% · too few rounds", "", 0.3, math.NaN(), math.NaN(), []float64{0.2, 0.4}}},
		Charts: []TrialChart{{"Time to first token (TTFT)", "From when a request was due to the first event with a token.",
			[]TrialLane{{"auto", "p50 40.5 · p99 153 · max 198 ms · n 480", false, values(1, 480, 40)}, {"bypass", "p50 39.5 · max 202 ms · n 120", true, values(2, 120, 45)}}},
			{"Inter-token latency (ITL)", "The gaps between the events of all streams.",
				[]TrialLane{{"auto", "p50 2.5 · max 41 ms · n 1001", false, append(values(3, 1000, 2.5), 0.0001)}}}},
		Tables: []MeasuredTable{{Name: "auto against bypass, medians of 6 pairs of rounds",
			Columns: []string{"", "auto", "bypass", "difference", "%", "95% interval", "verdict"},
			Rows: []MeasuredRow{{Cells: []string{"TTFT p50, ms", "40.6", "36.6", "+0.5", "+1.5", "-4.7 to +6.5", "no difference"}},
				{Cells: []string{"E2E p95, ms", "300", "200", "+100", "+50.0", "+40 to +270", "worse"}, Marked: true}}}}}
}

func sampleSweep() *Trial {
	t := sampleTrial()
	t.Differences = nil
	line := func(name string, second bool, y ...float64) TrialLine {
		l := TrialLine{Name: name, Second: second}
		for i, v := range y {
			l.Points = append(l.Points, MeasuredPoint{float64(int(64) << (2 * i)), v})
		}
		return l
	}
	t.Curves = []TrialCurves{{"E2E p50, ms", "input tokens", "E2E p50, ms", "Medians of the rounds.",
		[]TrialLine{line("force", false, 53, 59, 85, 162), line("bypass", true, 47, 62, 126, 205)}}}
	return t
}

func TestTrialPageContents(t *testing.T) {
	sample, sweep, empty := string(renderTrial(t, sampleTrial())), string(renderTrial(t, sampleSweep())), string(renderTrial(t, &Trial{}))
	for name, c := range map[string]struct{ page, want string }{
		"lead":               {sample, "better: ITL p99 (-75.7%)"},
		"note":               {sample, "3 of 480 requests failed"},
		"heading":            {sample, `<h2 id="comparison">auto against bypass</h2>`},
		"better is coloured": {sample, `<li class="lane better"><p class="head"><span class="name">ITL p99, ms`},
		"worse row":          {sample, `<tr class="marked"><th scope="row">E2E p95, ms`},
		"axis around 0":      {sample, ">0%</text>"},
		"fast gaps":          {sample, ">1 ms</text>"}, // one gap of 0.1 µs does not stretch the axis
		"curves":             {sweep, "force: 53 at 64, 59 at 256, 85 at 1024, 162 at 4096."},
		"second side":        {sweep, `<g class="local">`},
		"nothing":            {empty, "No request was answered."},
	} {
		if !strings.Contains(c.page, c.want) {
			t.Errorf("%s: the page does not have %q", name, c.want)
		}
	}
	for what, page := range map[string]string{"comparison": sweep, "lengths": sample} {
		if strings.Contains(page, `id="`+what+`"`) {
			t.Errorf("a page without %s has its section", what)
		}
	}
	if strings.Contains(sample, "µs") {
		t.Error("the axis of gaps begins at microseconds")
	}
	if err := TrialHTML(full{}, sampleTrial()); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("error %v", err)
	}
}

// The zero of differences is in the middle, whichever side is farther away.
func TestDifferencesAreAroundZero(t *testing.T) {
	for _, widest := range []float64{0.5, 3, 42, 139, 300} {
		s := around(widest)
		if s.at(0) != 50 || s.at(-widest) != 0 || s.at(widest) != 100 {
			t.Errorf("%v: %v, %v, %v", widest, s.at(-widest), s.at(0), s.at(widest))
		}
		zero := false
		for i, tick := range s.ticks {
			zero = zero || tick == 0
			if i > 0 && tick <= s.ticks[i-1] {
				t.Errorf("%v: ticks %v", widest, s.ticks)
			}
		}
		if !zero || len(s.ticks) > maxTicks+2 {
			t.Errorf("%v: ticks %v", widest, s.ticks)
		}
	}
}
