package report

import (
	"bytes"
	_ "embed" // the page's template
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
)

// Trial is a measurement of an endpoint under load, of one side or of two that were compared. Cells and numbers are text of the
// caller; distributions, differences and curves are drawn.
type Trial struct {
	Title       string
	Lead        string   // what was found, in a sentence or two
	About       []string // what was measured, and how; a few words each
	Notes       []string // what a reader must know before trusting the figures
	Tiles       []TrialTile
	Compared    string            // the two sides: "auto against bypass"
	Differences []TrialDifference // of the sides
	Charts      []TrialChart
	Curves      []TrialCurves
	Tables      []MeasuredTable
}

// TrialTile is one important number.
type TrialTile struct{ Name, Number string }

// TrialDifference is how much one side differs from the other by a metric. All values are percent of the other side's.
type TrialDifference struct {
	Name, Numbers string
	Kind          string // better, worse or same: the colour
	Median        float64
	Low, High     float64   // of the confidence interval; NaN: there is none
	Pairs         []float64 // the difference in each pair of rounds
}

// TrialChart shows the distributions of one quantity, on a common axis of milliseconds.
type TrialChart struct {
	Title, Note string
	Lanes       []TrialLane
}

// TrialLane is the values of one side, in ms.
type TrialLane struct {
	Name, Numbers string
	Second        bool // the second side: its own colour and mark
	Values        []float64
}

// TrialCurves shows a quantity of both sides by another one.
type TrialCurves struct {
	Name, X, Y, Note string
	Lines            []TrialLine
}

// TrialLine is the curve of one side. X of its points ascends.
type TrialLine struct {
	Name   string
	Second bool
	Points []MeasuredPoint
}

var (
	//go:embed trial.html.tmpl
	trialText string

	// trialTemplate shares parts with the template of a run's report.
	trialTemplate = template.Must(template.Must(pageTemplate.Clone()).New("trial").Parse(trialText))
)

// trialPage is the input of the template.
type trialPage struct {
	*Trial
	Policy     string
	Style      template.CSS
	Comparison chart
	Latency    []titled
	Sweeps     []sweepPlot
}

// titled is a chart with a heading.
type titled struct {
	Title, Note string
	Chart       chart
}

// sweepPlot is a drawn TrialCurves.
type sweepPlot struct {
	TrialCurves
	Drawing, Axis template.HTML
	Legend        []part
}

// TrialHTML writes a trial as one self-contained page, as HTML does. The error is the one of w.
func TrialHTML(w io.Writer, t *Trial) error {
	p := &trialPage{Trial: t, Policy: stylePolicy(), Style: template.CSS(styleText), Comparison: differences(t.Differences)}
	for _, c := range t.Charts {
		if drawn := c.draw(); len(drawn.Lanes) > 0 {
			p.Latency = append(p.Latency, titled{c.Title, c.Note, drawn})
		}
	}
	for _, c := range t.Curves {
		if drawn, ok := c.draw(); ok {
			p.Sweeps = append(p.Sweeps, drawn)
		}
	}
	var b bytes.Buffer
	if err := trialTemplate.Execute(&b, p); err != nil {
		return fmt.Errorf("making the page: %w", err)
	}
	if _, err := io.WriteString(w, printable(b.String())); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// sideKind returns the class of the style sheet for a side.
func sideKind(second bool) string {
	if second {
		return local
	}
	return remote
}

// draw draws the lanes that have values on one logarithmic axis.
func (c TrialChart) draw() (drawn chart) {
	var values []spread
	var lanes []TrialLane
	for _, l := range c.Lanes {
		if s := sorted(l.Values); len(s) > 0 {
			values, lanes = append(values, s), append(lanes, l)
		}
	}
	if len(lanes) > maxLanes {
		drawn.More = len(lanes) - maxLanes
		values, lanes = values[:maxLanes], lanes[:maxLanes]
	}
	common := logarithmic(legible(values)...)
	for i, l := range lanes {
		drawn.Lanes = append(drawn.Lanes, lane{Name: l.Name, Kind: sideKind(l.Second), Numbers: l.Numbers,
			Drawing: strip(fmt.Sprintf("%s of %s", c.Title, l.Name), values[i], common)})
	}
	if len(lanes) > 0 {
		drawn.Axis = axis(common)
	}
	return drawn
}

// widestPercent bounds the axis of differences: beyond it, marks are drawn at its end and the numbers tell.
const widestPercent = 300

// differences draws differences around a common zero: the interval as a box, its median as a thick line, each pair of rounds as a dot.
func differences(all []TrialDifference) (c chart) {
	widest := 1.0
	for _, d := range all {
		for _, v := range append([]float64{d.Median, d.Low, d.High}, d.Pairs...) {
			if a := math.Abs(v); a <= 1e9 { // not NaN either
				widest = max(widest, a)
			}
		}
	}
	if len(all) > maxLanes {
		c.More, all = len(all)-maxLanes, all[:maxLanes]
	}
	on := around(min(widest, widestPercent))
	for _, d := range all {
		c.Lanes = append(c.Lanes, d.lane(on))
	}
	if len(all) > 0 {
		c.Axis = axisOf(on, percentText)
	}
	return c
}

// around returns a scale from -high to high with a tick at 0.
func around(high float64) scale {
	half := linear(high)
	s := scale{low: -high, high: high}
	// Every second tick of a half, so that both together do not touch on a phone.
	for i := len(half.ticks) - 1; i > 0; i-- {
		if i%2 == 0 || len(half.ticks) < 4 {
			s.ticks = append(s.ticks, -half.ticks[i])
		}
	}
	for i, t := range half.ticks {
		if i%2 == 0 || len(half.ticks) < 4 {
			s.ticks = append(s.ticks, t)
		}
	}
	return s
}

func percentText(v float64) string {
	if v > 0 {
		return "+" + strconv.FormatFloat(v, 'g', 3, 64) + "%"
	}
	return strconv.FormatFloat(v, 'g', 3, 64) + "%"
}

func (t TrialDifference) lane(on scale) lane {
	const height, top, bottom = 26, 3, 23
	kind := t.Kind
	if kind != "better" && kind != "worse" {
		kind = "same"
	}
	d := draw(height, "Difference of "+t.Name, t.Numbers)
	d.grid(on, 0, height)
	d.line("zero", on.at(0), 0, height)
	if t.Low <= t.High { // false for NaN
		d.rect("box", box{from: on.at(t.Low), to: on.at(t.High), y: top, height: bottom - top})
	}
	d.group("dots", func() {
		for i, v := range t.Pairs {
			if math.Abs(v) <= 1e9 {
				_, offset := math.Modf(float64(i) * math.Phi)
				d.dot(on.at(v), 6+offset*(height-12))
			}
		}
	})
	if math.Abs(t.Median) <= 1e9 {
		d.line("median", on.at(t.Median), 0, height)
	}
	return lane{Name: t.Name, Kind: kind, Numbers: t.Numbers, Drawing: d.html()}
}

// draw draws the curves on common axes; false if there is no point.
func (c TrialCurves) draw() (sweepPlot, bool) {
	var all []MeasuredPoint
	var lines []TrialLine
	for _, l := range c.Lines {
		kept := TrialLine{Name: l.Name, Second: l.Second}
		for _, p := range l.Points {
			if plausible(p.X) && plausible(p.Y) && p.X > 0 {
				kept.Points = append(kept.Points, p)
			}
		}
		if len(kept.Points) > 0 {
			all, lines = append(all, kept.Points...), append(lines, kept)
		}
	}
	if len(all) == 0 {
		return sweepPlot{}, false
	}
	x, y := scales(all)
	said := ""
	for _, l := range lines {
		said += l.Name + ": " + pointsText(l.Points) + " "
	}
	d := draw(plotTop+plotHeight+1, c.Name, c.Y+" by "+c.X+". "+said)
	d.grid(x, plotTop, plotHeight)
	top := func(v float64) float64 { return plotHeight * (1 - y.at(v)/100) }
	for i := range y.ticks {
		t := y.ticks[len(y.ticks)-1-i]
		d.level("rule", plotTop+top(t))
		d.letters(plotTop-4+int(math.Round(top(t))), number(t))
	}
	drawn := sweepPlot{TrialCurves: c, Axis: axisOf(x, number)}
	d.plane(plotTop, plotHeight, func() {
		for _, l := range lines {
			d.group(sideKind(l.Second), func() { d.path("curve", polyline(l.Points, x, top)) })
		}
	})
	for _, l := range lines {
		d.group(sideKind(l.Second), func() {
			d.group("dots", func() {
				for _, p := range l.Points {
					d.dot(x.at(p.X), plotTop+top(p.Y))
				}
			})
		})
		drawn.Legend = append(drawn.Legend, part{Kind: sideKind(l.Second), Name: l.Name})
	}
	drawn.Drawing = d.html()
	return drawn, true
}
