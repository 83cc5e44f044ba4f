package replay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/replay"
)

// checkRegret returns why flags make no sense with --regret; nil if they do.
func (s *settings) checkRegret() error {
	switch usual := defaults(); {
	case !slices.Equal(s.Load.Speeds, usual.Load.Speeds) || len(s.Load.Concurrency) > 0:
		return boot.Usagef("--regret looks for the rates itself: leave out --speed and --concurrency")
	case s.Load.weekly() || len(s.Scaling.Autoscalers) > 0:
		return boot.Usagef("--regret compares pools that stay as they are, at even rates: leave out --arrivals=week and --autoscaler")
	case s.Load.Classes != "":
		return boot.Usagef("--regret has one objective, that of --slo-ttft and --slo-tpot: leave out --classes")
	}
	return nil
}

// regret is the command with --regret. Nothing is written if it is interrupted: half a study would compare other things.
func (s *settings) regret(ctx context.Context, files []string, std boot.IO) error {
	if err := s.checkRegret(); err != nil {
		return err
	}
	t, err := s.newStudy(files, std.Stderr)
	if err != nil {
		return boot.Configf("%w", err)
	}
	if err := t.perform(ctx, std.Stderr); err != nil {
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted: there is no result")
		}
		return err
	}
	write := t.text
	if s.Output.JSON {
		write = t.json
	}
	err = write(std.Stdout)
	if s.Output.Page != "" {
		var b bytes.Buffer
		if err = errors.Join(err, report.PlotsHTML(&b, t.page())); err == nil {
			err = os.WriteFile(s.Output.Page, b.Bytes(), 0o644)
		}
	}
	if err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}

// again returns the command that replays a cell; the flags of a policy come in addition.
func (t *study) again() string {
	load := "--shape WORKLOAD --rate RATE"
	if w := &t.workloads[0]; w.traced != nil {
		load = fmt.Sprintf("%s --speed RATE/%.4g", w.name, w.rate)
	}
	return "tandem replay " + load + " --requests REQUESTS --engine ENGINE --pool POOL --slo-ttft TTFT --slo-tpot TPOT --first-event-timeout 0"
}

// json writes every cell, one on a line.
func (t *study) json(w io.Writer) error {
	type studied struct {
		Name  string  `json:"name"`
		About string  `json:"about"`
		TTFT  float64 `json:"slo_ttft_ms"`
		TPOT  float64 `json:"slo_tpot_ms"`
	}
	var workloads []studied
	for _, one := range t.workloads {
		workloads = append(workloads, studied{one.name, one.about(), millis(one.slo.TTFT), millis(one.slo.TPOT)})
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n  \"made_by\": %q,\n  \"a_cell_again\": %q,\n", t.madeBy, t.again())
	if err := errors.Join(
		jsonLines(&b, "workloads", ",", workloads), jsonLines(&b, "policies", ",", t.policies), jsonLines(&b, "capacities", ",", t.most), jsonLines(&b, "cells", "", t.cells)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s}\n", b.Bytes())
	return err
}

// standing is how a policy did over many cells.
type standing struct {
	mean, worst float64 // regret
	at          *cell   // the worst one
	near        float64 // share of the cells in which it lacks at most 5 %
	ttft        float64 // geometric mean of the p95 of TTFT, as a multiple of the best policy's
	unbounded   int     // cells in which it refused so many that there is no such p95
}

// near is the regret up to which a policy counts as good as the best.
const near = 0.05

// nearOracle is how far ours may be behind an oracle.
const nearOracle = 0.1

// standing returns how policy i did over cells that have a best policy.
func standingOf(cells []*cell, i int) (s standing) {
	compared, logs, n := 0, 0.0, 0
	for _, c := range cells {
		if c.Best == "" {
			continue
		}
		n++
		one := &c.Scores[i]
		if s.mean += one.Regret; one.Regret > s.worst || s.at == nil {
			s.worst, s.at = one.Regret, c
		}
		if one.Regret <= near {
			s.near++
		}
		best := math.Inf(1)
		for k := range c.Scores {
			if p95 := c.Scores[k].TTFT; p95 != nil {
				best = min(best, *p95)
			}
		}
		switch {
		case one.TTFT != nil && best > 0:
			logs, compared = logs+math.Log(*one.TTFT/best), compared+1
		default:
			s.unbounded++
		}
	}
	s.mean, s.near, s.ttft = s.mean/float64(max(1, n)), s.near/float64(max(1, n)), math.Exp(logs/float64(max(1, compared)))
	return s
}

// margin is how a policy's highest rates compare with those of ours.
type margin struct {
	mean float64 // geometric mean of those of ours, as multiples of the policy's, where both have one
	much int     // in how many workloads on an engine and pool ours has at least muchMore times the policy's, which may be none
	of   int     // of how many in which either has one
}

// muchMore is what ours is to reach, as a multiple of llm-d's published configuration.
const muchMore = 1.2

// marginOf compares policy i's highest rates with those of ours.
func (t *study) marginOf(i int) (m margin) {
	mine := slices.IndexFunc(t.policies, func(p policy) bool { return p.Name == ours })
	logs, n := 0.0, 0
	for _, one := range t.most {
		own, its := one.Rates[mine], one.Rates[i]
		if own == 0 && its == 0 {
			continue
		}
		m.of++
		if own >= muchMore*its {
			m.much++
		}
		if own > 0 && its > 0 {
			logs, n = logs+math.Log(own/its), n+1
		}
	}
	m.mean = math.Exp(logs / float64(max(1, n)))
	return m
}

var standingColumns = []string{"policy", "mean regret", "worst regret", "within 5 %", "TTFT p95", "no p95", "worst on", "ours bears", fmt.Sprintf("≥ %v ×", muchMore)}

// standings returns the table of all policies.
func (t *study) standings() (rows [][]string) {
	for i, p := range t.policies {
		s := standingOf(t.cells, i)
		at := "–"
		if s.at != nil {
			at = fmt.Sprintf("%s, %s, %s, %d%%", s.at.Workload, s.at.Engine, s.at.Pool, s.at.Load)
		}
		rows = append(rows, append([]string{p.Name, percent(s.mean), percent(s.worst), percent(s.near), fmt.Sprintf("%.2f ×", s.ttft), strconv.Itoa(s.unbounded), at}, t.marginCells(i)...))
	}
	return rows
}

// marginCells returns the cells about policy i's highest rates.
func (t *study) marginCells(i int) []string {
	if t.policies[i].Name == ours {
		return []string{"–", "–"}
	}
	m := t.marginOf(i)
	return []string{fmt.Sprintf("%.2f ×", m.mean), fmt.Sprintf("%d of %d", m.much, m.of)}
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// meaning explains the table of standings.
const meaning = "Regret: the share of the requests that the best policy serves as wanted, and a policy does not. TTFT p95: as a multiple of the best policy's, where the policy has one; " +
	"it has none where it refuses more than 5 % of the requests. Ours bears: the highest rate at which ours serves 90 % of the requests as wanted, as a multiple of the policy's; " +
	"the geometric mean, and in how many workloads, engines and pools it is at least so much."

func (t *study) text(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{standingColumns}, t.standings()...) {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d cells of workload, engine, pool and load, in %d of which a policy met the objective. %s\n", len(t.cells), t.compared(), meaning)
	if beside := t.besideOracle(); err == nil && beside != "" {
		_, err = fmt.Fprintln(w, beside)
	}
	return err
}

// besideOracle says how ours compares with the oracle; "" if that did not run.
func (t *study) besideOracle() string {
	mine := slices.IndexFunc(t.policies, func(p policy) bool { return p.Name == ours })
	n, close, mean := 0, 0, 0.0
	var worst *cell
	lacks := func(c *cell) float64 { return 1 - c.Scores[mine].Met/c.Oracle.Met }
	for _, c := range t.cells {
		if c.Oracle == nil || c.Oracle.Met == 0 {
			continue
		}
		n++
		if mean += lacks(c); lacks(c) <= nearOracle {
			close++
		}
		if worst == nil || lacks(c) > lacks(worst) {
			worst = c
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("An oracle knows how long answers will be, and the state of every engine. Of the requests that it serves as wanted, ours serves %s less on average; at most %s less in %d of %d cells, and %s on %s, %s, %s, %d%%.",
		percent(mean/float64(n)), percent(nearOracle), close, n, percent(lacks(worst)), worst.Workload, worst.Engine, worst.Pool, worst.Load)
}

// compared returns in how many cells a policy met the objective at all.
func (t *study) compared() (n int) {
	for _, c := range t.cells {
		if c.Best != "" {
			n++
		}
	}
	return n
}

func (t *study) page() *report.Plots {
	p := &report.Plots{Title: "How far policies are behind the best one", About: []string{t.madeBy, fmt.Sprintf("%d workloads", len(t.workloads)),
		fmt.Sprintf("%d engines", len(t.models)), fmt.Sprintf("%d pools of %d engines", len(t.pools), t.pools[0].Engines()),
		fmt.Sprintf("%d to %d %% of the capacity", slices.Min(t.loads), slices.Max(t.loads))}}
	p.Lead = fmt.Sprintf("Each of %d policies ran in %d cells of workload, engine, pool and load. The regret of a policy is the share of the requests that the best one in the cell serves as wanted, and it does not.",
		len(t.policies), len(t.cells))
	p.Notes = []string{
		"100 % load is the highest rate at which always local, always remote or the threshold of 2,048 tokens serves 90 % of the requests as wanted: the capacity differs by workload, engine and pool, and is found by bisection.",
		"Always local on a pool of prefill and decode engines leaves the prefill engines idle. As many engines that do both are shown beside the policies, as shared; they are no policy of the pool, and are not among what the best is chosen from.",
		fmt.Sprintf("A run has %d to %d requests, so that all runs together take minutes on two cores; short runs under overload flatter every policy.", leastTested, mostTested),
		"Engines and links are models, which have not been compared with real ones yet."}
	if skipped := len(t.cells) - t.compared(); skipped > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("In %d cells no policy met the objective of the workload for any request; they are in no mean.", skipped))
	}
	for i, policy := range t.policies {
		if policy.Name == ours {
			s := standingOf(t.cells, i)
			p.Tiles = []report.TrialTile{{Name: "mean regret of ours", Number: percent(s.mean)}, {Name: "its worst", Number: percent(s.worst)},
				{Name: "cells in which ours is within 5 %", Number: percent(s.near)}}
		}
		if policy.Name == published {
			m := t.marginOf(i)
			p.Tiles = append(p.Tiles, report.TrialTile{Name: fmt.Sprintf("workloads, engines and pools in which ours bears at least %v × the load of %s", muchMore, published),
				Number: fmt.Sprintf("%d of %d", m.much, m.of)})
		}
	}
	p.Sections = append([]report.PlotSection{t.overall()}, t.byWorkload()...)
	p.Tables = t.tables()
	return p
}

// overall shows the mean regret by everything that cells differ by.
func (t *study) overall() report.PlotSection {
	s := report.PlotSection{Title: "Mean regret", Note: "Lower is better. Every point is the mean over all cells that have the same place on the axis."}
	for _, by := range []struct {
		name string
		of   func(c *cell) string
	}{
		{"load, percent of the capacity", func(c *cell) string { return strconv.Itoa(c.Load) + "%" }},
		{"pool", func(c *cell) string { return c.Pool }},
		{"engine", func(c *cell) string { return c.Engine }},
		{"workload", func(c *cell) string { return c.Workload }},
	} {
		p := report.Plot{Title: "By " + strings.SplitN(by.name, ",", 2)[0], X: by.name, Y: "Percent of the best goodput that is lacking", Dots: true}
		groups := map[string][]*cell{}
		for _, c := range t.cells {
			name := by.of(c)
			if !slices.Contains(p.Names, name) {
				p.Names = append(p.Names, name)
			}
			groups[name] = append(groups[name], c)
		}
		for i, policy := range t.policies {
			l := report.PlotLine{Name: policy.Name, Kind: i, Numbers: percent(standingOf(t.cells, i).mean)}
			for x, name := range p.Names {
				l.Points = append(l.Points, report.MeasuredPoint{X: float64(x), Y: 100 * standingOf(groups[name], i).mean})
			}
			p.Lines = append(p.Lines, l)
		}
		// Long names would not fit on the axis.
		if slices.ContainsFunc(p.Names, func(name string) bool { return len(name) > 8 }) {
			p.Note = "The numbers are"
			for i, name := range p.Names {
				p.Note, p.Names[i] = fmt.Sprintf("%s %d %s,", p.Note, i+1, name), strconv.Itoa(i+1)
			}
			p.Note = strings.TrimSuffix(p.Note, ",") + "."
		}
		s.Plots = append(s.Plots, p)
	}
	return s
}

// byWorkload shows the requests that met the objective, by load.
func (t *study) byWorkload() (all []report.PlotSection) {
	for _, w := range t.workloads {
		s := report.PlotSection{Title: w.name, Note: fmt.Sprintf("%s; here the load sets the rate. Wanted: TTFT ≤ %v and TPOT ≤ %v. Means over the pools; shared: as many engines that do both, always local.",
			w.about(), w.slo.TTFT, w.slo.TPOT)}
		for _, m := range t.models {
			p := report.Plot{Title: m.name, X: "load, percent of the capacity", Y: "Percent of the requests that met the objective", Dots: true}
			for i := range len(t.policies) + 1 {
				l := report.PlotLine{Name: "shared", Kind: i}
				if i < len(t.policies) {
					l.Name = t.policies[i].Name
				}
				for x, load := range t.loads {
					met, n := 0.0, 0
					for _, c := range t.cells {
						if c.Workload != w.name || c.Engine != m.name || c.Load != load || c.Best == "" {
							continue
						}
						n++
						if i < len(t.policies) {
							met += c.Scores[i].Met
						} else {
							met += c.Shared.Met
						}
					}
					if n > 0 {
						l.Points = append(l.Points, report.MeasuredPoint{X: float64(x), Y: 100 * met / float64(n)})
					}
				}
				p.Lines = append(p.Lines, l)
			}
			for _, load := range t.loads {
				p.Names = append(p.Names, strconv.Itoa(load)+"%")
			}
			s.Plots = append(s.Plots, p)
		}
		all = append(all, s)
	}
	return all
}

// mostCells is how many cells the table of the worst ones has.
const mostCells = 20

func (t *study) tables() []report.MeasuredTable {
	standings := report.MeasuredTable{Name: "Policies over all cells", Columns: standingColumns, Notes: []string{meaning}}
	for i, cells := range t.standings() {
		standings.Rows = append(standings.Rows, report.MeasuredRow{Cells: cells, Marked: t.policies[i].Name == ours})
	}
	for _, p := range t.policies {
		standings.Notes = append(standings.Notes, strings.TrimRight(fmt.Sprintf("%s: %s. %s", p.Name, p.About, p.Flags), " "))
	}
	standings.Notes = append(standings.Notes, "A cell again: "+t.again())
	mine := slices.IndexFunc(t.policies, func(p policy) bool { return p.Name == ours })
	sorted := slices.DeleteFunc(slices.Clone(t.cells), func(c *cell) bool { return c.Best == "" })
	slices.SortStableFunc(sorted, func(a, b *cell) int { return cmp.Compare(b.Scores[mine].Regret, a.Scores[mine].Regret) })
	worst := report.MeasuredTable{Name: "Where ours is farthest behind", Columns: []string{"workload", "engine", "pool", "load", "rate", "requests", "best", "served as wanted", "ours", "regret", "TTFT p95", "ours"}}
	for _, c := range sorted[:min(mostCells, len(sorted))] {
		best := &c.Scores[slices.IndexFunc(t.policies, func(p policy) bool { return p.Name == c.Best })]
		worst.Rows = append(worst.Rows, report.MeasuredRow{Cells: []string{c.Workload, c.Engine, c.Pool, strconv.Itoa(c.Load) + "%", fmt.Sprint(c.Rate), strconv.Itoa(c.Requests),
			c.Best, percent(best.Met), percent(c.Scores[mine].Met), percent(c.Scores[mine].Regret), p95(best), p95(&c.Scores[mine])}})
	}
	return append([]report.MeasuredTable{standings, worst, t.rates()}, t.means()...)
}

// rates returns the highest rate of every policy, of each workload on each engine and pool.
func (t *study) rates() report.MeasuredTable {
	table := report.MeasuredTable{Name: "Highest rates at which 90 % of the requests are served as wanted, in sessions a second", Columns: []string{"workload", "engine", "pool"}}
	for _, p := range t.policies {
		table.Columns = append(table.Columns, p.Name)
	}
	for _, one := range t.most {
		row := []string{one.Workload, one.Engine, one.Pool}
		for _, rate := range one.Rates {
			row = append(row, fmt.Sprintf("%.3g", rate))
		}
		table.Rows = append(table.Rows, report.MeasuredRow{Cells: row})
	}
	return table
}

func p95(s *score) string {
	if s.TTFT == nil {
		return "–"
	}
	return ms(*s.TTFT)
}

// means returns the mean regret over the loads, of each policy on each workload, engine and pool.
func (t *study) means() (all []report.MeasuredTable) {
	for _, w := range t.workloads {
		table := report.MeasuredTable{Name: w.name + ": mean regret over the loads, in percent", Columns: []string{"engine", "pool", "capacity, sessions/s"}}
		for _, p := range t.policies {
			table.Columns = append(table.Columns, p.Name)
		}
		table.Columns = append(table.Columns, "shared")
		for _, m := range t.models {
			for _, pool := range t.pools {
				table.Rows = append(table.Rows, t.meanRow(w.name, m.name, pool))
			}
		}
		all = append(all, table)
	}
	return all
}

func (t *study) meanRow(name, engine string, pool replay.Pool) report.MeasuredRow {
	var cells []*cell
	shared, capacity := 0.0, 0.0
	for _, c := range t.cells {
		if c.Workload == name && c.Engine == engine && c.Pool == pool.String() && c.Best != "" {
			cells = append(cells, c)
			shared, capacity = shared+c.Shared.Regret, c.Rate*100/float64(c.Load)
		}
	}
	row := report.MeasuredRow{Cells: []string{engine, pool.String(), fmt.Sprintf("%.3g", capacity)}}
	for i := range t.policies {
		cell := "–"
		if len(cells) > 0 {
			cell = fmt.Sprintf("%.1f", 100*standingOf(cells, i).mean)
		}
		row.Cells = append(row.Cells, cell)
	}
	if len(cells) > 0 {
		return report.MeasuredRow{Cells: append(row.Cells, fmt.Sprintf("%.1f", 100*shared/float64(len(cells))))}
	}
	return report.MeasuredRow{Cells: append(row.Cells, "–")}
}
