package bench

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// absent stands where nothing was measured.
const absent = "–"

// column is one column of the tables.
type column struct {
	name string
	cell func(r *Row) string
	// optional columns are shown only if a row of the table has something in them.
	optional bool
}

// columns are those of every table. Text and page have the same.
func columns() []column {
	return []column{
		{"series", func(r *Row) string { return r.Series }, false},
		{"floor", func(r *Row) string { return value(r.Floor) }, true},
		{"tandem", func(r *Row) string { return value(r.Ours) }, false},
		{"ratio", func(r *Row) string { return decimals(r.Ratio, 2) }, true},
		{"rounds", (*Row).extremes, true},
		{"bar", func(r *Row) string { return r.ours(func(*Figure) string { return short(r.Bar) }) }, false},
		{"", (*Row).verdict, false},
		{"other", func(r *Row) string { return value(r.Other) }, true},
		{"ratio", func(r *Row) string { return decimals(r.OtherRatio, 2) }, true},
		{"objects", func(r *Row) string { return r.ours(func(f *Figure) string { return number(f.Objects, 0) }) }, true},
		{"/s·core", func(r *Row) string { return r.ours(func(f *Figure) string { return decimals(f.PerCore, 0) }) }, true},
		{"+p50", func(r *Row) string { return r.ours(func(f *Figure) string { return number(f.P50, 2) }) }, true},
		{"+p99", func(r *Row) string { return r.ours(func(f *Figure) string { return number(f.P99, 2) }) }, true},
		{"floor's", (*Row).beside, true},
		{"MiB", func(r *Row) string { return r.ours(func(f *Figure) string { return decimals(f.Peak, 0) }) }, true},
	}
}

// ours is a cell of our figure.
func (r *Row) ours(cell func(f *Figure) string) string {
	if r.Ours == nil {
		return absent
	}
	return cell(r.Ours)
}

// beside is the floor's 99th percentile where delays are judged.
func (r *Row) beside() string {
	if r.Floor == nil || r.Ratio != 0 {
		return absent
	}
	return number(r.Floor.P99, 2)
}

// extremes are of the rounds; of one there are none.
func (r *Row) extremes() string {
	if r.Ours == nil || r.Least == r.Most {
		return absent
	}
	return short(r.Least) + "–" + short(r.Most)
}

func (r *Row) verdict() string {
	switch {
	case r.Missing != "":
		return absent
	case r.Met:
		return "met"
	}
	return "MISSED"
}

func value(f *Figure) string {
	if f == nil {
		return absent
	}
	return short(f.Value)
}

// short shows what may be large or small, with three digits.
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

// decimals shows a number that was measured if it is not 0.
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

// table is rows of one kind as text.
type table struct {
	name  string
	head  []string
	cells [][]string
	met   []bool   // by row; rows without figures count as met
	notes []string // about rows without figures
}

// order has what is held against limits come last.
func order(table string) int { return strings.Index(table, tableLimits) }

// tables are the rows of a result, in the order in which their tables first appear.
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
		t.met = append(t.met, r.Met || r.Missing != "")
		if r.Missing != "" {
			t.notes = append(t.notes, fmt.Sprintf("%s was not measured: %s", r.Series, r.Missing))
		}
	}
	return t
}

// text shows a result as tables that fit a README.
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

// about is what a reader has to know of a result.
func about(r *Result) []string {
	return []string{
		fmt.Sprintf("%s; %s; %d rounds of %v; took %v", r.Machine, r.Started.Format(time.DateTime), r.Rounds, r.Span,
			r.Took.Round(time.Second)),
		"Bars are for the ratio to the floor, or for the value where there is no ratio. Delays below 0 are noise.",
	}
}

// aligned writes columns, the first to the left and the others to the right.
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
