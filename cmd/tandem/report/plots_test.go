package report

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func renderPlots(t testing.TB, m *Plots) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := PlotsHTML(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// plots returns the pages of plots to check.
func plots() map[string]*Plots {
	long := strings.Repeat("W", 3000)
	inf, nan := math.Inf(1), math.NaN()
	return map[string]*Plots{"sample": samplePlots(), "empty": {Title: "Nothing", Lead: "Nothing."},
		"hostile": {Title: evil + long, Lead: evil, About: []string{evil, long}, Notes: []string{evil, long}, Tiles: []TrialTile{{evil, long}},
			Sections: []PlotSection{{Title: "none"}, {Title: evil, Note: long, Bars: []PlotBars{{evil, long, []PlotBar{{evil, long, -3, nan}, {long, evil, 99, 5}, {"a", "b", 1, inf}}}},
				Plots: []Plot{{Title: evil, Note: long, X: evil, Y: long, Names: []string{evil, long}, Lines: []PlotLine{{evil, long, -1, []MeasuredPoint{{0, 1}, {1, 2}}}}},
					{Title: "odd", Log: true, Times: true, Lines: []PlotLine{{evil, evil, 3, []MeasuredPoint{{-1, 5}, {nan, 1}, {2, inf}, {5, 5}, {6, 1e300}}}, {Name: "none"}}}}}},
			Tables: []MeasuredTable{{Name: evil, Columns: []string{evil, long}, Rows: []MeasuredRow{{Cells: []string{evil, long}, Marked: true}}, Notes: []string{evil}}}}}
}

func samplePlots() *Plots {
	cdf := Plot{Title: "Time to first token (TTFT)", X: "TTFT", Y: "Percent of the requests", Times: true, Log: true}
	sweep := Plot{Title: "Goodput", X: "pool", Y: "Requests a second", Names: []string{"4P+2D", "3P+3D", "6B"}, Dots: true}
	over := Plot{Title: "Waiting", X: "time", Y: "Requests", Times: true, Steps: true}
	for i := range PlotLines + 1 {
		name := string(rune('a'+i)) + ".yaml"
		var line, pools, waits []MeasuredPoint
		for j := range 101 {
			line = append(line, MeasuredPoint{math.Exp(float64(j+5*i) / 20), float64(j)})
			waits = append(waits, MeasuredPoint{float64(j) * 1e3, float64((j * (i + 3)) % 17)})
		}
		for j := range 3 {
			pools = append(pools, MeasuredPoint{float64(j), float64(i + j)})
		}
		cdf.Lines = append(cdf.Lines, PlotLine{name, "p50 12.5 · p95 1033 ms", i, line})
		sweep.Lines = append(sweep.Lines, PlotLine{Name: name, Kind: i, Points: pools})
		over.Lines = append(over.Lines, PlotLine{Name: name, Kind: i, Points: waits})
	}
	return &Plots{Title: "Replay of conversation_trace.jsonl", Lead: "18 runs. Most requests that met the objective, 1.67 a second: a.yaml 4P+2D.",
		About: []string{"2000 requests"}, Notes: []string{"Up to 1005 requests of a run were refused."}, Tiles: []TrialTile{{"runs", "18"}},
		Sections: []PlotSection{{Title: "By pool", Plots: []Plot{sweep}}, {Title: "Every run",
			Bars: []PlotBars{{"Goodput", "Requests a second.", []PlotBar{{"a.yaml 4P+2D", "1.67/s", 0, 1.67}, {"b.yaml 4P+2D", "0/s", 1, 0}}}}},
			{Title: "Latency", Note: "The axes of time are logarithmic.", Plots: []Plot{cdf, over}}},
		Tables: []MeasuredTable{{Name: "Every run.", Columns: []string{"config", "goodput/s"}, Rows: []MeasuredRow{{Cells: []string{"a.yaml", "1.67"}},
			{Cells: []string{"b.yaml", "0"}, Marked: true}}}}}
}

func TestPlotsPageContents(t *testing.T) {
	sample, empty := string(renderPlots(t, samplePlots())), string(renderPlots(t, &Plots{Sections: []PlotSection{{Title: "Void", Plots: []Plot{{Title: "no lines"}}}}}))
	for name, want := range map[string]string{
		"section":              `<h2 id="section-1">By pool</h2>`,
		"names on the axis":    ">3P+3D</text>",
		"line of the first":    `<path class="curve series-0"`,
		"legend":               `<li class="series-1"><svg aria-hidden="true" class="swatch"`,
		"times have units":     ">100 ms</text>",
		"a ninth line":         "1 more lines are not drawn",
		"for who does not see": "a.yaml: 0 at 0, 1 at 1, 2 at 2.",
		"bar":                  `<li class="lane series-0"><p class="head"><span class="name">a.yaml 4P&#43;2D`,
		"marked row":           `<tr class="marked"><th scope="row">b.yaml`,
	} {
		if !strings.Contains(sample, want) {
			t.Errorf("%s: the page does not have %q", name, want)
		}
	}
	if strings.Contains(empty, "Void") || !strings.Contains(empty, "Nothing was run.") {
		t.Error("a section without plots is shown, or nothing says that there are none")
	}
	if err := PlotsHTML(full{}, samplePlots()); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("error %v", err)
	}
}

// A line of steps keeps each value until the next one.
func TestStepsHold(t *testing.T) {
	p := Plot{Steps: true}
	got := p.path([]MeasuredPoint{{0, 1}, {50, 3}, {100, 2}}, linear(100), func(v float64) float64 { return v })
	if want := "M0 1L500 1L500 3L1000 3L1000 2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
