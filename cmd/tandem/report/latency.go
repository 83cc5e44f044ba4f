package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"
)

// latency shows the times that a client sees, by class and decision, and the tables of classes.
type latency struct {
	Charts []titledChart // without empty ones
	Times  [][]string    // cells by timeColumns
	Phases [][]string    // cells by phaseColumns
	Fewer  bool          // a cell of Times has a maximum instead of a percentile
	More   int           // classes that are not in Times and Phases
}

// maxClasses bounds the tables of classes; a run has about ten.
const maxClasses = 500

// titledChart is a chart with a heading and an explanation.
type titledChart struct {
	Title, Note string
	Chart       chart
}

func newLatency(d *Data) (l latency) {
	groups := outcomes(d)
	for _, c := range []struct {
		title, note string
		of          func(*group) spread
	}{
		{"Time to first token (TTFT)", "Of streamed answers: from sending the request to the first token.", (*group).ttft},
		{"Inter-token latency (ITL)", "The gaps between the tokens of streamed answers, those of all requests of a row together.", (*group).itl},
		{"Answers in one piece (E2E)", "From sending the request to the end of an answer that is not streamed.", (*group).whole},
	} {
		if drawn := distributions(c.title, groups, c.of); len(drawn.Lanes) > 0 {
			l.Charts = append(l.Charts, titledChart{c.title, c.note, drawn})
		}
	}
	all := classes(d)
	if len(all) > maxClasses {
		l.More = len(all) - maxClasses
		all = all[:maxClasses]
	}
	for _, g := range all {
		l.Times, l.Phases = append(l.Times, g.timeCells()), append(l.Phases, g.phaseCells(shownPhases(d)))
		l.Fewer = l.Fewer || g.fewer()
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
	common := logarithmic(legible(values)...)
	for i, g := range shown {
		s := values[i]
		c.Lanes = append(c.Lanes, lane{Name: g.name(), Kind: kind(g.decision), Numbers: s.numbers(),
			Drawing: strip(fmt.Sprintf("%s of %s", what, g.name()), s, common)})
	}
	if len(shown) > 0 {
		c.Axis = axis(common)
	}
	return c
}

// legible returns the values that a logarithmic axis is made for: those of at least a tenth of the smallest median. Tokens that
// arrive in one packet are microseconds apart; they would take decades of the axis, and are drawn at its beginning.
func legible(all []spread) []spread {
	least := math.Inf(1)
	for _, s := range all {
		if len(s) > 0 {
			least = min(least, s.percentile(50)/10)
		}
	}
	kept := make([]spread, len(all))
	for i, s := range all {
		from, _ := slices.BinarySearch(s, least)
		kept[i] = s[from:]
	}
	return kept
}

// numbers describes values in a few words.
func (s spread) numbers() string {
	name, v := s.tail()
	return fmt.Sprintf("p50 %s · %s %s ms · n %d", millis(s.percentile(50)), name, millis(v), len(s))
}

// maxDots is the largest number of dots in a lane; a few dozen show the shape.
const maxDots = 120

// strip draws single values as dots, the middle half as a box, the median as a thick line and the 99th percentile, if there
// are enough values, as a dashed one.
func strip(title string, s spread, on scale) template.HTML {
	const height, top, bottom = 26, 3, 23
	quartile, median, third := s.percentile(25), s.percentile(50), s.percentile(75)
	name, tail := s.tail()
	d := draw(height, title, fmt.Sprintf("From %s to %s ms: 25%% take at most %s, 50%% %s, 75%% %s ms; %s %s ms.",
		millis(s[0]), millis(s[len(s)-1]), millis(quartile), millis(median), millis(third), name, millis(tail)))
	d.grid(on, 0, height)
	d.rect("box", box{from: on.at(quartile), to: on.at(third), y: top, height: bottom - top})
	d.group("dots", func() {
		for i, v := range s.thinned(maxDots) {
			// Steps of the golden ratio spread neighbours over the height, always in the same way.
			_, offset := math.Modf(float64(i) * math.Phi)
			d.dot(on.at(v), 6+offset*(height-12))
		}
	})
	if len(s) >= enough {
		d.line("tail", on.at(tail), 0, height)
	}
	d.line("median", on.at(median), 0, height)
	return d.html()
}
