package bench

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
)

// absent is shown for values that were not measured.
const absent = "–"

// column is one column of the tables.
type column struct {
	name string
	cell func(r *Row) string
	// optional columns are shown only if a row of the table has a value in them.
	optional bool
}

// columns returns the columns of every table, in the text and on the page.
func columns() []column {
	return []column{
		{"series", func(r *Row) string { return r.Series }, false},
		{"baseline", func(r *Row) string { return value(r.Baseline) }, true},
		{"tandem", func(r *Row) string { return value(r.Ours) }, false},
		{"ratio", func(r *Row) string { return decimals(r.Ratio, 2) }, true},
		{"min–max", (*Row).extremes, true},
		{"limit", func(r *Row) string { return r.ours(func(*Figure) string { return short(r.Limit) }) }, false},
		{"", (*Row).verdict, false},
		{"other", func(r *Row) string { return value(r.Other) }, true},
		{"ratio", func(r *Row) string { return decimals(r.OtherRatio, 2) }, true},
		{"allocs/req", func(r *Row) string { return r.ours(func(f *Figure) string { return number(f.Allocs, 0) }) }, true},
		{"req/s/core", func(r *Row) string { return r.ours(func(f *Figure) string { return decimals(f.PerCore, 0) }) }, true},
		{"+p50", func(r *Row) string { return r.ours(func(f *Figure) string { return number(f.P50, 2) }) }, true},
		{"+p99", func(r *Row) string { return r.ours(func(f *Figure) string { return number(f.P99, 2) }) }, true},
		{"baseline +p99", (*Row).beside, true},
		{"MiB", func(r *Row) string { return r.ours(func(f *Figure) string { return decimals(f.Peak, 0) }) }, true},
	}
}

// ours returns a cell of our figure.
func (r *Row) ours(cell func(f *Figure) string) string {
	if r.Ours == nil {
		return absent
	}
	return cell(r.Ours)
}

// beside returns the baseline's 99th percentile where latencies are judged.
func (r *Row) beside() string {
	if r.Baseline == nil || r.Ratio != 0 {
		return absent
	}
	return number(r.Baseline.P99, 2)
}

// extremes returns the extremes of the rounds, or nothing for a single round.
func (r *Row) extremes() string {
	if r.Ours == nil || r.Min == r.Max {
		return absent
	}
	return short(r.Min) + "–" + short(r.Max)
}

func (r *Row) verdict() string {
	switch {
	case r.Missing != "":
		return absent
	case r.Passed:
		return "ok"
	}
	return "OVER"
}

func value(f *Figure) string {
	if f == nil {
		return absent
	}
	return short(f.Value)
}

// short formats a value of any magnitude with three digits.
func short(v float64) string {
	switch {
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	case math.Abs(v) >= 1 || v == 0:
		return strings.TrimSuffix(fmt.Sprintf("%.2f", v), ".00")
	}
	return fmt.Sprintf("%.3f", v)
}

// decimals formats a measured number, or nothing for 0.
func decimals(v float64, digits int) string {
	if v == 0 {
		return absent
	}
	return fmt.Sprintf("%.*f", digits, v)
}

func number(v *float64, digits int) string {
	if v == nil {
		return absent
	}
	return fmt.Sprintf("%.*f", digits, *v)
}

// table holds the rows of one kind as text.
type table struct {
	name  string
	head  []string
	cells [][]string
	ok    []bool   // by row: not above its limit; rows without figures count as such
	notes []string // about rows without figures
}

// order sorts the table of absolute limits last.
func order(table string) int { return strings.Index(table, tableAbsolute) }

// tables returns the tables of a result, in the order in which they first appear.
func tables(r *Result) (all []*table) {
	byName := map[string][]*Row{}
	var names []string
	for i := range r.Rows {
		row := &r.Rows[i]
		if byName[row.Table] == nil {
			names = append(names, row.Table)
		}
		byName[row.Table] = append(byName[row.Table], row)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	for _, name := range names {
		all = append(all, newTable(name, byName[name]))
	}
	return all
}

func newTable(name string, rows []*Row) *table {
	t := &table{name: name, cells: make([][]string, len(rows))}
	for _, c := range columns() {
		cells, filled := make([]string, len(rows)), !c.optional
		for i, r := range rows {
			cells[i] = c.cell(r)
			filled = filled || cells[i] != absent
		}
		if !filled {
			continue
		}
		t.head = append(t.head, c.name)
		for i := range rows {
			t.cells[i] = append(t.cells[i], cells[i])
		}
	}
	for _, r := range rows {
		t.ok = append(t.ok, r.Passed || r.Missing != "")
		if r.Missing != "" {
			t.notes = append(t.notes, fmt.Sprintf("%s was not measured: %s", r.Series, r.Missing))
		}
	}
	return t
}

// text writes a result as tables that fit into a page of docs.
func text(w io.Writer, r *Result) error {
	var b strings.Builder
	for _, line := range about(r) {
		fmt.Fprintln(&b, line)
	}
	for _, t := range tables(r) {
		fmt.Fprintf(&b, "\n%s\n", t.name)
		aligned(&b, append([][]string{t.head}, t.cells...))
		for _, note := range t.notes {
			fmt.Fprintln(&b, note)
		}
	}
	for _, c := range r.Curves {
		fmt.Fprintf(&b, "\n%s: %s\n", c.Name, c.growth())
		lines := [][]string{{c.X}, {c.Y}}
		for _, p := range c.Points {
			lines[0], lines[1] = append(lines[0], fmt.Sprintf("%g", p.X)), append(lines[1], short(p.Y))
		}
		aligned(&b, lines)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// about returns the conditions of a measurement.
func about(r *Result) []string {
	return []string{
		fmt.Sprintf("%s; %s; %d rounds of %v; took %v", r.Machine, r.Started.Format(time.DateTime), r.Rounds, r.Span,
			r.Took.Round(time.Second)),
		"limit: of the ratio to the baseline, or of the value where there is no ratio. min–max: of the rounds.",
		"+p50, +p99: latency beyond the engines', of pickers beyond the baseline's, ms; below 0: noise. MiB: peak RSS.",
	}
}

// aligned writes columns, the first left-aligned, the others right-aligned.
func aligned(b *strings.Builder, lines [][]string) {
	var widths []int
	for _, line := range lines {
		for i, cell := range line {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range lines {
		var text strings.Builder
		for i, cell := range line {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				text.WriteString(cell + gap)
			} else {
				text.WriteString("  " + gap + cell)
			}
		}
		fmt.Fprintln(b, strings.TrimRight(text.String(), " "))
	}
}

// writePage writes a result as a page.
func writePage(file string, r *Result) error {
	var b bytes.Buffer
	if err := report.MeasuredHTML(&b, measured(r)); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// measured converts a result for the page, with the same cells as in the text.
func measured(r *Result) *report.Measured {
	m := &report.Measured{Title: "Tandem bench", Summary: summary(r), About: about(r)}
	for _, t := range tables(r) {
		shown := report.MeasuredTable{Name: t.name, Columns: t.head, Notes: t.notes}
		for i, cells := range t.cells {
			shown.Rows = append(shown.Rows, report.MeasuredRow{Cells: cells, Marked: !t.ok[i]})
		}
		m.Tables = append(m.Tables, shown)
	}
	for _, c := range r.Curves {
		shown := report.MeasuredCurve{Name: c.Name, X: c.X, Y: c.Y, Note: c.growth()}
		for _, p := range c.Points {
			shown.Points = append(shown.Points, report.MeasuredPoint(p))
		}
		m.Curves = append(m.Curves, shown)
	}
	return m
}

// summary counts the verdicts in a sentence.
func summary(r *Result) string {
	within, of := 0, 0
	for _, row := range r.Rows {
		if row.Missing == "" {
			of++
		}
		if row.Passed {
			within++
		}
	}
	return fmt.Sprintf("%d of %d figures are within their limit.", within, of)
}
