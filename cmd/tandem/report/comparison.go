package report

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Comparison is the same load on engines that are arranged in two ways and measured in turns. All times are in milliseconds.
type Comparison struct {
	On    string   `json:"on"`    // "the same 4 engines", or "4 engines of each side"
	About []string `json:"about"` // engines and load, a few words each
	Goal  Goal     `json:"goal"`
	Step  float64  `json:"step_ms"` // how long the model says that a decode step takes: the machine must not take much longer
	Sides [2]Side  `json:"sides"`   // local prefill, then P/D
}

// Goal is what a client wants of a request.
type Goal struct {
	TTFT float64 `json:"ttft_ms"` // at most
	Gap  float64 `json:"gap_ms"`  // at most, between any two tokens
}

// Side is one arrangement of the engines. Round i of both sides had the same lengths and arrivals.
type Side struct {
	Name   string  `json:"name"`
	About  string  `json:"about"` // what the engines do, in a few words
	Rounds []Round `json:"rounds"`
}

// Round is the requests of one round.
type Round struct {
	Seconds float64  `json:"seconds"` // in which they arrived
	Samples []Sample `json:"samples"`
}

// Sample is one request of a round.
type Sample struct {
	Kind    string    `json:"kind"`
	Late    float64   `json:"late_ms"` // from when it was due to when it was sent
	TTFT    float64   `json:"ttft_ms"` // from when it was due to the first token
	ITL     []float64 `json:"itl_ms"`
	Failure string    `json:"failure,omitempty"`
}

// meets reports whether a request was answered as the client wants it.
func (s *Sample) meets(g Goal) bool {
	return s.Failure == "" && s.TTFT <= g.TTFT && !slices.ContainsFunc(s.ITL, func(gap float64) bool { return gap > g.Gap })
}

// figure is a number of a round by which sides are compared.
type figure struct {
	name   string
	higher bool // is better
	of     func(r *Round) float64
}

// figures returns what is compared, with a time to the first token for each kind of request.
func (c *Comparison) figures() []figure {
	all := []figure{
		{"ITL p50, ms", false, func(r *Round) float64 { return r.itl().percentile(50) }},
		{"ITL p99, ms", false, func(r *Round) float64 {
			if s := r.itl(); len(s) >= enough {
				return s.percentile(99)
			}
			return math.NaN()
		}},
	}
	for _, kind := range c.kinds() {
		all = append(all, figure{"TTFT p50 of " + kind + ", ms", false, func(r *Round) float64 { return r.ttft(kind).percentile(50) }})
	}
	return append(all, figure{"goodput, requests/s", true, func(r *Round) float64 {
		met := 0
		for i := range r.Samples {
			if r.Samples[i].meets(c.Goal) {
				met++
			}
		}
		return float64(met) / r.Seconds
	}})
}

// kinds returns the kinds of requests, in the order in which they first appear.
func (c *Comparison) kinds() (all []string) {
	for _, s := range c.Sides {
		for _, r := range s.Rounds {
			for _, x := range r.Samples {
				if !slices.Contains(all, x.Kind) {
					all = append(all, x.Kind)
				}
			}
		}
	}
	return all
}

// itl returns the gaps of all requests.
func (r *Round) itl() spread {
	var all []float64
	for _, x := range r.Samples {
		all = append(all, x.ITL...)
	}
	return sorted(all)
}

// ttft returns the times to the first token of the answered requests of a kind.
func (r *Round) ttft(kind string) spread {
	var all []float64
	for _, x := range r.Samples {
		if x.Kind == kind && x.Failure == "" {
			all = append(all, x.TTFT)
		}
	}
	return sorted(all)
}

// pooled returns the rounds of a side as one.
func (s *Side) pooled() *Round {
	all := &Round{}
	for _, r := range s.Rounds {
		all.Seconds += r.Seconds
		all.Samples = append(all.Samples, r.Samples...)
	}
	return all
}

// Verdicts on a difference, which are also classes of the style sheet, except unclear.
const (
	better  = "better"
	worse   = "worse"
	same    = "same"
	unclear = "unclear"
)

// negligible is the share of the local figure below which a difference does not matter, however sure it is.
const negligible = 0.03

// enoughPairs is the least number of pairs of rounds for a verdict. If a figure differs in the same direction in all of six
// pairs, its median differs with 96.9 % confidence.
const enoughPairs = 6

// difference is how much P/D differs from local prefill by a figure.
type difference struct {
	figure
	local, split float64   // medians over the rounds
	pairs        []float64 // P/D less local, in each pair of rounds
	verdict      string
}

// compared returns the figures that every round of both sides has.
func (c *Comparison) compared() (all []difference) {
	n := min(len(c.Sides[0].Rounds), len(c.Sides[1].Rounds))
	for _, f := range c.figures() {
		d := difference{figure: f}
		var local, split []float64
		for i := range n {
			a, b := f.of(&c.Sides[0].Rounds[i]), f.of(&c.Sides[1].Rounds[i])
			if plausible(a) && plausible(b) {
				local, split, d.pairs = append(local, a), append(split, b), append(d.pairs, b-a)
			}
		}
		if len(d.pairs) < n || n == 0 {
			continue
		}
		d.local, d.split = middle(local), middle(split)
		d.verdict = d.judge()
		all = append(all, d)
	}
	return all
}

func (d *difference) judge() string {
	low, high := slices.Min(d.pairs), slices.Max(d.pairs)
	switch {
	case len(d.pairs) < enoughPairs:
		return unclear
	case low <= 0 && high >= 0, math.Abs(d.median()) < negligible*d.local:
		return same
	case (low > 0) == d.higher:
		return better
	}
	return worse
}

// words is the verdict for a person.
func (d *difference) words() string {
	return map[string]string{better: "P/D is better", worse: "P/D is worse", same: "no difference", unclear: "too few rounds"}[d.verdict]
}

// median returns the middle of the pairs' differences.
func (d *difference) median() float64 { return middle(d.pairs) }

// middle returns the median: of an even number of values the mean of the two in the middle.
func middle(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// summary says what P/D is worth under this load, and whether the machine was fast enough to tell.
func (c *Comparison) summary() string {
	by := map[string][]string{}
	for _, d := range c.compared() {
		name, unit, _ := strings.Cut(d.name, ", ")
		by[d.verdict] = append(by[d.verdict], fmt.Sprintf("%s (%s instead of %s %s)", name, millis(d.split), millis(d.local), unit))
	}
	var parts []string
	if gains := by[better]; len(gains) > 0 {
		parts = append(parts, "P/D pays here in "+strings.Join(gains, " and ")+".")
	} else if len(by[unclear]) == 0 {
		parts = append(parts, "P/D does not pay here: no figure is better in every pair of rounds.")
	}
	if costs := by[worse]; len(costs) > 0 {
		parts = append(parts, "It costs "+strings.Join(costs, " and ")+".")
	}
	if len(by[unclear]) > 0 {
		parts = append(parts, fmt.Sprintf("A verdict takes %d pairs of rounds.", enoughPairs))
	}
	if c.tooSlow() {
		parts = append(parts, "This machine was too slow or too busy: the figures are its own as much as the model's.")
	}
	return strings.Join(parts, " ")
}

// slowMachine is how much longer than the model's step the median gap may be, as a factor, and how late a request may be sent,
// in ms, before the figures are said to be the machine's.
const (
	slowMachine = 1.3
	lateSend    = 20
)

// paces returns how late requests were sent, and the median gap between tokens.
func (c *Comparison) paces() (lateness spread, gap float64) {
	var late, gaps []float64
	for i := range c.Sides {
		for _, x := range c.Sides[i].pooled().Samples {
			late, gaps = append(late, max(0, x.Late)), append(gaps, x.ITL...)
		}
	}
	return sorted(late), sorted(gaps).percentile(50)
}

// tooSlow reports whether the machine was too slow for the figures to be the model's.
func (c *Comparison) tooSlow() bool {
	lateness, gap := c.paces()
	_, tail := lateness.tail()
	return tail > lateSend || gap > slowMachine*c.Step
}

// pace says how late requests were sent, and how long a step took against the model's.
func (c *Comparison) pace() string {
	lateness, gap := c.paces()
	name, tail := lateness.tail()
	return fmt.Sprintf("Requests were sent at most %s ms late (%s %s ms). The median gap is %s ms, where the model's step takes %s ms or more.",
		millis(lateness.percentile(100)), name, millis(tail), millis(gap), millis(c.Step))
}

// goal says what goodput counts.
func (c *Comparison) goal() string {
	bound := func(ms float64) string {
		if !plausible(ms) {
			return absent
		}
		return tick(ms)
	}
	return fmt.Sprintf("goodput: requests with a TTFT of at most %s and no gap above %s", bound(c.Goal.TTFT), bound(c.Goal.Gap))
}

// rows returns the table of figures, for terminal and page.
func (c *Comparison) rows() (columns []string, rows [][]string) {
	const longest = 16 // of a name, in characters
	columns = []string{"median round", cut(c.Sides[0].Name, longest), cut(c.Sides[1].Name, longest), "difference", "lowest", "highest", ""}
	for _, d := range c.compared() {
		rows = append(rows, []string{d.name, millis(d.local), millis(d.split), signed(d.median()), signed(slices.Min(d.pairs)),
			signed(slices.Max(d.pairs)), d.words()})
	}
	return columns, rows
}

// signed prints a difference with its sign.
func signed(v float64) string {
	if math.Abs(v) < 0.05 {
		return "0.0"
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func textComparison(b *bytes.Buffer, c *Comparison) {
	columns, rows := c.rows()
	fmt.Fprintf(b, "\nThe same load on %s, in turns, %s of each:\n", line(c.On), counted(len(c.Sides[1].Rounds), "round"))
	for _, s := range c.Sides {
		fmt.Fprintf(b, "%s: %s\n", line(s.Name), line(s.About))
	}
	fmt.Fprintf(b, "%s\n\n", line(strings.Join(c.About, "; ")))
	textTable(b, append([][]string{columns}, rows...))
	fmt.Fprintf(b, "%s\n%s\n%s\n", c.goal(), line(c.summary()), c.pace())
}

// duel is the comparison on the page.
type duel struct {
	About               []string
	Summary, Pace, Goal string
	Names, Roles        [2]string
	Differences         chart
	Charts              []titledChart
	Columns             []string
	Rows                [][]string
}

// newDuel returns nil if nothing was compared.
func newDuel(c *Comparison) *duel {
	if c == nil {
		return nil
	}
	p := &duel{About: c.About, Summary: c.summary(), Pace: c.pace(), Goal: c.goal(), Names: [2]string{c.Sides[0].Name, c.Sides[1].Name},
		Roles: [2]string{c.Sides[0].About, c.Sides[1].About}}
	p.Columns, p.Rows = c.rows()
	var all []TrialDifference
	for _, d := range c.compared() {
		if d.local > 0 {
			all = append(all, d.drawn())
		}
	}
	p.Differences = differences(all)
	charts := []TrialChart{{Title: "Inter-token latency (ITL)", Note: "All gaps between tokens."}}
	of := []func(*Round) spread{(*Round).itl}
	for _, kind := range c.kinds() {
		charts = append(charts, TrialChart{Title: "TTFT of " + kind, Note: "From when a request was due to its first token."})
		of = append(of, func(r *Round) spread { return r.ttft(kind) })
	}
	for i, t := range charts {
		for which := range c.Sides {
			s := of[i](c.Sides[which].pooled())
			l := TrialLane{Name: c.Sides[which].Name, Second: which == 0, Values: s} // colours of local and remote
			if len(s) > 0 {
				l.Numbers = s.numbers()
			}
			t.Lanes = append(t.Lanes, l)
		}
		if drawn := t.draw(); len(drawn.Lanes) > 0 {
			p.Charts = append(p.Charts, titledChart{t.Title, t.Note, drawn})
		}
	}
	return p
}

// drawn returns the difference in percent of local prefill.
func (d *difference) drawn() TrialDifference {
	percent := func(v float64) float64 { return 100 * v / d.local }
	t := TrialDifference{Name: d.name, Kind: d.verdict, Median: percent(d.median()), Low: percent(slices.Min(d.pairs)),
		High: percent(slices.Max(d.pairs)), Numbers: fmt.Sprintf("%s → %s · %s", millis(d.local), millis(d.split), d.words())}
	for _, v := range d.pairs {
		t.Pairs = append(t.Pairs, percent(v))
	}
	return t
}
