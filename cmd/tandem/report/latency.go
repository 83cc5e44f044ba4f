package report

import (
	"fmt"
	"html/template"
	"math"
)

// latency shows the times that a client sees, by class and decision, and the table of classes.
type latency struct {
	TTFT, ITL chart
	Classes   [][]string // cells by classColumns
}

func newLatency(d *Data) latency {
	groups := outcomes(d)
	l := latency{TTFT: distributions("Time to first token", groups, (*group).ttft),
		ITL: distributions("Inter-token latency", groups, (*group).itl)}
	for _, g := range classes(d) {
		l.Classes = append(l.Classes, g.cells())
	}
	return l
}

// distributions draws the values of each group that has any, on one logarithmic axis: the fastest and the slowest usually
// differ by some powers of ten.
func distributions(what string, groups []*group, of func(*group) spread) (c chart) {
	var shown []*group
	var values []spread
	for _, g := range groups {
		if s := of(g); len(s) > 0 {
			shown, values = append(shown, g), append(values, s)
		}
	}
	if len(shown) > maxLanes {
		c.More = len(shown) - maxLanes
		shown, values = shown[:maxLanes], values[:maxLanes]
	}
	common := logarithmic(values...)
	for i, g := range shown {
		s := values[i]
		numbers := fmt.Sprintf("p50 %s · p99 %s ms · n %d", millis(s.percentile(50)), millis(s.percentile(99)), len(s))
		c.Lanes = append(c.Lanes, lane{Name: g.name(), Kind: kind(g.decision), Numbers: numbers,
			Drawing: strip(fmt.Sprintf("%s of %s", what, g.name()), s, common)})
	}
	if len(shown) > 0 {
		c.Axis = axis(common)
	}
	return c
}

// maxDots is the largest number of dots in a lane; a few dozen show the shape.
const maxDots = 120

// strip draws single values as dots, the middle half as a box, the median as a thick line and the 99th percentile as a
// dashed one.
func strip(title string, s spread, on scale) template.HTML {
	const height, top, bottom = 26, 3, 23
	quartile, median, third, tail := s.percentile(25), s.percentile(50), s.percentile(75), s.percentile(99)
	d := draw(height, title, fmt.Sprintf("From %s to %s ms: 25%% take at most %s, 50%% %s, 75%% %s, 99%% %s ms.",
		millis(s[0]), millis(s[len(s)-1]), millis(quartile), millis(median), millis(third), millis(tail)))
	d.grid(on, 0, height)
	d.rect("box", box{from: on.at(quartile), to: on.at(third), y: top, height: bottom - top})
	d.group("dots", func() {
		for i, v := range s.thinned(maxDots) {
			// Steps of the golden ratio spread neighbours over the height, always in the same way.
			_, offset := math.Modf(float64(i) * math.Phi)
			d.dot(on.at(v), 6+offset*(height-12))
		}
	})
	d.line("tail", on.at(tail), 0, height)
	d.line("median", on.at(median), 0, height)
	return d.html()
}
