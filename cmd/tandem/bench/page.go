package bench

import (
	"bytes"
	"fmt"
	"os"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
)

// writePage shows a result as a page.
func writePage(file string, r *Result) error {
	var b bytes.Buffer
	if err := report.MeasuredHTML(&b, measured(r)); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// measured is a result as the page takes it: the same cells as in the text.
func measured(r *Result) *report.Measured {
	m := &report.Measured{Title: "Tandem bench", Summary: summary(r), About: about(r)}
	for _, t := range tables(r) {
		shown := report.MeasuredTable{Name: t.name, Columns: t.head, Notes: t.notes}
		for i, cells := range t.cells {
			shown.Rows = append(shown.Rows, report.MeasuredRow{Cells: cells, Missed: !t.met[i]})
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

// summary is the verdicts in a sentence.
func summary(r *Result) string {
	met, of := 0, 0
	for _, row := range r.Rows {
		if row.Missing == "" {
			of++
		}
		if row.Met {
			met++
		}
	}
	return fmt.Sprintf("%d of %d figures met their bar.", met, of)
}
