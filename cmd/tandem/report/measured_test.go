package report

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

func renderMeasured(t testing.TB, m *Measured) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := MeasuredHTML(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// benchmarks returns the benchmark pages to check.
func benchmarks() map[string]*Measured {
	long := strings.Repeat("W", 3000)
	return map[string]*Measured{"sample": sampleBench(), "empty": {Title: "Nothing", Summary: "Nothing."},
		"hostile": {Title: evil + long, Summary: evil, About: []string{evil, long},
			Tables: []MeasuredTable{{Name: evil, Columns: []string{evil, long}, Rows: []MeasuredRow{{Cells: []string{evil,
				long}, Marked: true}},
				Notes: []string{evil}}},
			Curves: []MeasuredCurve{{Name: evil, X: evil, Y: long, Note: evil, Points: []MeasuredPoint{{math.NaN(), 1}, {1,
				math.Inf(1)}, {-1, -1}}},
				{Name: "one", X: "x", Y: "y", Points: []MeasuredPoint{{5, 5}}}, {Name: "at 0", X: "x", Y: "y",
					Points: []MeasuredPoint{{0, 0}}},
				{Name: "none"}}}}
}

func sampleBench() *Measured {
	return &Measured{Title: "Tandem bench", Summary: "2 of 3 figures met their bar.",
		About: []string{"2 × AMD EPYC, linux", "5 rounds of 500ms"},
		Tables: []MeasuredTable{{Name: "Sidecar: CPU time of a request, ms", Columns: []string{"series", "baseline", "tandem",
			"ratio", "limit", ""},
			Rows: []MeasuredRow{{Cells: []string{"local, 1 kB", "0.091", "0.098", "1.08", "1.15", "met"}},
				{Cells: []string{"P/D, 4 MB", "4.20", "7.15", "1.43", "1.25", "MISSED"}, Marked: true}},
			Notes: []string{"path, local was not measured: there is no Envoy"}}},
		Curves: []MeasuredCurve{
			{Name: "picker, decision", X: "endpoints", Y: "µs", Note: "linear or better",
				Points: []MeasuredPoint{{10, 9}, {100, 11}, {1000, 33}, {10000, 249}}},
			{Name: "sidecar, streams", X: "open streams", Y: "MiB resident", Note: "linear or better",
				Points: []MeasuredPoint{{0, 14.8}, {100, 21.9}, {1000, 68.9}, {5000, 266}, {10000, 517}}}}}
}

func TestMeasuredPageContents(t *testing.T) {
	page := string(renderMeasured(t, sampleBench()))
	for _, want := range []string{"<h1>Tandem bench</h1>", "2 of 3 figures met their bar.",
		`<tr class="marked"><th scope="row">P/D, 4 MB</th><td>4.20</td>`,
		"was not measured", "µs by endpoints: 9 at 10, 11 at 100, 33 at 1000, 249 at 10000.",
		"MiB resident by open streams: linear or better"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	empty := string(renderMeasured(t, &Measured{}))
	if !strings.Contains(empty, "No series was measured.") || !strings.Contains(empty, "Growth was not measured.") {
		t.Error("an empty page does not say so")
	}
	if err := MeasuredHTML(full{}, sampleBench()); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("error %v", err)
	}
}

// The guide shows linear growth: a linear curve coincides with it.
func TestGuide(t *testing.T) {
	for name, c := range map[string]struct {
		points, want []MeasuredPoint
		log          bool
	}{
		"from 0":        {[]MeasuredPoint{{0, 10}, {5, 11}, {10, 30}}, []MeasuredPoint{{0, 10}, {10, 30}}, false},
		"by powers":     {[]MeasuredPoint{{10, 9}, {1000, 300}}, []MeasuredPoint{{10, 3}, {1000, 300}}, true},
		"a single one":  {[]MeasuredPoint{{10, 9}}, []MeasuredPoint{{10, 9}, {10, 9}}, true},
		"nothing but 0": {[]MeasuredPoint{{0, 0}}, []MeasuredPoint{{0, 0}, {0, 0}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := scales(c.points)
			if got := guide(c.points, x); x.log != c.log || y.log != c.log || !slices.Equal(got, c.want) {
				t.Errorf("%v, logarithmic %v", got, x.log)
			}
		})
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.05: "0.05", 12.34: "12.3", 999: "999", 10000: "10000",
		1234567: "1234567"} {
		if got := number(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}
