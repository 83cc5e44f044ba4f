package fit

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/replay/engine"
)

// Table returns the table for a model of the engine.
func (r *Result) Table() (*engine.Table, error) {
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		return nil, err
	}
	t, _, err := engine.ReadTable(&text)
	return t, err
}

// Write writes the table with the settings, as tandem replay reads them, and with what a person wants to know of the fit.
func (r *Result) Write(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "# Step times of %s, measured in %d rounds.\n", r.Model, r.Rounds)
	for _, line := range append(r.Quality(), r.Notes...) {
		fmt.Fprintf(&text, "# %s\n", line)
	}
	r.Settings.Write(&text)
	fmt.Fprintln(&text, strings.Join(engine.Columns, ","))
	for _, row := range r.Rows {
		fmt.Fprintf(&text, "%s,%d,%d,%d,%.4g\n", row.Kind, row.New, row.Batch, row.Context, row.Milliseconds)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// Quality says how well the table describes what was measured.
func (r *Result) Quality() (lines []string) {
	spreads := make([]float64, len(r.Rows))
	for i, row := range r.Rows {
		spreads[i] = row.Spread
	}
	slices.Sort(spreads)
	lines = append(lines, fmt.Sprintf("Half of the times of a row lie within %.0f %% of its middle (median of the rows); in the worst row, within %.0f %%.",
		100*spreads[len(spreads)/2], 100*spreads[len(spreads)-1]))
	if len(r.Checks) == 0 {
		return lines
	}
	off := slices.Clone(r.Checks)
	slices.SortFunc(off, func(a, b Check) int { return cmp.Compare(math.Abs(a.Error()), math.Abs(b.Error())) })
	worst := off[len(off)-1]
	return append(lines, fmt.Sprintf("Of %d steps between the rows, the table is off by %.0f %% at the median, and by %.0f %% at worst (%s: %.4g ms measured, %.4g fitted).",
		len(off), 100*math.Abs(off[len(off)/2].Error()), 100*math.Abs(worst.Error()), worst.Step, worst.Measured, worst.Fitted))
}
