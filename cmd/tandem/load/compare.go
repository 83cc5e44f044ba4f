package load

import (
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/pd"
)

// metric is a figure of a round that sides are compared by.
type metric struct {
	name, label string
	decimals    int
	higher      bool // more is better
}

// compared are what sides are compared by, in the order in which they are shown.
var compared = []metric{
	{"ttft_p50_ms", "TTFT p50, ms", 1, false},
	{"ttft_p95_ms", "TTFT p95, ms", 1, false},
	{"itl_p50_ms", "ITL p50, ms", 2, false},
	{"itl_p99_ms", "ITL p99, ms", 2, false},
	{"tpot_p50_ms", "TPOT p50, ms", 2, false},
	{"e2e_p50_ms", "E2E p50, ms", 1, false},
	{"e2e_p95_ms", "E2E p95, ms", 1, false},
	{"output_tokens_per_s", "output tokens/s", 1, true},
	{"output_tokens_per_s_per_gpu", "output tokens/s per GPU", 1, true},
	{"goodput_per_s", "goodput, requests/s", 2, true},
	{"goodput_per_s_per_gpu", "goodput per GPU, requests/s", 3, true},
	{"failed_percent", "failed, %", 2, false},
}

// compare compares two sides by the pairs of rounds that both have. A pair has the same lengths and arrivals, so that what remains is
// the difference of the sides and noise.
func compare(first, second *SideResult) *Comparison {
	pairs := min(len(first.Rounds), len(second.Rounds))
	c := &Comparison{First: first.Name, Second: second.Name, Pairs: pairs, Differences: []Difference{}}
	for _, m := range compared {
		var a, b, differences []float64
		for i := range pairs {
			x, hasX := first.Rounds[i].Figures[m.name]
			y, hasY := second.Rounds[i].Figures[m.name]
			if !hasX || !hasY {
				break
			}
			a, b, differences = append(a, x), append(b, y), append(differences, x-y)
		}
		if len(differences) == pairs && pairs > 0 {
			c.Differences = append(c.Differences, m.difference(a, b, differences))
		}
	}
	return c
}

func (m metric) difference(a, b, pairs []float64) Difference {
	d := Difference{Metric: m.name, First: median(a), Second: median(b), Difference: median(pairs), Pairs: pairs, Verdict: TooFewRounds}
	if d.Second != 0 {
		percent := 100 * d.Difference / d.Second
		d.Percent = &percent
	}
	low, high, ok := medianInterval(pairs)
	if !ok {
		return d
	}
	d.Low, d.High = &low, &high
	switch {
	case low <= 0 && high >= 0:
		d.Verdict = NoDifference
	case (low > 0) == m.higher:
		d.Verdict = Better
	default:
		d.Verdict = Worse
	}
	return d
}

// find returns the difference by a metric; nil if there is none.
func (c *Comparison) find(name string) *Difference {
	for i := range c.Differences {
		if c.Differences[i].Metric == name {
			return &c.Differences[i]
		}
	}
	return nil
}

func metricNamed(name string) metric {
	for _, m := range compared {
		if m.name == name {
			return m
		}
	}
	return metric{name: name, label: name, decimals: 1}
}

// criterion returns the metric that decides a sweep: goodput if there is an objective, else the time of a whole request, in which a
// faster prefill and slower transfers, or undisturbed decoding, are summed up as they are for a client.
func (t *trial) criterion() string {
	if len(t.settings.Judge.SLO) > 0 {
		return "goodput_per_s"
	}
	return "e2e_p50_ms"
}

// sweep finds the length of prompts from which the first side pays.
func (t *trial) sweep(points []PointResult) *SweepResult {
	s := &SweepResult{Criterion: t.criterion()}
	verdicts := make([]string, len(points))
	few := false
	for i, p := range points {
		if d := p.Comparison.find(s.Criterion); d != nil {
			verdicts[i] = d.Verdict
		}
		few = few || verdicts[i] == TooFewRounds || verdicts[i] == ""
	}
	from, upTo := len(points), 0
	for from > 0 && verdicts[from-1] == Better {
		from--
	}
	for upTo < len(points) && verdicts[upTo] == Worse {
		upTo++
	}
	if from < len(points) {
		s.PaysFrom, s.PickerCount = t.points[from].tokens, points[from].PickerCount
	}
	if upTo > 0 {
		s.CostsUpTo = t.points[upTo-1].tokens
	}
	s.Verdict = s.words(points[0].Comparison, few)
	return s
}

// words says what a sweep found.
func (s *SweepResult) words(c *Comparison, few bool) string {
	label := metricNamed(s.Criterion).label
	text := ""
	switch {
	case few:
		return fmt.Sprintf("There is no verdict: it needs %d rounds at every length.", enoughRounds)
	case s.PaysFrom > 0:
		text = fmt.Sprintf("By %s, %s is better than %s from %d input tokens on (%d by the count of a picker without a tokenizer).", label,
			c.First, c.Second, s.PaysFrom, s.PickerCount)
	default:
		text = fmt.Sprintf("By %s, there is no length from which on %s is better than %s.", label, c.First, c.Second)
	}
	if s.CostsUpTo > 0 {
		text += fmt.Sprintf(" It is worse up to %d.", s.CostsUpTo)
	}
	return text
}

// warnings says what a reader must know before trusting the figures.
func (r *Result) warnings() (notes []string) {
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if r.Interrupted {
		add("The run was interrupted: the figures are of what had been answered.")
	}
	if r.ClientWait > 2 {
		add("This program waited for a processor itself: 1%% of its waits took %.1f ms or longer. Run it on another machine than the endpoint.", r.ClientWait)
	}
	for i := range r.Points {
		at := ""
		if len(r.Points) > 1 {
			at = fmt.Sprintf(" at %s input tokens", r.Points[i].InputTokens)
		}
		for j := range r.Points[i].Sides {
			side := &r.Points[i].Sides[j]
			for _, note := range side.warnings(r.Load.Stream) {
				notes = append(notes, side.Name+at+": "+note)
			}
		}
	}
	if sides := r.Points[0].Sides; len(sides) == 2 && sides[1].Mode == pd.ModeBypass.String() && sides[0].remote() > 0 {
		add("With bypass, prefill engines have no work. To compare with the same GPUs without P/D, use --against.")
	}
	return notes
}

// remote returns how many requests were prefilled remotely.
func (r *SideResult) remote() (n int) {
	for _, d := range r.Decisions {
		if d.Decision == pd.Remote.String() {
			n += d.Count
		}
	}
	return n
}

// warnings is about one side.
func (r *SideResult) warnings(stream bool) (notes []string) {
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if r.Failed > 0 {
		add("%d of %d requests failed; latencies are those of the others.", r.Failed, r.Requests)
	}
	if r.Unsent > 0 {
		add("%d requests were not sent before the round ended: the endpoint is overloaded, or --max-in-flight too low.", r.Unsent)
	}
	const late = 10 // ms
	if r.Late != nil && r.Late.P95 != nil && *r.Late.P95 > late {
		add("5%% of the requests were sent %.0f ms or more after they were due; latencies include that.", *r.Late.P95)
	}
	if r.Answered > 0 && !r.TokensCounted && stream {
		add("streams do not say how many tokens they have: events with text are counted.")
	}
	if r.Answered > 0 && !r.TokensCounted && !stream {
		add("answers do not say how many tokens they have.")
	}
	const merged = 1.2
	if r.TokensCounted && r.EventTokens > merged {
		add("an event has %.1f tokens on average: ITL is between events, TPOT is by tokens.", r.EventTokens)
	}
	if r.Mode != "" && r.Answered > 0 {
		r.modeWarnings(add)
	}
	return notes
}

// modeWarnings tells of an x-tandem-pd that had no effect.
func (r *SideResult) modeWarnings(add func(format string, args ...any)) {
	remote := r.remote()
	switch {
	case len(r.Decisions) == 0:
		add("no answer has x-tandem-pd-decision: the endpoint is not behind Tandem's sidecar, and x-tandem-pd has no effect.")
	case r.Mode == "auto" && remote == 0:
		add("no request was prefilled remotely: prompts are below the picker's threshold, or cached.")
	case r.Mode == "bypass" && remote > 0:
		add("%d requests were prefilled remotely in spite of bypass: the picker runs with --pd-header=off?", remote)
	}
}

// number formats a figure with as many digits as make sense.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
