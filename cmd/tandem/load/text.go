package load

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd"
)

// table is a table of figures, as text and on the page.
type table struct {
	name    string
	columns []string
	rows    [][]string
	marked  []bool // by row: it is highlighted on the page; may be shorter
	notes   []string
}

// text writes a result for a terminal.
func text(w io.Writer, r *Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", r.title(), strings.Join(r.about(), "; "))
	for _, t := range r.shortTables() {
		fmt.Fprintf(&b, "\n%s\n", t.name)
		aligned(&b, append([][]string{t.columns}, t.rows...))
		for _, note := range t.notes {
			fmt.Fprintln(&b, note)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", r.lead())
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "Note: %s\n", note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// aligned writes columns, the first left-aligned, the others right-aligned.
func aligned(b *strings.Builder, lines [][]string) {
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range lines {
		row := ""
		for i, cell := range line {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				row = cell + gap
			} else {
				row += "  " + gap + cell
			}
		}
		fmt.Fprintln(b, strings.TrimRight(row, " "))
	}
}

// title names the run.
func (r *Result) title() string {
	side := r.Points[0].Sides[0]
	return fmt.Sprintf("tandem load: %s at %s", side.Model, side.URL)
}

// about describes the load.
func (r *Result) about() []string {
	l := r.Load
	how := l.API
	if l.Stream {
		how += ", streamed"
	}
	arrivals := fmt.Sprintf("closed loop of %d clients", l.Concurrency)
	switch {
	case l.Open && l.Trace != "":
		arrivals = fmt.Sprintf("open loop, arrivals of the trace, %g times as fast", l.TraceSpeed)
	case l.Open:
		arrivals = fmt.Sprintf("open loop, %g requests/s, %s", l.Rate, l.Arrivals)
	}
	lengths := fmt.Sprintf("%s input and %s output tokens", l.InputTokens, l.OutputTokens)
	switch {
	case l.Trace != "":
		lengths = fmt.Sprintf("trace %s, lengths × %g", l.Trace, l.TraceTokens)
	case l.InputTokens == "":
		lengths = l.OutputTokens + " output tokens"
	}
	if l.SharedPrefix > 0 {
		lengths += fmt.Sprintf(", %g%% of each prompt shared", 100*l.SharedPrefix)
	}
	rounds := "1 round"
	if l.Rounds > 1 {
		rounds = fmt.Sprintf("%d rounds", l.Rounds)
	}
	all := []string{r.Started.Format("2006-01-02 15:04:05 UTC"), how, arrivals, lengths,
		fmt.Sprintf("%s of at most %d requests and %g s, %d of warm-up before each", rounds, l.Requests, l.Duration, l.Warmup)}
	if len(r.Objective) > 0 {
		all = append(all, "SLO "+r.objective())
	}
	return all
}

// objective returns the bounds as text.
func (r *Result) objective() string {
	var parts []string
	for _, name := range bounds {
		if v, ok := r.Objective[name]; ok {
			parts = append(parts, fmt.Sprintf("%s ≤ %g ms", strings.ToUpper(name), v))
		}
	}
	return strings.Join(parts, ", ")
}

// lead says what was found.
func (r *Result) lead() string {
	if r.Sweep != nil {
		return r.Sweep.Verdict
	}
	p := r.Points[0]
	if p.Comparison != nil {
		return p.Comparison.words()
	}
	side := p.Sides[0]
	s := fmt.Sprintf("%d of %d requests answered in %.1f s: %s requests/s, %s output tokens/s.", side.Answered, side.Requests, side.Seconds,
		number(side.RequestRate), number(side.OutputRate))
	if o := side.Objective; o != nil {
		s += fmt.Sprintf(" %.1f%% met the SLO: goodput %s requests/s.", o.Percent, number(o.Goodput))
	}
	return s
}

// words sums a comparison up.
func (c *Comparison) words() string {
	byVerdict := map[string][]string{}
	for _, d := range c.Differences {
		m := metricNamed(d.Metric)
		shown, _, _ := strings.Cut(m.label, ",")
		if d.Percent != nil && d.Verdict != NoDifference {
			shown += fmt.Sprintf(" (%+.1f%%)", *d.Percent)
		}
		byVerdict[d.Verdict] = append(byVerdict[d.Verdict], shown)
	}
	head := fmt.Sprintf("%s against %s, over %d pairs of rounds: ", c.First, c.Second, c.Pairs)
	if c.Pairs < enoughRounds {
		return fmt.Sprintf("%sno verdict, which needs %d pairs.", head, enoughRounds)
	}
	var parts []string
	for _, v := range []string{Better, Worse, NoDifference} {
		if all := byVerdict[v]; len(all) > 0 {
			name := v
			if v == NoDifference {
				name = "no difference that the noise allows to see"
			}
			parts = append(parts, name+": "+strings.Join(all, ", "))
		}
	}
	return head + strings.Join(parts, "; ") + "."
}

// shortTables returns the tables for a terminal: of a sweep only the comparisons. The page has all.
func (r *Result) shortTables() []table {
	if r.Sweep == nil {
		return r.tables()
	}
	return append(r.comparisons(), r.sweepTable())
}

// tables returns all tables, the most telling first.
func (r *Result) tables() (all []table) {
	if r.Sweep != nil {
		all = append(all, r.sweepTable())
	}
	all = append(all, r.comparisons()...)
	for i := range r.Points {
		p := &r.Points[i]
		at := r.at(p)
		all = append(all, throughput(p, at))
		for j := range p.Sides {
			all = append(all, p.Sides[j].latencies(at))
		}
		for j := range p.Sides {
			all = append(all, p.Sides[j].counts(at)...)
		}
	}
	return all
}

// at names a point in the headings of tables; "" if there is only one.
func (r *Result) at(p *PointResult) string {
	if len(r.Points) == 1 {
		return ""
	}
	return ", " + p.InputTokens + " input tokens"
}

func (r *Result) comparisons() (all []table) {
	for i := range r.Points {
		if p := &r.Points[i]; p.Comparison != nil {
			all = append(all, p.Comparison.table(r.at(p)))
		}
	}
	return all
}

// latencies returns the table of the times of a side.
func (r *SideResult) latencies(at string) table {
	t := table{name: fmt.Sprintf("%s%s: %d of %d requests answered, times in ms", r.Name, at, r.Answered, r.Requests),
		columns: []string{"", "count", "mean", "p50", "p90", "p95", "p99", "max"}}
	for _, row := range []struct {
		name string
		d    *Distribution
	}{{"TTFT", r.TTFT}, {"ITL", r.ITL}, {"TPOT", r.TPOT}, {"E2E", r.E2E}, {"sent late", r.Late}} {
		if row.d != nil {
			t.rows = append(t.rows, row.d.cells(row.name))
		}
	}
	for ph := range pd.PhaseOverlap + 1 {
		if d := r.Phases[ph.String()]; d != nil {
			t.rows = append(t.rows, d.cells("phase "+ph.String()))
		}
	}
	if len(t.rows) == 0 {
		t.rows = [][]string{{"no request was answered", "", "", "", "", "", "", ""}}
	}
	return t
}

func (d *Distribution) cells(name string) []string {
	row := []string{name, strconv.Itoa(d.Count), number(d.Mean)}
	for _, p := range []*float64{d.P50, d.P90, d.P95, d.P99} {
		if p == nil {
			row = append(row, unknownFigure)
		} else {
			row = append(row, number(*p))
		}
	}
	return append(row, number(d.Max))
}

// throughput returns the table of rates: a column for each side.
func throughput(p *PointResult, at string) table {
	t := table{name: "Throughput" + at, columns: []string{""}}
	add := func(name string, of func(s *SideResult) string) {
		row := []string{name}
		for i := range p.Sides {
			row = append(row, of(&p.Sides[i]))
		}
		if slices.ContainsFunc(row[1:], func(s string) bool { return s != unknownFigure }) {
			t.rows = append(t.rows, row)
		}
	}
	for i := range p.Sides {
		t.columns = append(t.columns, p.Sides[i].Name)
	}
	mean := func(d *Distribution) string {
		if d == nil {
			return unknownFigure
		}
		return number(d.Mean)
	}
	add("requests/s", func(s *SideResult) string { return number(s.RequestRate) })
	add("input tokens/s", func(s *SideResult) string { return number(s.InputRate) })
	add("output tokens/s", func(s *SideResult) string { return number(s.OutputRate) })
	add("output tokens/s per GPU", func(s *SideResult) string {
		if s.PerGPU == nil {
			return unknownFigure
		}
		return number(s.PerGPU.OutputRate)
	})
	add("requests that met the SLO, %", func(s *SideResult) string {
		if s.Objective == nil {
			return unknownFigure
		}
		return fmt.Sprintf("%.1f", s.Objective.Percent)
	})
	add("goodput, requests/s", func(s *SideResult) string {
		if s.Objective == nil {
			return unknownFigure
		}
		return number(s.Objective.Goodput)
	})
	add("goodput per GPU, requests/s", func(s *SideResult) string {
		if s.PerGPU == nil || s.PerGPU.Goodput == nil {
			return unknownFigure
		}
		return fmt.Sprintf("%.3f", *s.PerGPU.Goodput)
	})
	add("input tokens of a request, mean", func(s *SideResult) string { return mean(s.Input) })
	add("of these cached", func(s *SideResult) string { return mean(s.Cached) })
	add("output tokens of a request, mean", func(s *SideResult) string { return mean(s.Output) })
	return t
}

// table shows the differences.
func (c *Comparison) table(at string) table {
	t := table{name: fmt.Sprintf("%s against %s%s, medians of %d pairs of rounds", c.First, c.Second, at, c.Pairs),
		columns: []string{"", c.First, c.Second, "difference", "%", "95% interval", "verdict"}}
	for _, d := range c.Differences {
		m := metricNamed(d.Metric)
		show := func(v float64) string { return strconv.FormatFloat(v, 'f', m.decimals, 64) }
		percent, interval := unknownFigure, unknownFigure
		if d.Percent != nil {
			percent = fmt.Sprintf("%+.1f", *d.Percent)
		}
		if d.Low != nil {
			interval = fmt.Sprintf("%+.*f to %+.*f", m.decimals, *d.Low, m.decimals, *d.High)
		}
		t.rows = append(t.rows, []string{m.label, show(d.First), show(d.Second), fmt.Sprintf("%+.*f", m.decimals, d.Difference), percent, interval, d.Verdict})
		t.marked = append(t.marked, d.Verdict == Worse)
	}
	return t
}

// sweepTable shows the criterion at each length.
func (r *Result) sweepTable() table {
	m := metricNamed(r.Sweep.Criterion)
	c := r.Points[0].Comparison
	t := table{name: "By length of prompts: " + m.label, columns: []string{"input tokens", "picker counts", c.First, c.Second, "difference", "%", "verdict"}}
	for _, p := range r.Points {
		row := []string{p.InputTokens, strconv.Itoa(p.PickerCount), unknownFigure, unknownFigure, unknownFigure, unknownFigure, unknownFigure}
		if d := p.Comparison.find(m.name); d != nil {
			row = append(row[:2], strconv.FormatFloat(d.First, 'f', m.decimals, 64), strconv.FormatFloat(d.Second, 'f', m.decimals, 64),
				fmt.Sprintf("%+.*f", m.decimals, d.Difference), unknownFigure, d.Verdict)
			if d.Percent != nil {
				row[5] = fmt.Sprintf("%+.1f", *d.Percent)
			}
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// counts returns the tables of decisions and failures of a side; none if there is nothing to count.
func (r *SideResult) counts(at string) (all []table) {
	if len(r.Decisions) > 0 {
		t := table{name: r.Name + at + ": decisions", columns: []string{"", "reason", "count"}}
		for _, d := range r.Decisions {
			t.rows = append(t.rows, []string{d.Decision, d.Reason, strconv.Itoa(d.Count)})
		}
		all = append(all, t)
	}
	if len(r.Failures) > 0 {
		t := table{name: r.Name + at + ": failures", columns: []string{"reason", "status", "count"}}
		for _, f := range r.Failures {
			status := unknownFigure
			if f.Status > 0 {
				status = strconv.Itoa(f.Status)
			}
			t.rows = append(t.rows, []string{f.Reason, status, strconv.Itoa(f.Count)})
			t.marked = append(t.marked, true)
			if f.Example != "" {
				t.notes = append(t.notes, f.Reason+": "+f.Example)
			}
		}
		all = append(all, t)
	}
	return all
}
