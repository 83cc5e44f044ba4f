package report

import (
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// phaseChart draws the mean time of each phase for each class and decision. A phase that a request did not go through counts
// as no time, so the length of a bar is the mean of the sums.
func phaseChart(d *Data) (c chart) {
	groups := outcomes(d)
	if len(groups) > maxLanes {
		c.More = len(groups) - maxLanes
		groups = groups[:maxLanes]
	}
	longest := 0.0
	for _, g := range groups {
		longest = max(longest, g.meanSum())
	}
	if longest == 0 {
		return chart{}
	}
	common := linear(longest)
	for _, g := range groups {
		c.Lanes = append(c.Lanes, phaseLane(g, common))
	}
	c.Axis = axis(common)
	return c
}

// mean returns the mean time in a phase; requests that did not go through it count as no time.
func (g *group) mean(p pd.Phase) float64 {
	sum, _ := g.phase(p)
	return sum / float64(len(g.requests))
}

// meanSum returns the mean of the sums of all phases.
func (g *group) meanSum() (sum float64) {
	for _, p := range phaseOrder {
		sum += g.mean(p)
	}
	return sum - g.mean(pd.PhaseOverlap)
}

// seamless is the width, in percent, below which a box gets no seam next to it.
const seamless = 0.7

func phaseLane(g *group, on scale) lane {
	const height = 18
	l := lane{Name: g.name(), Kind: kind(g.decision)}
	l.Numbers = fmt.Sprintf("%s ms · n %d", millis(g.meanSum()), len(g.requests))
	var boxes []box
	var kinds []string
	at := 0.0
	add := func(p pd.Phase, took float64) {
		boxes = append(boxes, box{from: on.at(at), to: on.at(at + took), y: 1, height: height - 2})
		kinds = append(kinds, phaseKind(p))
		at += took
	}
	overlap, concurrent := g.phase(pd.PhaseOverlap)
	overlap /= float64(len(g.requests))
	for _, p := range phaseOrder {
		if _, through := g.phase(p); through == 0 {
			continue
		}
		alone := g.mean(p) // of it, outside of the overlap
		if p == pd.PhaseFirst && concurrent > 0 {
			add(pd.PhaseOverlap, overlap)
			l.Parts = append(l.Parts, part{phaseKind(pd.PhaseOverlap), pd.PhaseOverlap.String(), millis(overlap)})
		}
		if p == pd.PhasePrefill || p == pd.PhaseFirst {
			alone = max(0, alone-overlap)
		}
		add(p, alone)
		l.Parts = append(l.Parts, part{phaseKind(p), p.String(), millis(g.mean(p))})
	}
	d := draw(height, "Mean phases of "+g.name(), wordsOf(l.Parts, " ms"))
	d.grid(on, 0, height)
	for i, b := range boxes {
		d.rect("fill "+kinds[i], b)
		// A seam separates two boxes whose colours might be hard to tell apart, unless it would hide one of them.
		if i > 0 && b.to-b.from > seamless && boxes[i-1].to-boxes[i-1].from > seamless {
			d.line("seam", b.from, 0, height)
		}
	}
	l.Drawing = d.html()
	return l
}

func phaseKind(p pd.Phase) string { return "phase-" + p.String() }

func wordsOf(parts []part, unit string) string {
	words := make([]string, len(parts))
	for i, p := range parts {
		words[i] = p.Name + " " + p.Number + unit
	}
	return strings.Join(words, ", ")
}

// Legend explains the phases.
func (p *page) Legend() (all []part) {
	for _, phase := range p.shown {
		all = append(all, part{phaseKind(phase), phase.String(), phaseMeaning[phase]})
	}
	return all
}

// flow shows one request, step by step.
type flow struct {
	Title, Story string
	Chart        chart
}

func newFlow(of example) flow {
	r := of.request
	stretches := r.waterfall()
	end := 0.0
	for _, s := range stretches {
		end = max(end, s.end)
	}
	on := linear(end)
	f := flow{Title: of.title, Story: r.story(), Chart: chart{Axis: axis(on)}}
	for _, s := range stretches[:len(stretches)-1] {
		f.Chart.Lanes = append(f.Chart.Lanes, stepLane(s, on))
	}
	f.Chart.Lanes = append(f.Chart.Lanes, clientLane(r, on))
	return f
}

const stepHeight = 22

func stepLane(s stretch, on scale) lane {
	d := draw(stepHeight, s.name, fmt.Sprintf("From %s to %s ms.", millis(s.start), millis(s.end)))
	d.grid(on, 0, stepHeight)
	d.rect("fill sliver", box{from: on.at(s.start), to: on.at(s.end), y: 5, height: stepHeight - 10})
	return lane{Name: s.name, Kind: "phase-" + s.name, Numbers: millis(s.end-s.start) + " ms", Drawing: d.html()}
}

// clientLane draws the client's view: every token of a stream at the time it arrived, or the answer in one piece.
func clientLane(r *Request, on scale) lane {
	at := r.firstToken()
	numbers := fmt.Sprintf("%s to %s ms", millis(at), millis(r.Total))
	d := draw(stepHeight, "client", "First token and end of the answer: "+numbers+".")
	d.grid(on, 0, stepHeight)
	d.line("token", on.at(at), 4, stepHeight-4)
	for _, gap := range r.ITL {
		if plausible(gap) {
			at += gap
			d.line("token", on.at(at), 4, stepHeight-4)
		}
	}
	return lane{Name: "client", Kind: "client", Drawing: d.html(), Numbers: numbers}
}
