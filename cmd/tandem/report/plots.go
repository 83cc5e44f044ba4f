package report

import (
	"bytes"
	_ "embed" // the page's template
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
)

// Plots is a page of plots and tables about many runs that are compared. Names and cells are text of the caller; lines and bars are
// drawn.
type Plots struct {
	Title    string
	Lead     string   // what was found, in a sentence or two
	About    []string // what was run, and how; a few words each
	Notes    []string // what a reader must know before trusting the figures
	Tiles    []TrialTile
	Sections []PlotSection
	Tables   []MeasuredTable
}

// PlotSection is a heading with plots below it. A section without any is left out.
type PlotSection struct {
	Title, Note string
	Plots       []Plot
	Bars        []PlotBars
}

// Plot has a line for each of several runs, on common axes that begin at 0, unless Log.
type Plot struct {
	Title, Note string
	X, Y        string   // what the axes show, with their units
	Times       bool     // X is in milliseconds: its axis names units
	Log         bool     // the axis of X is logarithmic; points at or below 0 are left out
	Names       []string // of the positions 0, 1, 2, … on the axis of X; nil: they are numbers
	Steps       bool     // each value holds until the next
	Dots        bool     // mark the points
	Lines       []PlotLine
}

// PlotLine is the line of one run, or of several of one kind. X of its points does not descend. Lines of the same Kind, from 0 to
// PlotLines-1, look alike in all plots of a page.
type PlotLine struct {
	Name, Numbers string
	Kind          int
	Points        []MeasuredPoint
}

// PlotLines is how many kinds of lines can be told apart. A plot draws no more.
const PlotLines = 8

// PlotBars has a bar for each of several runs, from 0 to the largest value.
type PlotBars struct {
	Title, Note string
	Bars        []PlotBar
}

// PlotBar is one bar.
type PlotBar struct {
	Name, Numbers string
	Kind          int
	Value         float64
}

var (
	//go:embed plots.html.tmpl
	plotsText string

	// plotsTemplate shares parts with the template of a run's report.
	plotsTemplate = template.Must(template.Must(pageTemplate.Clone()).New("plots").Parse(plotsText))
)

// drawnSection is the input of the template for a section.
type drawnSection struct {
	ID, Title, Note string
	Plots           []drawnPlot
	Bars            []titled
}

// drawnPlot is a drawn Plot.
type drawnPlot struct {
	Plot
	Drawing, Axis template.HTML
	Legend        []drawnLine
	More          int // lines that are not drawn
}

// drawnLine is a line of a legend.
type drawnLine struct {
	Kind, Name, Number string
	Swatch             template.HTML
}

// PlotsHTML writes plots as one self-contained page, as HTML does. The error is the one of w.
func PlotsHTML(w io.Writer, m *Plots) error {
	p := struct {
		*Plots
		Policy string
		Style  template.CSS
		Drawn  []drawnSection
	}{m, stylePolicy(), template.CSS(styleText), nil}
	for i, s := range m.Sections {
		d := drawnSection{ID: "section-" + strconv.Itoa(i+1), Title: s.Title, Note: s.Note}
		for _, plot := range s.Plots {
			if drawn, ok := plot.draw(); ok {
				d.Plots = append(d.Plots, drawn)
			}
		}
		for _, bars := range s.Bars {
			if c := bars.draw(); len(c.Lanes) > 0 {
				d.Bars = append(d.Bars, titled{bars.Title, bars.Note, c})
			}
		}
		if len(d.Plots)+len(d.Bars) > 0 {
			p.Drawn = append(p.Drawn, d)
		}
	}
	var b bytes.Buffer
	if err := plotsTemplate.Execute(&b, p); err != nil {
		return fmt.Errorf("making the page: %w", err)
	}
	if _, err := io.WriteString(w, printable(b.String())); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// seriesKind returns the class of the style sheet for a kind of lines.
func seriesKind(kind int) string {
	return "series-" + strconv.Itoa(((kind%PlotLines)+PlotLines)%PlotLines)
}

// kept returns the lines with the points that can be drawn, and how many lines are left out because they are too many.
func (p *Plot) kept() (lines []PlotLine, all []MeasuredPoint, more int) {
	for _, l := range p.Lines {
		l.Points = slices.DeleteFunc(slices.Clone(l.Points), func(at MeasuredPoint) bool {
			return !plausible(at.X) || !plausible(at.Y) || p.Log && at.X <= 0
		})
		switch {
		case len(l.Points) == 0:
		case len(lines) == PlotLines:
			more++
		default:
			lines, all = append(lines, l), append(all, l.Points...)
		}
	}
	return lines, all, more
}

// draw draws the lines; false if there is no point.
func (p Plot) draw() (d drawnPlot, ok bool) {
	lines, all, more := p.kept()
	if len(all) == 0 {
		return drawnPlot{}, false
	}
	x, y, nameOf := p.scales(all)
	said := ""
	for _, l := range lines {
		said += l.Name + ": " + pointsText(thinPoints(l.Points)) + " "
	}
	drawn := draw(plotTop+plotHeight+1, p.Title, p.Y+" by "+p.X+". "+said)
	drawn.grid(x, plotTop, plotHeight)
	top := func(v float64) float64 { return plotHeight * (1 - y.at(v)/100) }
	for _, t := range slices.Backward(y.ticks) {
		drawn.level("rule", plotTop+top(t))
		drawn.letters(plotTop-4+int(math.Round(top(t))), number(t))
	}
	drawn.plane(plotTop, plotHeight, func() {
		for _, l := range lines {
			drawn.path("curve "+seriesKind(l.Kind), p.path(l.Points, x, top))
		}
	})
	d = drawnPlot{Plot: p, Axis: axisOf(x, nameOf), More: more}
	for _, l := range lines {
		if p.Dots {
			drawn.group(seriesKind(l.Kind), func() {
				drawn.group("dots", func() {
					for _, at := range l.Points {
						drawn.dot(x.at(at.X), plotTop+top(at.Y))
					}
				})
			})
		}
		d.Legend = append(d.Legend, drawnLine{seriesKind(l.Kind), l.Name, l.Numbers, swatch(l.Kind)})
	}
	d.Drawing = drawn.html()
	return d, true
}

// scales returns the axes, and how ticks of the axis of X are named.
func (p *Plot) scales(all []MeasuredPoint) (x, y scale, nameOf func(float64) string) {
	var xs, ys []float64
	for _, at := range all {
		xs, ys = append(xs, at.X), append(ys, at.Y)
	}
	across, up := sorted(xs), sorted(ys)
	y, nameOf = linear(up.percentile(100)), number
	switch {
	case p.Names != nil:
		return positions(len(p.Names)), y, func(v float64) string { return positionName(p.Names[int(v)]) }
	case p.Log:
		x = logarithmic(across)
	default:
		x = linear(across.percentile(100))
	}
	if p.Times {
		nameOf = tick
	}
	return x, y, nameOf
}

// positionName is the name of a position, short enough for its place on an axis.
func positionName(name string) string { return escape(cut(name, 12)) }

// positions returns a scale with n places, each in the middle of its part of the width.
func positions(n int) scale {
	s := scale{low: -0.5, high: float64(n) - 0.5}
	for i := range n {
		s.ticks = append(s.ticks, float64(i))
	}
	return s
}

// path returns the line through points.
func (p *Plot) path(points []MeasuredPoint, x scale, top func(float64) float64) string {
	if !p.Steps {
		return polyline(points, x, top)
	}
	corners := make([]MeasuredPoint, 0, 2*len(points))
	for i, at := range points {
		if i > 0 {
			corners = append(corners, MeasuredPoint{at.X, points[i-1].Y})
		}
		corners = append(corners, at)
	}
	return polyline(corners, x, top)
}

// thinPoints returns at most ten of the points, for readers who hear them.
func thinPoints(points []MeasuredPoint) []MeasuredPoint {
	const most = 10
	if len(points) <= most {
		return points
	}
	thin := make([]MeasuredPoint, most)
	for i := range thin {
		thin[i] = points[i*(len(points)-1)/(most-1)]
	}
	return thin
}

// swatch shows what a line looks like.
func swatch(kind int) template.HTML {
	return template.HTML(`<svg aria-hidden="true" class="swatch" width="26" height="8"><path class="curve ` + seriesKind(kind) + `" d="M1 4H25"/></svg>`)
}

// draw draws the bars.
func (b PlotBars) draw() (c chart) {
	bars, most := b.Bars, 0.0
	for _, one := range bars {
		if plausible(one.Value) {
			most = max(most, one.Value)
		}
	}
	if len(bars) > maxLanes {
		c.More, bars = len(bars)-maxLanes, bars[:maxLanes]
	}
	for _, one := range bars {
		drawing := decorate(10)
		drawing.rect("ground", box{to: 100, height: 10})
		if plausible(one.Value) && most > 0 {
			drawing.rect("fill", box{to: 100 * one.Value / most, height: 10})
		}
		c.Lanes = append(c.Lanes, lane{Name: one.Name, Kind: seriesKind(one.Kind), Numbers: one.Numbers, Drawing: drawing.html()})
	}
	return c
}
