package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "rewrite testdata")

// madeUp returns a result as a run might have it, with a rival if other is true.
func madeUp(other bool) *Result {
	fig := func(v float64) *Figure {
		return &Figure{Value: v, Allocs: new(281.4), PerCore: 1e3 / v, Busy: 0.93, Bench: 0.08, P50: new(0.21),
			P99: new(-0.4), Peak: 23.4}
	}
	r := &Result{Started: time.Date(2026, 11, 21, 16, 3, 0, 0, time.UTC), Took: 341 * time.Second, Rounds: 5,
		Span:    500 * time.Millisecond,
		Machine: "2 × AMD EPYC, linux, go1.26.8"}
	add := func(table, series string, baseline, ours, limit float64) {
		row := relative(table, series, []float64{ours / baseline, ours / baseline * 1.07, ours / baseline * 0.96}, limit)
		row.Baseline, row.Ours = fig(baseline), fig(ours)
		if row.Baseline.Allocs = nil; other {
			row.Other, row.OtherRatio = fig(ours*2), row.Ratio*2
		}
		r.Rows = append(r.Rows, row)
	}
	add(tableSidecar, "local, 1 kB", 0.0912, 0.0981, 1.15)
	add(tableSidecar, "P/D, chunked, 512 kB", 0.818, 0.972, 1.25)
	add(tableSidecar, "P/D, escaped, 4 MB", 4.2, 12.3, 2)
	r.Rows = append(r.Rows, absolute(tableAbsolute, "sidecar, allocs/req, P/D, 1 kB, 200 events",
		[]float64{194.2}, 300))
	add(tablePicker, "512 kB, remote", 1.13, 1.6, 1.5)
	path := absolute(tablePath, "path, local", []float64{0.41, 0.44, 0.39}, 1)
	path.Baseline = &Figure{Value: 0.31, P99: new(1.2)}
	path.Ours.P99 = new(1.9)
	r.Rows = append(r.Rows, path, missing(tablePath, "path, remote", errors.New("finding Envoy: there is none")))
	held := absolute(tableMemory, "sidecar, P/D, 1000 × 32 kB", []float64{180.2}, 98.1)
	held.Baseline = &Figure{Value: 100}
	r.Rows = append(r.Rows, held)
	r.Curves = []Curve{
		newCurve("picker, CPU time per request", "endpoints", "ms", []Point{{10, 0.08}, {100, 0.095}, {1000, 0.14}, {10000,
			0.362}}),
		newCurve("sidecar, memory by open streams", "open streams", "MiB resident", []Point{{0, 15}, {100, 16}, {1000,
			70}, {10000, 900}}),
	}
	return r
}

// golden compares output with the recorded output.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(want, []byte("\n"))
	for i, line := range bytes.Split(got, []byte("\n")) {
		if i >= len(lines) || !bytes.Equal(line, lines[i]) {
			t.Fatalf("%s differs from line %d on (-update rewrites it): %s", file, i+1, line)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s has more at its end", file)
	}
}

func shownText(t *testing.T, r *Result) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := text(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestText(t *testing.T) {
	golden(t, "table.golden", shownText(t, madeUp(false)))
	golden(t, "against.golden", shownText(t, madeUp(true)))
}

// pageColumns is the longest line of code that docs/benchmarks.md shows without scrolling.
const pageColumns = 112

func TestTextFitsThePage(t *testing.T) {
	r := madeUp(false)
	for _, s := range sidecarTable() {
		if len(s.name) > len(r.Rows[2].Series) {
			r.Rows[2].Series = s.name
		}
	}
	for line := range strings.Lines(string(shownText(t, r))) {
		if n := utf8.RuneCountInString(line) - 1; n > pageColumns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestJSON(t *testing.T) {
	b, err := json.MarshalIndent(madeUp(true), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "result.golden", append(b, '\n'))
}

func TestShow(t *testing.T) {
	dir := t.TempDir()
	s := settings{JSON: filepath.Join(dir, "x.json"), Report: filepath.Join(dir, "x.html")}
	r := madeUp(false)
	var stdout bytes.Buffer
	if err := s.show(&stdout, r); err != nil || !bytes.Equal(stdout.Bytes(), shownText(t, r)) {
		t.Fatalf("%v; stdout\n%s", err, stdout.Bytes())
	}
	b, err := os.ReadFile(s.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var read Result
	if err := json.Unmarshal(b, &read); err != nil || !bytes.Equal(shownText(t, &read), stdout.Bytes()) {
		t.Errorf("the JSON does not have all figures: %v", err)
	}
	page, err := os.ReadFile(s.Report)
	if err != nil {
		t.Fatal(err)
	}
	mustContain(t, string(page), "<h1>Tandem bench</h1>", "5 of 7 figures are within their limit.", "<td>1.03–1.15</td>",
		`<tr class="marked">`,
		"path, remote was not measured: finding Envoy: there is none", "2 × AMD EPYC", "FASTER than linear")
	for _, bad := range []settings{{JSON: dir}, {Report: dir}} {
		if err := bad.show(&stdout, r); err == nil {
			t.Errorf("no error for %+v", bad)
		}
	}
}
