package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/cmd/tandem/workload"
)

// madeElastic is the command that writes the report of the repository.
const madeElastic = "make elastic-report"

// rows returns the results, those of one traffic and load together.
func (e *elasticity) rows() (all []elasticRow) {
	for i := range e.traffic {
		for _, steady := range []bool{false, true} {
			for _, r := range e.runs {
				if r.traffic == &e.traffic[i] && r.steady == steady {
					all = append(all, r.row())
				}
			}
		}
	}
	return all
}

// json writes every run, one on a line.
func (e *elasticity) json(w io.Writer) error {
	type described struct {
		traffic
		Days   string `json:"days_again"`
		Steady string `json:"steady_again"`
	}
	var about []described
	for i := range e.traffic {
		t := &e.traffic[i]
		about = append(about, described{*t, e.again(t, false), e.again(t, true)})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "{\n  \"made_by\": %q,\n  \"days\": %q,\n", madeElastic, fmt.Sprint(e.days))
	if err := jsonLines(&b, "traffic", ",", about); err != nil {
		return err
	}
	if err := jsonLines(&b, "autoscalers", ",", e.contenders); err != nil {
		return err
	}
	if err := jsonLines(&b, "runs", ",", e.rows()); err != nil {
		return err
	}
	if err := jsonLines(&b, "bars", "", e.bars()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s}\n", b.String())
	return err
}

// jsonLines writes a member that is a list, with each element on a line.
func jsonLines[T any](w io.Writer, name, end string, all []T) error {
	fmt.Fprintf(w, "  %q: [\n", name)
	for i := range all {
		text, err := json.Marshal(all[i])
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "    %s%s\n", text, strings.Repeat(",", min(1, len(all)-1-i)))
	}
	_, err := fmt.Fprintf(w, "  ]%s\n", end)
	return err
}

var elasticColumns = []string{"traffic", "load", "autoscaler", "met", "GPU h", "of clairvoyant", "reversals", "changes", "TTFT p99", "TPOT p99", "refused"}

// cells returns the row of a table.
func (e *elasticity) cells(r *elasticRun) []string {
	of := "–"
	if !r.steady {
		of = fmt.Sprintf("%.2f ×", r.summary.GPUSeconds/e.of(r.traffic, clairvoyant, false).summary.GPUSeconds)
	}
	row := r.row()
	return []string{row.Traffic, row.Load, row.Autoscaler, percent2(row.Met), fmt.Sprint(row.GPUHours), of, strconv.Itoa(row.Reversals), strconv.Itoa(row.Changes),
		ms(row.TTFT), ms(row.TPOT), strconv.Itoa(row.Refused)}
}

var barColumns = []string{"traffic", "replica-sizer", "wanted", "got", "held", ""}

func (b *bar) cells() []string {
	held := "no"
	if b.Held {
		held = "yes"
	}
	return []string{b.Traffic, b.Name, b.Wanted, fmt.Sprint(b.Got), held, b.Note}
}

// text prints the tables.
func (e *elasticity) text(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(elasticColumns, "\t"))
	for i := range e.traffic {
		for _, steady := range []bool{false, true} {
			for _, r := range e.runs {
				if r.traffic == &e.traffic[i] && r.steady == steady {
					fmt.Fprintln(table, strings.Join(e.cells(r), "\t"))
				}
			}
		}
	}
	fmt.Fprintf(table, "\n%s\n", strings.Join(barColumns, "\t"))
	for _, b := range e.bars() {
		fmt.Fprintln(table, strings.Join(b.cells(), "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nTimes in ms. %s\n", elasticMeaning)
	return err
}

// elasticMeaning explains the columns.
const elasticMeaning = "Met: share of the requests with the first token within 6 s and each further one within 50 ms. Reversals: how often within ten minutes the size of a role " +
	"changed its direction, at most. GPU-hours count from the decision for an engine until it has left."

func (e *elasticity) page() *report.Plots {
	p := &report.Plots{Title: "Pools that scale", About: []string{madeElastic, fmt.Sprintf("days %s of a week", strings.Trim(fmt.Sprint(e.days), "[]")),
		fmt.Sprintf("%d engines", len(e.traffic)), fmt.Sprintf("an engine serves %v after the decision", e.settings.Scaling.PrefillReady)}}
	held, bars := 0, e.bars()
	for i := range bars {
		if bars[i].Held {
			held++
		}
	}
	p.Lead = fmt.Sprintf("Sizes that follow the load by several autoscalers, on the same requests. replica-sizer holds %d of %d bars.", held, len(bars))
	p.Notes = []string{
		"One day is a working day with a flash crowd of five times the usual load, one is a Saturday; bursts come five times a day on average. In a whole week, --week-days 1,2,3,4,5,6,7, a flash crowd counts for less.",
		"Clairvoyant and fixed sizes are found by search, with the requests known. They are what the others are compared with: no autoscaler knows its load.",
		"HPAs on queues and on KV usage run with several targets, for prefill/decode; bars take the one with the fewest GPU-hours of those that meet the objective often enough, or else the one that meets it most often.",
		"Engines and links are models: they compare autoscalers, and promise no latencies."}
	for i := range e.traffic {
		t := &e.traffic[i]
		mine := e.of(t, bySizer, false)
		p.Tiles = append(p.Tiles, report.TrialTile{Name: t.Name + ": met by replica-sizer", Number: percent2(mine.summary.Met)},
			report.TrialTile{Name: t.Name + ": GPU-hours, of clairvoyant", Number: fmt.Sprintf("%.2f ×", mine.summary.GPUSeconds/e.of(t, clairvoyant, false).summary.GPUSeconds)})
		p.Sections = append(p.Sections, e.section(t))
	}
	p.Tables = e.tables(bars)
	return p
}

// drawn are the autoscalers of plots; HPAs with their best targets.
var drawn = []string{bySizer, clairvoyant, fixedSizes, hpaQueue, hpaKV}

// section shows the load and the sizes of one traffic.
func (e *elasticity) section(t *traffic) report.PlotSection {
	s := report.PlotSection{Title: t.Name + ", " + t.Engine, Note: fmt.Sprintf("%d to %d tokens in, %d to %d out, %v requests in a second as the mean of a week.",
		t.input.Least, t.input.Most, t.output.Least, t.output.Most, t.Rate)}
	const bin = 10 * time.Minute
	requests := e.of(t, bySizer, false).requests.Requests
	counts := make([]float64, 1+int(requests[len(requests)-1].Due/bin))
	for i := range requests {
		counts[requests[i].Due/bin]++
	}
	load := report.Plot{Title: "Load", X: "time", Y: "Requests in a second", Times: true, Steps: true, Lines: []report.PlotLine{{Name: "requests"}}}
	for i, n := range counts {
		load.Lines[0].Points = append(load.Lines[0].Points, report.MeasuredPoint{X: millis(time.Duration(i) * bin), Y: n / bin.Seconds()})
	}
	s.Plots = append(s.Plots, load)
	end := requests[len(requests)-1].Due
	s.Plots = append(s.Plots, e.sizes(t, "All engines", drawn[:3], 0, end))
	if at := e.flash(); at >= 0 {
		s.Plots = append(s.Plots, e.sizes(t, "All engines, around the flash crowd", drawn, at-time.Hour, at+2*time.Hour))
	}
	goodput := report.PlotBars{Title: "Requests that met the objective", Note: "and the GPU-hours that this took"}
	for i, name := range drawn {
		r := e.of(t, name, false)
		goodput.Bars = append(goodput.Bars, report.PlotBar{Name: r.contender.Name, Kind: i, Value: r.summary.Met,
			Numbers: fmt.Sprintf("%s · %.0f GPU-hours", percent2(r.summary.Met), r.summary.GPUSeconds/3600)})
	}
	s.Bars = []report.PlotBars{goodput}
	return s
}

// flash returns when the flash crowd begins; less than 0 if its day is not among those that are replayed.
func (e *elasticity) flash() time.Duration {
	const day = 24 * time.Hour
	for i, d := range e.days {
		if time.Duration(d-1) == workload.FlashAt/day {
			return time.Duration(i)*day + workload.FlashAt%day
		}
	}
	return -1
}

// sizes draws how many engines of both roles there were between two moments.
func (e *elasticity) sizes(t *traffic, title string, names []string, from, to time.Duration) report.Plot {
	p := report.Plot{Title: title, X: "time", Y: "Engines that serve or start", Times: true, Steps: true}
	for kind, name := range names {
		r := e.of(t, name, false)
		line := report.PlotLine{Name: r.contender.Name, Kind: kind, Numbers: fmt.Sprintf("%.0f GPU-hours", r.summary.GPUSeconds/3600)}
		roles, before := map[string]int{}, 0
		add := func(at time.Duration, size int) {
			line.Points = append(line.Points, report.MeasuredPoint{X: millis(at - from), Y: float64(size)})
		}
		for _, one := range r.sizes {
			if roles[one.Role] = one.Size; len(roles) < 2 {
				continue
			}
			sum := 0
			for _, n := range roles {
				sum += n
			}
			switch {
			case one.At <= from:
				before = sum
				continue
			case one.At > to:
				continue
			case len(line.Points) == 0:
				add(from, before)
			}
			add(one.At, sum)
		}
		if len(line.Points) == 0 {
			add(from, before)
		}
		add(to, int(line.Points[len(line.Points)-1].Y))
		p.Lines = append(p.Lines, line)
	}
	return p
}

func (e *elasticity) tables(bars []bar) []report.MeasuredTable {
	judged := report.MeasuredTable{Name: "What replica-sizer is to do", Columns: barColumns, Notes: []string{"Marked: not held."}}
	for i := range bars {
		judged.Rows = append(judged.Rows, report.MeasuredRow{Cells: bars[i].cells(), Marked: !bars[i].Held})
	}
	all := []report.MeasuredTable{judged}
	for i := range e.traffic {
		t := &e.traffic[i]
		table := report.MeasuredTable{Name: "Every run: " + t.Name + ", " + t.Engine, Columns: elasticColumns,
			Notes: []string{"Times in ms. " + elasticMeaning, "A run again, with the flags of its autoscaler: " + e.again(t, false), "At steady load: " + e.again(t, true)}}
		for _, steady := range []bool{false, true} {
			for _, r := range e.runs {
				if r.traffic == t && r.steady == steady {
					table.Rows = append(table.Rows, report.MeasuredRow{Cells: e.cells(r), Marked: r.contender.scaler == bySizer})
				}
			}
		}
		all = append(all, table)
	}
	flags := report.MeasuredTable{Name: "Flags", Columns: []string{"autoscaler", "flags"}}
	for _, c := range e.contenders {
		flags.Rows = append(flags.Rows, report.MeasuredRow{Cells: []string{c.Name, c.Flags}})
	}
	return append(all, flags)
}
