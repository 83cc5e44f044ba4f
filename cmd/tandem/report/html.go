package report

import (
	"bytes"
	"cmp"
	_ "embed" // the page's template and style sheet
	"fmt"
	"html/template"
	"io"
	"strconv"

	"github.com/tandem-serving/tandem/pd"
)

var (
	//go:embed report.html.tmpl
	pageText string
	//go:embed report.css
	styleText string

	pageTemplate = template.Must(template.New("report").Parse(pageText))
)

// page is the input of the template. The template escapes all text in it, except drawings.
type page struct {
	Title, Started, Summary, Verdict string
	Policy                           string // Content-Security-Policy: only the embedded style sheet
	Style                            template.CSS
	Passed                           bool
	Stack                            []string
	Checks                           []Check
	Failures                         []*Request
	MoreFailures                     int
	Tiles                            []part
	Latency                          latency
	Phases                           chart
	Waterfalls                       []flow
	Reasons                          chart
	Whys                             []why
	Load                             load
	Comparison                       *duel
	Requests                         [][]string // cells by requestColumns
	shown                            []pd.Phase
}

// chart is a stack of lanes that share one axis.
type chart struct {
	Lanes []lane
	More  int // groups that are not drawn
	Axis  template.HTML
}

// lane is one row of a chart: its name and numbers as text, and a drawing below them.
type lane struct {
	Name    string
	Kind    string // class of the style sheet that gives the colour
	Numbers string
	Drawing template.HTML
	Note    string
	Parts   []part
}

// part is one of several parts of a drawing: its legend and its number.
type part struct {
	Kind, Name, Number string
}

// maxLanes bounds a chart; a run has about ten classes. Tables have them all.
const maxLanes = 24

// HTML writes a run as one self-contained page: no script, no network, no fonts. All text in d is escaped. The error is the
// one of w.
func HTML(w io.Writer, d *Data) error {
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, newPage(d)); err != nil {
		return fmt.Errorf("making the report: %w", err)
	}
	if _, err := io.WriteString(w, printable(b.String())); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

func newPage(d *Data) *page {
	p := &page{
		Title: d.Title, Started: started(d), Summary: summary(d), Verdict: verdict(d),
		Policy: stylePolicy(), Style: template.CSS(styleText), Passed: failedChecks(d) == 0 && len(d.Checks) > 0,
		Stack: d.Stack, Checks: d.Checks, Tiles: tiles(d),
		Latency: newLatency(d), Phases: phaseChart(d),
		Reasons: reasonChart(d), Whys: whys(d), Load: newLoad(d), Comparison: newDuel(d.Comparison), Requests: requestRows(d), shown: shownPhases(d),
	}
	for _, e := range examples(d) {
		p.Waterfalls = append(p.Waterfalls, newFlow(e))
	}
	p.Failures, p.MoreFailures = failures(d)
	if p.Title == "" {
		p.Title = "A run of Tandem"
	}
	return p
}

// tiles returns the most important numbers.
func tiles(d *Data) []part {
	all := group{}
	for i := range d.Requests {
		all.requests = append(all.requests, &d.Requests[i])
	}
	shown := []part{
		{"plain", "requests answered", fmt.Sprintf("%d of %d", all.count(remote)+all.count(local), len(d.Requests))},
		{remote, "prefilled remotely", strconv.Itoa(all.count(remote))},
		{local, "prefilled locally", strconv.Itoa(all.count(local))},
		{"plain", "checks passed", fmt.Sprintf("%d of %d", len(d.Checks)-failedChecks(d), len(d.Checks))},
	}
	if d.KVMoved >= 0 {
		shown = append(shown, part{"plain", "KV cache moved", bytesText(d.KVMoved)})
	}
	return shown
}

// reasonChart draws how often each reason decided.
func reasonChart(d *Data) (c chart) {
	all := reasons(d)
	most := 0
	for _, r := range all {
		most = max(most, r.count)
	}
	if len(all) > maxLanes {
		c.More = len(all) - maxLanes
		all = all[:maxLanes]
	}
	for _, r := range all {
		drawing := decorate(10)
		drawing.rect("fill", box{to: 100 * float64(r.count) / float64(most), height: 10})
		c.Lanes = append(c.Lanes, lane{Name: r.decision + ", " + r.reason, Kind: kind(r.decision), Note: meaning(r.reason),
			Numbers: counted(r.count, "request"), Drawing: drawing.html()})
	}
	return c
}

// kind returns the class of the style sheet for the result of a request. A decision may be any text; a class may not.
func kind(decision string) string {
	switch decision {
	case remote, local, refused:
		return decision
	}
	return "other"
}

// RequestColumns returns the headings of the table of all requests.
func (p *page) RequestColumns() []string {
	columns := []string{"number", "class", "API", "decision", "reason", "attempts", "prefill pod", "decode pod", "prompt", "cached",
		"completion", "start", "TTFT", "ITL p50"}
	for _, phase := range p.shown {
		columns = append(columns, phase.String())
	}
	return append(columns, "E2E", "KV KiB", "failure")
}

// TimeColumns returns the headings of the table of times.
func (p *page) TimeColumns() []string { return timeColumns() }

// PhaseColumns returns the headings of the table of phases.
func (p *page) PhaseColumns() []string { return phaseColumns(p.shown) }

// Fewer explains a maximum in a column of percentiles.
func (p *page) Fewer() string { return fewer }

// Counted returns the number of requests as text.
func (p *page) Counted() string { return counted(len(p.Requests), "request") }

func requestRows(d *Data) [][]string {
	rows, phases := make([][]string, 0, len(d.Requests)), shownPhases(d)
	for i := range d.Requests {
		r := &d.Requests[i]
		ttft := absent
		if r.Stream {
			ttft = millis(r.TTFT)
		}
		row := []string{strconv.Itoa(r.Number), r.Class, r.what(), r.Decision, r.Reason, strconv.Itoa(r.Attempts),
			cmp.Or(r.PrefillPod, absent), cmp.Or(r.DecodePod, absent), strconv.Itoa(r.Prompt), strconv.Itoa(r.Cached),
			strconv.Itoa(r.Completion), millis(r.Start), ttft, millis(sorted(r.ITL).percentile(50))}
		for _, p := range phases {
			took, ok := r.Phases[p.String()]
			if !ok {
				took = -1
			}
			row = append(row, millis(took))
		}
		rows = append(rows, append(row, millis(r.Total), kibibytes(r.KVBytes), r.Failure))
	}
	return rows
}
