package report

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd"
)

// textColumns is the width of a terminal, into which the tables and the waterfall fit.
const textColumns = 120

// Text writes a run for a terminal: tables with a row for each request class, a typical and the slowest request as
// waterfalls, the decisions by reason, and the checks. Tables are at most 120 columns wide. The error is the one of w.
func Text(w io.Writer, d *Data) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n%s\n", line(d.Title), summary(d))
	if len(d.Stack) > 0 {
		fmt.Fprintf(&b, "Stack: %s\n", line(strings.Join(d.Stack, "; ")))
	}
	textClasses(&b, d)
	for _, s := range examples(d) {
		textWaterfall(&b, s)
	}
	textReasons(&b, d)
	if d.Comparison != nil {
		textComparison(&b, d.Comparison)
	}
	textFailed(&b, d)
	textChecks(&b, d)
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// timeColumns returns the headings of the table of the times that clients saw, for terminal and page.
func timeColumns() []string {
	return []string{"class", "count", remote, local, "TTFT p50", "p99", "ITL p50", "p99", "E2E p50", "p99"}
}

// timeCells returns the row of a class.
func (g *group) timeCells() []string {
	row := []string{g.class, strconv.Itoa(len(g.requests)), strconv.Itoa(g.count(remote)), strconv.Itoa(g.count(local))}
	for _, s := range []spread{g.ttft(), g.itl(), g.e2e()} {
		row = append(row, millis(s.percentile(50)), s.tailCell())
	}
	return row
}

// fewer reports whether a maximum is in timeCells.
func (g *group) fewer() bool {
	for _, s := range []spread{g.ttft(), g.itl(), g.e2e()} {
		if 0 < len(s) && len(s) < enough {
			return true
		}
	}
	return false
}

// phaseColumns returns the headings of the table of phases, for terminal and page.
func phaseColumns(phases []pd.Phase) []string {
	columns := []string{"class"}
	for _, p := range phases {
		columns = append(columns, p.String())
	}
	return append(columns, "of E2E")
}

// phaseCells returns the row of a class: the mean of each phase, and how much of the measured time the phases explain.
func (g *group) phaseCells(phases []pd.Phase) []string {
	row := []string{g.class}
	for _, p := range phases {
		row = append(row, millis(g.meanPhase(p)))
	}
	return append(row, percent(g.explained()))
}

func textClasses(b *bytes.Buffer, d *Data) {
	shown := shownPhases(d)
	times, phases := [][]string{timeColumns()}, [][]string{phaseColumns(shown)}
	few := ""
	for _, g := range classes(d) {
		times, phases = append(times, g.timeCells()), append(phases, g.phaseCells(shown))
		if g.fewer() {
			few = "; " + fewer
		}
	}
	if len(times) == 1 {
		return
	}
	b.WriteString("\n")
	textTable(b, times)
	fmt.Fprintf(b, "ms; TTFT and ITL of streamed answers, E2E to the end of all answers%s\n\n", few)
	textTable(b, phases)
	b.WriteString("mean of each phase in ms, over the requests that went through it, and the share of E2E that the phases explain\n")
	if slices.Contains(shown, pd.PhaseOverlap) {
		fmt.Fprintf(b, "overlap: %s\n", phaseMeaning[pd.PhaseOverlap])
	}
}

// textTable left-aligns the first column and right-aligns the others. The first column gets the remaining width; if that is
// too little, the others move closer.
func textTable(b *bytes.Buffer, table [][]string) {
	widths, room := make([]int, len(table[0])), textColumns
	for i := range widths {
		for _, row := range table {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		if i > 0 {
			room -= widths[i]
		}
	}
	gap := 2
	if room-gap*(len(widths)-1) < widths[0] {
		gap = 1
	}
	widths[0] = max(1, min(widths[0], room-gap*(len(widths)-1)))
	for _, row := range table {
		fmt.Fprintf(b, "%-*s", widths[0], cut(row[0], widths[0]))
		for i, cell := range row[1:] {
			fmt.Fprintf(b, "%*s", gap+widths[i+1], cell)
		}
		b.WriteString("\n")
	}
}

func textWaterfall(b *bytes.Buffer, show example) {
	fmt.Fprintf(b, "\n%s\n%s\n", show.title, line(show.request.story()))
	spans := show.request.waterfall()
	length := 0.0
	for _, s := range spans {
		length = max(length, s.end)
	}
	const label = len("1234567  12345678 ms  ")
	for _, s := range spans {
		fmt.Fprintf(b, "%-7s  %8s ms  %s\n", s.name, millis(s.end-s.start), strings.TrimRight(bar(s, length,
			textColumns-label), " "))
	}
}

// bar draws a part of a time span as characters, at least a thin one.
func bar(s stretch, length float64, width int) string {
	if length <= 0 {
		return ""
	}
	column := func(t float64) int { return min(width, int(math.Round(t/length*float64(width)))) }
	from, to := min(column(s.start), width-1), column(s.end)
	if to <= from {
		return strings.Repeat(" ", from) + "▏"
	}
	return strings.Repeat(" ", from) + strings.Repeat("█", to-from)
}

// stretch is a part of a request's time, in ms from when it was sent.
type stretch struct {
	name       string
	start, end float64
}

// waterfall returns the phases one after the other, but those of legs that were sent at once beside each other. The time before and
// between them, in transmission, is unknown, so the first one begins when the request was sent. The last stretch is from the client's
// first token to the end.
func (r *Request) waterfall() (all []stretch) {
	at := 0.0
	for _, p := range phaseOrder {
		if p == pd.PhaseFirst {
			at = max(0, at-r.Phases[pd.PhaseOverlap.String()])
		}
		took, ok := r.Phases[p.String()]
		if ok {
			all = append(all, stretch{p.String(), at, at + took})
			at += took
		}
	}
	return append(all, stretch{"client", r.firstToken(), r.Total})
}

func textReasons(b *bytes.Buffer, d *Data) {
	all := reasons(d)
	if len(all) == 0 {
		return
	}
	b.WriteString("\n")
	for _, c := range all {
		row := fmt.Sprintf("%6d  %-7s  %-15s  %s", c.count, line(c.decision), line(c.reason), meaning(c.reason))
		fmt.Fprintf(b, "%s\n", strings.TrimRight(row, " "))
	}
}

func textFailed(b *bytes.Buffer, d *Data) {
	told, more := failures(d)
	if len(told) > 0 {
		b.WriteString("\n")
	}
	for _, r := range told {
		fmt.Fprintf(b, "request %d, %s: %s\n", r.Number, line(r.Class), line(r.Failure))
	}
	if more > 0 {
		fmt.Fprintf(b, "and %s\n", counted(more, "more failed request"))
	}
}

func textChecks(b *bytes.Buffer, d *Data) {
	b.WriteString("\n")
	for _, c := range d.Checks {
		fmt.Fprintf(b, "%-6s  %s: %s\n", mark(c), line(c.Name), line(c.Got))
	}
	fmt.Fprintf(b, "%s\n", verdict(d))
}

func mark(c Check) string {
	if c.Passed {
		return "ok"
	}
	return "FAILED"
}
