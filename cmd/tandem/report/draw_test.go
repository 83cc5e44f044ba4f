package report

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestScales(t *testing.T) {
	for name, c := range map[string]struct {
		scale     scale
		low, high float64
		ticks     []float64
	}{
		"linear":                   {linear(267), 0, 267, []float64{0, 50, 100, 150, 200, 250}},
		"linear, nothing":          {linear(0), 0, 0.001, []float64{0, 0.0002, 0.0004, 0.0006, 0.0008, 0.001}},
		"linear, large":            {linear(9e11), 0, 9e11, []float64{0, 2e11, 4e11, 6e11, 8e11}},
		"a decade":                 {logarithmic(spread{12, 90}, spread{15}), 10, 100, []float64{10, 20, 50, 100}},
		"one value":                {logarithmic(spread{5}), 5, 10, []float64{5, 10}},
		"many decades":             {logarithmic(spread{0.002, 1e9}), 0.002, 1e9, []float64{0.01, 1, 100, 1e4, 1e6, 1e8}},
		"below the smallest value": {logarithmic(spread{0, 3}), 0.001, 5, []float64{0.001, 0.01, 0.1, 1}},
		"no values":                {logarithmic(), 0.001, 0.002, []float64{0.001, 0.002}},
		"a decade is no digit":     {logarithmic(spread{100, 1000}), 100, 1000, []float64{100, 200, 500, 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, b) }
			if !near(c.scale.low, c.low) || !near(c.scale.high, c.high) || !slices.EqualFunc(c.scale.ticks, c.ticks, near) {
				t.Errorf("from %v to %v with %v, want %v to %v with %v", c.scale.low, c.scale.high, c.scale.ticks, c.low, c.high,
					c.ticks)
			}
			if from, to := c.scale.at(c.scale.low), c.scale.at(c.scale.high); from != 0 || to != 100 {
				t.Errorf("from %v%% to %v%%", from, to)
			}
		})
	}
	if at := logarithmic(spread{1, 100}).at(10); math.Abs(at-50) > 1e-9 {
		t.Errorf("10 of 1 to 100 is at %v%%", at)
	}
	if at := linear(10).at(1e12); at != 100 {
		t.Errorf("a value outside the scale is at %v%%", at)
	}
}

// Tokens that arrive in one packet have gaps of microseconds, which would take up most of the axis.
func TestAxisIsOfLegibleValues(t *testing.T) {
	for _, c := range []struct {
		name  string
		given []spread
		low   float64
	}{
		{"some tokens together", []spread{{0.001, 0.004, 6, 6.1, 6.2, 9}}, 5},
		{"in one of two rows", []spread{{6, 6.1, 9}, {0.001, 15, 16}}, 5},
		{"most tokens together", []spread{{0.001, 0.001, 0.001, 6}}, 0.001},
		{"slow rows", []spread{{40, 100, 200}, {1000, 1100}}, 20},
		{"nothing", []spread{{}}, 0.001},
	} {
		t.Run(c.name, func(t *testing.T) {
			if low := logarithmic(legible(c.given)...).low; math.Abs(low-c.low) > 1e-9 {
				t.Errorf("begins at %v ms, want %v", low, c.low)
			}
		})
	}
}

func TestWords(t *testing.T) {
	for name, c := range map[string]struct{ got, want string }{
		"zero":                   {millis(0), "0.0"},
		"microseconds":           {millis(0.0448), "0.04"},
		"nearly one":             {millis(0.997), "1.0"},
		"milliseconds":           {millis(312.44), "312.4"},
		"very long":              {millis(123456789), "1.23e+08"},
		"absent":                 {millis(math.NaN()), absent},
		"tick of 0":              {tick(0), "0"},
		"tick of 20 µs":          {tick(0.02), "20 µs"},
		"tick of 5 ms":           {tick(5), "5 ms"},
		"tick of 2.5 s":          {tick(2500), "2.5 s"},
		"bytes":                  {bytesText(1023), "1023 B"},
		"KiB":                    {bytesText(1536), "1.5 KiB"},
		"MiB":                    {bytesText(3 << 20), "3.0 MiB"},
		"GiB":                    {bytesText(5 << 30), "5.0 GiB"},
		"unknown KV":             {kibibytes(-1), absent},
		"KV":                     {kibibytes(32768), "32"},
		"fraction":               {fraction(0.94359), "0.944"},
		"whole":                  {fraction(2), "2"},
		"cut":                    {cut("long chat, streamed", 10), "long chat…"},
		"cut, not needed":        {cut("long chat", 9), "long chat"},
		"one line":               {cut("a\n\tb", 9), "a b"},
		"no escape":              {printable("\x1b[32mok"), "\ufffd[32mok"},
		"no change of direction": {printable("a\u202eb"), "a\ufffdb"},
		"other scripts":          {printable("größer 日本 “x”"), "größer 日本 “x”"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.got != c.want {
				t.Errorf("got %q, want %q", c.got, c.want)
			}
		})
	}
}

// TestEveryReasonAndPhaseHasAMeaning fails for a reason or phase of pd that this package does not explain.
func TestEveryReasonAndPhaseHasAMeaning(t *testing.T) {
	for _, r := range []pd.Reason{pd.Uncached, pd.Always, pd.Forced, pd.External, pd.DecodeOnly, pd.BelowThreshold, pd.ShortPrompt,
		pd.Bypassed, pd.NotSplittable, pd.Unplanned, pd.NoMedia,
		pd.NoPrefill, pd.PrefillFailed, pd.HandoffInvalid, pd.HandoffLate, pd.TransferFailed, pd.WrongProtocol, pd.BadPDHeader, pd.BadRequest,
		pd.DuplicateKey,
		pd.TooLarge, pd.UntrustedPeer, pd.DeniedTarget, pd.NotCached, pd.NoEndpoint, pd.Saturated, pd.QueueFull, pd.QueueTimeout, pd.Evicted, pd.Budget, pd.Draining, pd.Deadline,
		pd.LongHeader, pd.SlowBody, pd.Busy, pd.InternalError} {
		if meaning(string(r)) == "" {
			t.Errorf("%s has none", r)
		}
	}
	if len(phaseOrder) != pd.PhaseCount+1 || len(phaseMeaning) != len(phaseOrder)+1 || phaseMeaning[pd.PhaseOverlap] == "" {
		t.Errorf("%d phases are shown and %d explained of %d and the overlap", len(phaseOrder), len(phaseMeaning), pd.PhaseCount+1)
	}
}

func TestSteps(t *testing.T) {
	samples := []LoadSample{{At: 100, Running: 0}, {At: 200, Running: 2}, {At: 300, Running: 1}}
	got := steps(samples, 100, linear(400), 60, func(x LoadSample) float64 { return float64(x.Running) / 2 })
	if want := "M0 60H250V0H500V30H1000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := area("M250 60H1000", 60), "M250 60H1000V60H250Z"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestThinnedLoadKeepsPeaks(t *testing.T) {
	s := series{}
	for i := range 1000 {
		s.samples = append(s.samples, LoadSample{At: float64(i)})
	}
	s.samples[777].Waiting, s.samples[778].KVUsage = 9, 0.9
	thin := series{samples: s.thinned()}
	if p := thin.peak(); len(thin.samples) != maxSteps || p.Waiting != 9 || p.KVUsage != 0.9 {
		t.Errorf("%d samples with a peak of %+v", len(thin.samples), p)
	}
}

// TestParametersOfAnyType: parameters are the decider's own struct in memory, and a map when read from JSON.
func TestParametersOfAnyType(t *testing.T) {
	type own struct {
		NonCachedTokens int `json:"nonCachedTokens"`
	}
	for name, c := range map[string]struct {
		of   any
		want int
	}{
		"struct": {own{256}, 1}, "pointer": {&own{256}, 1}, "map": {map[string]any{"nonCachedTokens": 256}, 1},
		"raw": {json.RawMessage(`{"nonCachedTokens":256}`), 1}, "none": {nil, 0}, "a word": {"x", 0}, "no JSON": {math.NaN(), 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := parameters(c.of)
			if len(got) != c.want || c.want == 1 && got[threshold] != 256.0 {
				t.Errorf("got %v", got)
			}
		})
	}
}
