package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// drawing is an inline SVG as wide as its container. Horizontal positions are percent of that width and vertical ones
// pixels, so it stretches from a phone to a desktop without scaling marks or text. Colours are classes of the style sheet,
// which has a light and a dark scheme.
type drawing struct {
	b strings.Builder
}

// draw begins a drawing. Title names it, and desc describes its content to readers who do not see it.
func draw(height int, title, desc string) *drawing {
	d := &drawing{}
	fmt.Fprintf(&d.b, `<svg role="img" width="100%%" height="%d"><title>%s</title><desc>%s</desc>`, height, escape(title),
		escape(desc))
	return d
}

// decorate begins a drawing that only repeats the text next to it.
func decorate(height int) *drawing {
	d := &drawing{}
	fmt.Fprintf(&d.b, `<svg aria-hidden="true" width="100%%" height="%d">`, height)
	return d
}

func (d *drawing) html() template.HTML {
	return template.HTML(d.b.String() + "</svg>") // every string in it was escaped, or is a class name of ours
}

// box is a rectangle: from and to in percent, y and height in pixels.
type box struct {
	from, to  float64
	y, height float64
}

func (d *drawing) rect(class string, r box) {
	fmt.Fprintf(&d.b, `<rect class="%s" x="%s%%" y="%s" width="%s%%" height="%s"/>`,
		class, decimal(r.from), decimal(r.y), decimal(max(0, r.to-r.from)), decimal(r.height))
}

// line is a vertical line.
func (d *drawing) line(class string, at, top, bottom float64) {
	fmt.Fprintf(&d.b, `<line class="%s" x1="%s%%" x2="%[2]s%%" y1="%s" y2="%s"/>`, class, decimal(at), decimal(top),
		decimal(bottom))
}

// level is a horizontal line over the whole width.
func (d *drawing) level(class string, y float64) {
	fmt.Fprintf(&d.b, `<line class="%s" x1="0" x2="100%%" y1="%s" y2="%[2]s"/>`, class, decimal(y))
}

func (d *drawing) dot(at, y float64) {
	fmt.Fprintf(&d.b, `<circle cx="%s%%" cy="%s" r="2.5"/>`, decimal(at), decimal(y))
}

// group draws the content of inside in a group with a class, instead of a class on each of many dots.
func (d *drawing) group(class string, inside func()) {
	fmt.Fprintf(&d.b, `<g class="%s">`, class)
	inside()
	d.b.WriteString("</g>")
}

// plane opens a part of the drawing that is stretched in both directions: paths in it use 0 to 1000 from left to right, and
// pixels from its top.
func (d *drawing) plane(top, height float64, inside func()) {
	fmt.Fprintf(&d.b, `<svg x="0" y="%s" width="100%%" height="%s" viewBox="0 0 1000 %[2]s" preserveAspectRatio="none">`,
		decimal(top), decimal(height))
	inside()
	d.b.WriteString("</svg>")
}

func (d *drawing) path(class, data string) {
	fmt.Fprintf(&d.b, `<path class="%s" d="%s"/>`, class, data)
}

// letters draws left-aligned text on a baseline at y.
func (d *drawing) letters(y int, s string) {
	fmt.Fprintf(&d.b, `<text class="start" x="0" y="%d">%s</text>`, y, escape(s))
}

// grid draws the background and a line at each tick of a scale.
func (d *drawing) grid(s scale, top, height float64) {
	d.rect("ground", box{to: 100, y: top, height: height})
	for _, t := range s.ticks {
		d.line("rule", s.at(t), top, top+height)
	}
}

// axis draws an axis of milliseconds.
func axis(s scale) template.HTML { return axisOf(s, tick) }

// axisOf draws only the names of the ticks, below drawings that share the scale. It leaves out names that would touch the
// one before on a phone.
func axisOf(s scale, nameOf func(float64) string) template.HTML {
	const height, baseline = 16, 12
	d := decorate(height)
	end := -1.0
	for _, t := range s.ticks {
		at, name := s.at(t), nameOf(t)
		width := letterWidth * float64(utf8.RuneCountInString(name)+1)
		anchor, from := anchored(at, width)
		if from < end {
			continue
		}
		end = from + width
		fmt.Fprintf(&d.b, `<text class="%s" x="%s%%" y="%d">%s</text>`, anchor, decimal(at), baseline, name)
	}
	return d.html()
}

// letterWidth is the width of a letter in percent of a phone's width.
const letterWidth = 2.6

// anchored keeps text at an end of the axis inside the drawing, and returns where it begins.
func anchored(at, width float64) (class string, from float64) {
	switch {
	case at < width/2:
		return "start", at
	case at > 100-width/2:
		return "end", at - width
	}
	return "middle", at - width/2
}

// scale maps milliseconds to percent of a width.
type scale struct {
	low, high float64
	ticks     []float64
	log       bool
}

func (s scale) at(v float64) float64 {
	v = min(max(v, s.low), s.high)
	if s.log {
		return 100 * math.Log(v/s.low) / math.Log(s.high/s.low)
	}
	return 100 * (v - s.low) / (s.high - s.low)
}

// maxTicks is the number of ticks that fit on a phone without touching.
const maxTicks = 7

// linear returns a scale from 0 to high, the largest value, but at least a microsecond.
func linear(high float64) scale {
	high = max(high, 0.001)
	step := math.Pow(10, math.Floor(math.Log10(high)))
	for _, part := range []float64{0.2, 0.5, 1, 2} {
		if high/(step*part) < maxTicks-1 {
			step *= part
			break
		}
	}
	s := scale{high: high}
	for i := 0; float64(i)*step <= high; i++ {
		s.ticks = append(s.ticks, float64(i)*step)
	}
	return s
}

// logarithmic returns a scale over all values, rounded out to the next 1, 2 or 5 of a decade. Values below a microsecond are
// drawn as one.
func logarithmic(of ...spread) scale {
	const least = 0.001
	low, high := math.Inf(1), least
	for _, values := range of {
		if len(values) > 0 {
			low, high = min(low, values[0]), max(high, values[len(values)-1])
		}
	}
	low = roundOut(max(least, min(low, high)), false)
	s := scale{low: low, high: max(roundOut(high, true), 2*low), log: true}
	s.ticks = s.logTicks()
	return s
}

// roundOut returns the next 1, 2 or 5 of a decade at or above a value, or at or below it.
func roundOut(v float64, up bool) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	result := decade
	for _, digit := range []float64{1, 2, 5, 10} {
		switch at := digit * decade; {
		case up && at >= v*(1-1e-9):
			return at
		case !up && at <= v*(1+1e-9):
			result = at
		}
	}
	return result
}

// logTicks returns every 1, 2 and 5 of the decades, or only the 1s, or as many of them as fit.
func (s scale) logTicks() []float64 {
	var fine, coarse []float64
	for exponent := math.Floor(math.Log10(s.low)); exponent <= math.Ceil(math.Log10(s.high)); exponent++ {
		for _, digit := range []float64{1, 2, 5} {
			v := digit * math.Pow(10, exponent)
			if v < s.low*(1-1e-9) || v > s.high*(1+1e-9) {
				continue
			}
			fine = append(fine, v)
			if digit == 1 {
				coarse = append(coarse, v)
			}
		}
	}
	if len(fine) <= maxTicks || len(coarse) < 2 {
		return fine
	}
	var fit []float64
	for i, every := 0, (len(coarse)+maxTicks-1)/maxTicks; i < len(coarse); i += every {
		fit = append(fit, coarse[i])
	}
	return fit
}

func escape(s string) string { return html.EscapeString(printable(s)) }

// decimal formats a number shortly, because a page has many of them.
func decimal(v float64) string {
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
}
