package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
)

// write shows the result on stdout, and writes the files that flags name.
func (o *outputFlags) write(stdout io.Writer, r *Result) error {
	if o.JSON != "" {
		b, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.JSON, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if o.Report != "" {
		var page bytes.Buffer
		if err := report.TrialHTML(&page, r.page()); err != nil {
			return err
		}
		if err := os.WriteFile(o.Report, page.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if err := text(stdout, r); err != nil {
		return err
	}
	for _, file := range []string{o.Report, o.JSON, o.Records} {
		if file != "" {
			if _, err := fmt.Fprintf(stdout, "Written: %s\n", file); err != nil {
				return err
			}
		}
	}
	return nil
}

// page converts a result for the page, with the same cells as in the text.
func (r *Result) page() *report.Trial {
	p := &report.Trial{Title: r.title(), Lead: r.lead(), About: r.about(), Notes: r.Notes, Tiles: r.tiles(), Charts: r.charts()}
	for _, t := range r.tables() {
		shown := report.MeasuredTable{Name: t.name, Columns: t.columns, Notes: t.notes}
		for i, cells := range t.rows {
			shown.Rows = append(shown.Rows, report.MeasuredRow{Cells: cells, Marked: i < len(t.marked) && t.marked[i]})
		}
		p.Tables = append(p.Tables, shown)
	}
	if r.Sweep != nil {
		p.Curves = r.curves()
	} else if c := r.Points[0].Comparison; c != nil {
		p.Compared = c.First + " against " + c.Second
		for _, d := range c.Differences {
			if d.Percent != nil {
				p.Differences = append(p.Differences, d.drawn())
			}
		}
	}
	return p
}

// tiles returns the most important numbers, those of both sides next to each other.
func (r *Result) tiles() []report.TrialTile {
	if r.Sweep != nil {
		return r.sweepTiles()
	}
	sides := r.Points[0].Sides
	suffix := ""
	if len(sides) > 1 {
		suffix = ": " + sides[0].Name + " | " + sides[1].Name
	}
	requests, answered := 0, 0
	for i := range sides {
		requests, answered = requests+sides[i].Requests, answered+sides[i].Answered
	}
	tiles := []report.TrialTile{{Name: "requests answered", Number: fmt.Sprintf("%d of %d", answered, requests)}}
	add := func(what string, of func(s *SideResult) *float64) {
		var numbers []string
		for i := range sides {
			if v := of(&sides[i]); v != nil {
				numbers = append(numbers, number(*v))
			}
		}
		if len(numbers) == len(sides) {
			tiles = append(tiles, report.TrialTile{Name: what + suffix, Number: strings.Join(numbers, " | ")})
		}
	}
	add("TTFT p50, ms", func(s *SideResult) *float64 { return s.TTFT.median() })
	add("ITL p99, ms", func(s *SideResult) *float64 {
		if s.ITL == nil {
			return nil
		}
		return s.ITL.P99
	})
	add("E2E p50, ms", func(s *SideResult) *float64 { return s.E2E.median() })
	add("output tokens/s", func(s *SideResult) *float64 { return &s.OutputRate })
	add("goodput, requests/s", func(s *SideResult) *float64 {
		if s.Objective == nil {
			return nil
		}
		return &s.Objective.Goodput
	})
	return tiles
}

// median returns the median, if there is one.
func (d *Distribution) median() *float64 {
	if d == nil {
		return nil
	}
	return d.P50
}

// sweepTiles returns the most important numbers of a sweep.
func (r *Result) sweepTiles() []report.TrialTile {
	length := func(tokens int) string {
		if tokens == 0 {
			return unknownFigure
		}
		return strconv.Itoa(tokens)
	}
	name := r.Points[0].Sides[0].Name
	requests, answered := 0, 0
	for _, p := range r.Points {
		for i := range p.Sides {
			requests, answered = requests+p.Sides[i].Requests, answered+p.Sides[i].Answered
		}
	}
	return []report.TrialTile{
		{Name: "input tokens from which on " + name + " is better", Number: length(r.Sweep.PaysFrom)},
		{Name: "the same by the picker's count", Number: length(r.Sweep.PickerCount)},
		{Name: "input tokens up to which " + name + " is worse", Number: length(r.Sweep.CostsUpTo)},
		{Name: "requests answered", Number: fmt.Sprintf("%d of %d", answered, requests)},
	}
}

// drawn converts a difference to percent of the second side.
func (d *Difference) drawn() report.TrialDifference {
	m := metricNamed(d.Metric)
	percent := func(v float64) float64 { return 100 * v / d.Second }
	kind := map[string]string{Better: "better", Worse: "worse"}[d.Verdict]
	out := report.TrialDifference{Name: m.label, Kind: kind, Median: *d.Percent, Low: math.NaN(), High: math.NaN(),
		Numbers: fmt.Sprintf("%.*f, %.*f · %+.1f%% · %s", m.decimals, d.First, m.decimals, d.Second, *d.Percent, d.Verdict)}
	if d.Low != nil {
		out.Low, out.High = percent(*d.Low), percent(*d.High)
	}
	for _, v := range d.Pairs {
		out.Pairs = append(out.Pairs, percent(v))
	}
	return out
}

// charts returns the distributions of all sides.
func (r *Result) charts() []report.TrialChart {
	charts := []report.TrialChart{
		{Title: "Time to first token (TTFT)", Note: "From when a request was due to the first event with a token."},
		{Title: "Inter-token latency (ITL)", Note: "The gaps between the events of all streams."},
		{Title: "Whole request (E2E)", Note: "From when a request was due to the end of its answer."},
	}
	for _, p := range r.Points {
		for i := range p.Sides {
			s := &p.Sides[i]
			name := s.Name
			if len(r.Points) > 1 {
				name += ", " + p.InputTokens
			}
			for j, values := range [][]float64{s.ttft, s.itl, s.e2e} {
				d := []*Distribution{s.TTFT, s.ITL, s.E2E}[j]
				if d != nil {
					charts[j].Lanes = append(charts[j].Lanes, report.TrialLane{Name: name, Numbers: d.short(), Second: i == 1, Values: values})
				}
			}
		}
	}
	return charts
}

// short returns the summary beside a drawing.
func (d *Distribution) short() string {
	s := ""
	for _, p := range []struct {
		name string
		v    *float64
	}{{"p50", d.P50}, {"p99", d.P99}} {
		if p.v != nil {
			s += fmt.Sprintf("%s %s · ", p.name, number(*p.v))
		}
	}
	return s + fmt.Sprintf("max %s ms · n %d", number(d.Max), d.Count)
}

// curves shows what a sweep measured.
func (r *Result) curves() (all []report.TrialCurves) {
	names := []string{"ttft_p50_ms", "tpot_p50_ms", "itl_p99_ms", "e2e_p50_ms"}
	if r.Sweep.Criterion == "goodput_per_s" {
		names = append(names, "goodput_per_s")
	}
	for _, name := range names {
		m := metricNamed(name)
		c := report.TrialCurves{Name: m.label, X: "input tokens", Y: m.label, Note: "Medians of the rounds."}
		for i, side := range r.Points[0].Sides {
			line := report.TrialLine{Name: side.Name, Second: i == 1}
			for _, p := range r.Points {
				d := p.Comparison.find(name)
				tokens, err := strconv.ParseFloat(p.InputTokens, 64)
				if d == nil || err != nil {
					continue
				}
				line.Points = append(line.Points, report.MeasuredPoint{X: tokens, Y: []float64{d.First, d.Second}[i]})
			}
			c.Lines = append(c.Lines, line)
		}
		all = append(all, c)
	}
	return all
}
