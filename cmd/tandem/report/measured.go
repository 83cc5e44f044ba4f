package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page's template
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Measured is the result of a benchmark: tables, whose cells are text of the caller, and curves, which are drawn.
type Measured struct {
	Title   string
	Summary string
	About   []string // what was measured, and how; a few words each
	Tables  []MeasuredTable
	Curves  []MeasuredCurve
}

// MeasuredTable is a table of figures. Each row has as many cells as there are columns.
type MeasuredTable struct {
	Name    string
	Columns []string
	Rows    []MeasuredRow
	Notes   []string // below the table
}

// MeasuredRow is one row.
type MeasuredRow struct {
	Cells  []string
	Marked bool // the row is highlighted
}

// MeasuredCurve shows how one quantity grows with another.
type MeasuredCurve struct {
	Name, X, Y string // X and Y with their units
	Points     []MeasuredPoint
	Note       string
}

// MeasuredPoint is one point of a curve. X ascends.
type MeasuredPoint struct{ X, Y float64 }

var (
	//go:embed measured.html.tmpl
	measuredText string

	// measuredTemplate shares parts with the template of a run's report.
	measuredTemplate = template.Must(template.Must(pageTemplate.Clone()).New("measured").Parse(measuredText))
)

// MeasuredHTML writes a benchmark as one self-contained page, as HTML does. The error is the one of w.
func MeasuredHTML(w io.Writer, m *Measured) error {
	p := struct {
		*Measured
		Policy string
		Style  template.CSS
		Plots  []plot
	}{m, stylePolicy(), template.CSS(styleText), nil}
	for _, c := range m.Curves {
		c.Points = slices.DeleteFunc(slices.Clone(c.Points), func(p MeasuredPoint) bool {
			return !plausible(p.X) ||
				!plausible(p.Y)
		})
		if len(c.Points) > 0 {
			p.Plots = append(p.Plots, newPlot(c))
		}
	}
	var b bytes.Buffer
	if err := measuredTemplate.Execute(&b, p); err != nil {
		return fmt.Errorf("making the page: %w", err)
	}
	if _, err := io.WriteString(w, printable(b.String())); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// stylePolicy returns the Content-Security-Policy of every page: only the embedded style sheet.
func stylePolicy() string {
	sum := sha256.Sum256([]byte(styleText))
	return fmt.Sprintf("default-src 'none'; style-src 'sha256-%s'; base-uri 'none'; form-action 'none'",
		base64.StdEncoding.EncodeToString(sum[:]))
}

// plot is a drawn curve.
type plot struct {
	MeasuredCurve
	Drawing, Axis template.HTML
}

// Positions in a plot, in pixels from its top: each text is above the line that it names.
const (
	plotTop    = 16
	plotHeight = 180
)

// newPlot draws a curve, and next to it a guide that shows linear growth. Axes are logarithmic unless the curve begins at x
// = 0, where a constant part would hide the growth.
func newPlot(c MeasuredCurve) plot {
	x, y := scales(c.Points)
	d := draw(plotTop+plotHeight+1, c.Name, c.Y+" by "+c.X+": "+pointsText(c.Points))
	d.grid(x, plotTop, plotHeight)
	top := func(v float64) float64 { return plotHeight * (1 - y.at(v)/100) }
	for _, t := range slices.Backward(y.ticks) {
		d.level("rule", plotTop+top(t))
		d.letters(plotTop-4+int(math.Round(top(t))), number(t))
	}
	d.plane(plotTop, plotHeight, func() {
		d.path("inflight", polyline(guide(c.Points, x), x, top))
		d.path("curve", polyline(c.Points, x, top))
	})
	d.group("dots", func() {
		for _, p := range c.Points {
			d.dot(x.at(p.X), plotTop+top(p.Y))
		}
	})
	return plot{c, d.html(), axisOf(x, number)}
}

// scales returns the axes for points.
func scales(points []MeasuredPoint) (x, y scale) {
	var xs, ys []float64
	for _, p := range points {
		xs, ys = append(xs, p.X), append(ys, p.Y)
	}
	across, up := sorted(xs), sorted(ys)
	if len(across) == 0 || len(up) == 0 || across[0] == 0 {
		return linear(across.percentile(100)), linear(up.percentile(100))
	}
	return logarithmic(across), logarithmic(up)
}

// guide returns the line of linear growth: between the ends, or on logarithmic axes backwards from the last point, as far as
// growth dominates.
func guide(points []MeasuredPoint, x scale) []MeasuredPoint {
	first, last := points[0], points[len(points)-1]
	if !x.log || last.X == 0 {
		return []MeasuredPoint{first, last}
	}
	return []MeasuredPoint{{first.X, last.Y * first.X / last.X}, last}
}

func polyline(points []MeasuredPoint, x scale, top func(float64) float64) string {
	var b strings.Builder
	for i, p := range points {
		b.WriteString(map[bool]string{true: "M", false: "L"}[i == 0])
		b.WriteString(decimal(10*x.at(p.X)) + " " + decimal(top(p.Y)))
	}
	return b.String()
}

func pointsText(points []MeasuredPoint) string {
	var all []string
	for _, p := range points {
		all = append(all, fmt.Sprintf("%s at %s", number(p.Y), number(p.X)))
	}
	return strings.Join(all, ", ") + "."
}

// number formats a value with three digits.
func number(v float64) string {
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
