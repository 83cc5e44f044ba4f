package replay

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/replay"
)

// page writes the file of --page.
func (o *outputFlags) page(runs []*run, why *whys) error {
	if o.Page == "" {
		return nil
	}
	var b bytes.Buffer
	page := o.plots(runs)
	for _, c := range why.Comparisons {
		page.Tables = append(page.Tables, c.table())
	}
	if err := report.PlotsHTML(&b, page); err != nil {
		return err
	}
	return os.WriteFile(o.Page, b.Bytes(), 0o644)
}

// dimension is something by which runs differ.
type dimension struct {
	name string
	of   func(r *run) string
	x    func(r *run) (float64, bool) // position on an axis; nil: names are in their order
}

// dimensions returns the dimensions that have several values: those that a comparison is mostly about come first.
func dimensions(runs []*run) (vary []dimension) {
	for _, d := range []dimension{
		{"autoscaler", func(r *run) string { return cmp.Or(r.scaler, "–") }, nil},
		{"configuration", func(r *run) string { return r.config }, nil},
		{"threshold", (*run).thresholdText, func(r *run) (float64, bool) {
			if r.threshold == nil {
				return 0, false
			}
			return float64(*r.threshold), true
		}},
		{"replicas", func(r *run) string { return fmt.Sprint(r.replicas) }, func(r *run) (float64, bool) { return float64(r.replicas), true }},
		{"pool", func(r *run) string { return r.pool.String() }, nil},
		{"load", func(r *run) string { return fmt.Sprintf("%.3g/s", r.load) }, func(r *run) (float64, bool) { return r.load, true }},
		{"engine", func(r *run) string { return r.engine }, nil},
	} {
		if len(d.values(runs)) > 1 {
			vary = append(vary, d)
		}
	}
	return vary
}

// values returns the values that runs have, in their order.
func (d *dimension) values(runs []*run) (all []string) {
	for _, r := range runs {
		if v := d.of(r); !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// place returns where a run is on the axis of a dimension.
func (d *dimension) place(r *run, names []string) (float64, bool) {
	if d.x != nil {
		return d.x(r)
	}
	return float64(slices.Index(names, d.of(r))), true
}

// panel is the runs that are drawn together.
type panel struct {
	title string // what they have in common, of what differs
	lines []series
}

// series is the runs of one line.
type series struct {
	name string
	kind int
	runs []*run
}

// mostPanels bounds a section; the table has the rest.
const mostPanels = 6

// panels groups runs: they differ by as many dimensions within a panel as it has lines for, and by the others between panels.
func panels(runs []*run, by []dimension) (all []*panel) {
	lines, within := 1, 0
	for within < len(by) && (within == 0 || lines*len(by[within].values(runs)) <= report.PlotLines) {
		lines *= len(by[within].values(runs))
		within++
	}
	name := func(r *run, by []dimension) string {
		var parts []string
		for _, d := range by {
			if v := d.of(r); v != "–" {
				parts = append(parts, v)
			}
		}
		return strings.Join(parts, ", ")
	}
	var kinds []string // the same lines look alike in all panels
	for _, r := range runs {
		title, line := name(r, by[within:]), name(r, by[:within])
		if !slices.Contains(kinds, line) {
			kinds = append(kinds, line)
		}
		i := slices.IndexFunc(all, func(p *panel) bool { return p.title == title })
		if i < 0 {
			i, all = len(all), append(all, &panel{title: title})
		}
		p := all[i]
		j := slices.IndexFunc(p.lines, func(l series) bool { return l.name == line })
		if j < 0 {
			j, p.lines = len(p.lines), append(p.lines, series{name: line, kind: slices.Index(kinds, line)})
		}
		p.lines[j].runs = append(p.lines[j].runs, r)
	}
	return all
}

// plots returns the page.
func (o *outputFlags) plots(runs []*run) *report.Plots {
	p := &report.Plots{Title: "Replay", Lead: "No run was finished.", About: []string{o.goal()}}
	if len(runs) == 0 {
		return p
	}
	vary := dimensions(runs)
	first := runs[0]
	p.Title, p.Lead = "Replay of "+first.trace, fmt.Sprintf("%d runs of the same requests.", len(runs))
	if len(runs) == 1 {
		p.Lead = fmt.Sprintf("One run: %s.", first.name())
	} else if best := slices.MaxFunc(runs, func(a, b *run) int { return cmp.Compare(a.summary.Goodput, b.summary.Goodput) }); best.summary.Goodput > 0 {
		p.Lead = fmt.Sprintf("%d runs. Most requests that met the objective, %.3g a second: %s.", len(runs), best.summary.Goodput, best.name())
	}
	p.About = append(p.About, fmt.Sprintf("%d requests", first.summary.Requests))
	p.Notes = notes(runs)
	p.Sections = append(p.Sections, sweeps(runs, vary)...)
	p.Sections = append(p.Sections, sizes(runs, vary)...)
	p.Sections = append(p.Sections, o.bars(runs), distributions(runs, vary), timelines(runs, vary))
	t := report.MeasuredTable{Name: "Every run. Times in ms. " + o.goal()}
	for _, c := range columns(runs) {
		t.Columns = append(t.Columns, c.name)
	}
	for _, r := range runs {
		var cells []string
		for _, c := range columns(runs) {
			cells = append(cells, c.cell(r))
		}
		t.Rows = append(t.Rows, report.MeasuredRow{Cells: cells, Marked: r.summary.Refused > 0})
	}
	t.Notes = []string{"Requests were refused in the marked rows."}
	if !slices.ContainsFunc(runs, func(r *run) bool { return r.summary.Refused > 0 }) {
		t.Notes = nil
	}
	p.Tables = []report.MeasuredTable{t}
	return p
}

// notes returns what a reader must know.
func notes(runs []*run) (all []string) {
	refused := 0
	for _, r := range runs {
		refused = max(refused, r.summary.Refused)
	}
	if refused > 0 {
		all = append(all, fmt.Sprintf("Up to %d requests of a run were refused. They missed the objective; times are those of the others.", refused))
	}
	return append(all, "Engines and links are models, which have not been compared with real ones yet: they compare configurations, and promise no latencies.")
}

// sweeps returns how results change with each dimension that was swept, but configurations and autoscalers, which have no order.
func sweeps(runs []*run, vary []dimension) (all []report.PlotSection) {
	for i, d := range vary {
		if d.name == "configuration" || d.name == "autoscaler" {
			continue
		}
		others := append(slices.Clone(vary[:i]), vary[i+1:]...)
		s := report.PlotSection{Title: "By " + d.name}
		groups := panels(runs, others)
		if len(groups) > mostPanels {
			s.Note = fmt.Sprintf("%d more groups of runs are not drawn; the table has them.", len(groups)-mostPanels)
			groups = groups[:mostPanels]
		}
		for _, g := range groups {
			for _, y := range []struct {
				name, unit string
				of         func(s *replay.Summary) float64
			}{
				{"Goodput", "Requests a second that met the objective", func(s *replay.Summary) float64 { return s.Goodput }},
				{"TTFT p95", "Seconds", func(s *replay.Summary) float64 { return s.TTFT.P95 / 1e3 }},
				{"TPOT p95", "Milliseconds", func(s *replay.Summary) float64 { return s.TPOT.P95 }},
				{"Remote share", "Percent of the requests", func(s *replay.Summary) float64 { return 100 * s.RemoteShare }},
			} {
				s.Plots = append(s.Plots, sweep(runs, d, g, report.Plot{Title: titleOf(y.name, g), Y: y.unit}, y.of))
			}
		}
		all = append(all, s)
	}
	return all
}

func titleOf(what string, g *panel) string {
	if g.title == "" {
		return what
	}
	return what + ", " + g.title
}

// sweep draws a number of the runs of a panel by a dimension.
func sweep(runs []*run, d dimension, g *panel, p report.Plot, of func(s *replay.Summary) float64) report.Plot {
	names := d.values(runs)
	p.X, p.Dots = map[string]string{"load": "requests that arrive in a second", "threshold": "threshold in tokens"}[d.name], true
	if d.x == nil {
		p.X, p.Names = d.name, names
	}
	for _, l := range g.lines {
		drawn := report.PlotLine{Name: orAll(l.name), Kind: l.kind}
		for _, r := range l.runs {
			if x, ok := d.place(r, names); ok {
				drawn.Points = append(drawn.Points, report.MeasuredPoint{X: x, Y: of(&r.summary)})
			}
		}
		slices.SortStableFunc(drawn.Points, func(a, b report.MeasuredPoint) int { return cmp.Compare(a.X, b.X) })
		p.Lines = append(p.Lines, drawn)
	}
	return p
}

func orAll(name string) string {
	if name == "" {
		return "all runs"
	}
	return name
}

// bars returns goodput and remote share of every run.
func (o *outputFlags) bars(runs []*run) report.PlotSection {
	goodput := report.PlotBars{Title: "Goodput", Note: o.goal()}
	remote := report.PlotBars{Title: "Remote share", Note: "Requests whose prompt another engine computed."}
	for _, r := range runs {
		s := &r.summary
		goodput.Bars = append(goodput.Bars, report.PlotBar{Name: r.name(), Value: s.Goodput, Kind: 0,
			Numbers: fmt.Sprintf("%.3g/s · %.0f tokens/s · %.1f for each GPU", s.Goodput, s.Throughput, s.PerGPU)})
		remote.Bars = append(remote.Bars, report.PlotBar{Name: r.name(), Value: s.RemoteShare, Kind: 1,
			Numbers: fmt.Sprintf("%.1f%% · %.1f GB moved", 100*s.RemoteShare, s.KVBytes/1e9)})
	}
	return report.PlotSection{Title: "Every run", Bars: []report.PlotBars{goodput, remote}}
}

// firstPanels returns the panels that a section draws, and notes in it how many it does not.
func firstPanels(s *report.PlotSection, all []*panel) []*panel {
	if len(all) > mostPanels {
		s.Note += fmt.Sprintf(" %d more groups of runs are not drawn.", len(all)-mostPanels)
		all = all[:mostPanels]
	}
	return all
}

// distributions returns the cumulative distributions of TTFT and TPOT.
func distributions(runs []*run, vary []dimension) report.PlotSection {
	s := report.PlotSection{Title: "Latency", Note: "How many of the answered requests took at most so long. The axes of time are logarithmic."}
	for _, g := range firstPanels(&s, panels(runs, vary)) {
		for _, what := range []struct {
			name, title string
			of          func(r *run) ([]float64, replay.Quantiles)
		}{
			{"TTFT", "Time to first token (TTFT)", func(r *run) ([]float64, replay.Quantiles) { return r.ttft, r.summary.TTFT }},
			{"TPOT", "Time per output token (TPOT)", func(r *run) ([]float64, replay.Quantiles) { return r.tpot, r.summary.TPOT }},
		} {
			p := report.Plot{Title: titleOf(what.title, g), X: what.name, Y: "Percent of the requests", Times: true, Log: true}
			for _, l := range g.lines {
				values, q := what.of(l.runs[0])
				drawn := report.PlotLine{Name: orAll(l.name), Kind: l.kind, Numbers: fmt.Sprintf("p50 %s · p95 %s ms", ms(q.P50), ms(q.P95))}
				for i, v := range values {
					drawn.Points = append(drawn.Points, report.MeasuredPoint{X: v, Y: 100 * float64(i) / float64(len(values)-1)})
				}
				p.Lines = append(p.Lines, drawn)
			}
			s.Plots = append(s.Plots, p)
		}
	}
	return s
}

// timelines returns how many requests waited over time, and how full the KV caches were.
func timelines(runs []*run, vary []dimension) report.PlotSection {
	s := report.PlotSection{Title: "Over time", Note: "Requests that wait in engines, and the mean share of their KV caches in use."}
	for _, g := range firstPanels(&s, panels(runs, vary)) {
		for _, what := range []struct {
			title, y string
			prefills bool
			of       func(s *replay.Sample) float64
		}{
			{"Waiting for prefill engines", "Requests", true, func(s *replay.Sample) float64 { return float64(s.Waiting) }},
			{"Waiting for engines that decode", "Requests", false, func(s *replay.Sample) float64 { return float64(s.Waiting) }},
			{"KV cache of engines that decode", "Percent in use", false, func(s *replay.Sample) float64 { return 100 * s.KVUsage }},
		} {
			p := report.Plot{Title: titleOf(what.title, g), X: "time", Y: what.y, Times: true, Steps: true}
			for _, l := range g.lines {
				drawn := report.PlotLine{Name: orAll(l.name), Kind: l.kind}
				for _, sample := range l.runs[0].timeline {
					// A pool may have engines that only decode and others that do both: the first ones are drawn.
					if (sample.Role == "prefill") != what.prefills || len(drawn.Points) > 0 && drawn.Points[len(drawn.Points)-1].X == millis(sample.At) {
						continue
					}
					drawn.Points = append(drawn.Points, report.MeasuredPoint{X: millis(sample.At), Y: what.of(&sample)})
				}
				p.Lines = append(p.Lines, drawn)
			}
			s.Plots = append(s.Plots, p)
		}
	}
	return s
}

// table returns a comparison for the page.
func (c *comparison) table() report.MeasuredTable {
	t := report.MeasuredTable{Name: fmt.Sprintf("%s against %s, %s, %s, %.3g/s: requests that lost most (marked) and gained most, in ms, 1: %s, 2: %s.",
		c.Second, c.First, c.Pool, c.Engine, c.Load, c.First, c.Second), Columns: changeColumns}
	for _, one := range c.Lost {
		t.Rows = append(t.Rows, report.MeasuredRow{Cells: one.cells(), Marked: true})
	}
	for _, one := range c.Gained {
		t.Rows = append(t.Rows, report.MeasuredRow{Cells: one.cells()})
	}
	if d := c.Pick; d != nil {
		t.Notes = append(t.Notes, fmt.Sprintf("%d picks differ. The first one is that of request %d.", c.Differ, d.Request))
		for i, name := range []string{c.First, c.Second} {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: %s; %s.", name, d.Picks[i], d.Why[i]))
		}
	}
	return t
}
