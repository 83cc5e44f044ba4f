package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// why shows one decision and its numbers.
type why struct {
	Question, Answer string
	Prompt           lane // the prompt tokens that the decider considered
	Stages           []stage
}

// stage is the candidates of one run of a profile.
type stage struct {
	Caption    string
	Columns    []string
	Candidates []candidate
}

type candidate struct {
	Chosen bool
	Cells  []string
}

func whys(d *Data) (all []why) {
	for _, w := range d.Why {
		x := w.Explanation
		if x == nil {
			continue
		}
		one := why{Question: w.Question, Answer: answer(x), Prompt: promptLane(x.Decider)}
		if x.Trace != nil {
			for _, s := range x.Trace.Stages {
				one.Stages = append(one.Stages, newStage(s))
			}
		}
		all = append(all, one)
	}
	return all
}

func meaning(reason string) string { return reasonMeaning[pd.Reason(reason)] }

// answer describes the decision with the decider's numbers.
func answer(x *epp.Explanation) string {
	s := fmt.Sprintf("Decision: %s, because %s.", x.Decision, x.Reason)
	if m := meaning(string(x.Reason)); m != "" {
		s = fmt.Sprintf("Decision: %s, because %s: %s.", x.Decision, x.Reason, m)
	}
	if x.Refusal != nil {
		s += fmt.Sprintf(" It is refused with status %d: %s.", x.Refusal.Status, strings.TrimSuffix(x.Refusal.Message, "."))
	}
	if x.Decider.Name == "" {
		return s + " No decider was called."
	}
	s += fmt.Sprintf(" Decider %s: %d of %d prompt tokens are not cached on the decode endpoint", x.Decider.Name,
		x.Decider.Uncached, x.Decider.Tokens)
	if p := parameters(x.Decider.Parameters); len(p) > 0 {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(p)) {
			all = append(all, fmt.Sprintf("%s %v", name, p[name]))
		}
		s += " (" + strings.Join(all, ", ") + ")"
	}
	return s + "."
}

// parameters returns the parameters of a decider by name, whatever type holds them; empty if it has none.
func parameters(of any) map[string]any {
	text, err := json.Marshal(of)
	if err != nil {
		return nil
	}
	var byName map[string]any
	if json.Unmarshal(text, &byName) != nil {
		return nil
	}
	return byName
}

// threshold is the parameter of the prefix-based decider that determines its verdict.
const threshold = "nonCachedTokens"

// promptLane draws the uncached tokens, then the cached ones, and the threshold for the uncached ones.
func promptLane(n epp.DeciderNumbers) lane {
	uncached, cached := max(0, n.Uncached), max(0, n.Cached)
	limit, limited := parameters(n.Parameters)[threshold].(float64)
	limited = limited && limit > 0
	whole := max(1, float64(uncached)+float64(cached))
	if limited {
		whole = max(whole, limit)
	}
	percent := func(tokens float64) float64 { return 100 * tokens / whole }
	l := lane{Name: "prompt", Kind: "plain", Numbers: counted(uncached+cached, "token"), Parts: []part{
		{"uncached", "not cached", strconv.Itoa(uncached)}, {"cached", "cached", strconv.Itoa(cached)}}}
	if limited {
		l.Parts = append(l.Parts, part{"threshold", "threshold", fraction(limit)})
	}
	d := draw(22, "Tokens of the prompt", wordsOf(l.Parts, ""))
	d.rect("fill uncached", box{to: percent(float64(uncached)), y: 3, height: 16})
	d.rect("fill cached", box{from: percent(float64(uncached)), to: percent(float64(uncached) + float64(cached)), y: 3,
		height: 16})
	if limited {
		d.line("threshold", percent(limit), 0, 22)
	}
	l.Drawing = d.html()
	return l
}

// newStage puts the deciding columns first: on a phone the rest must be scrolled to.
func newStage(s epp.StageTrace) stage {
	out := stage{Caption: fmt.Sprintf("%s stage, profile %s", s.Stage, s.Profile),
		Columns: []string{"choice", "endpoint", "role", "why", "total"}}
	scorers := scorersOf(s)
	for _, sc := range scorers {
		out.Columns = append(out.Columns, sc.Scorer+" ×"+fraction(sc.Weight))
	}
	out.Columns = append(out.Columns, "cached")
	signals := signalsOf(s)
	for _, signal := range signals {
		out.Columns = append(out.Columns, signal.Title())
	}
	out.Columns = append(out.Columns, "in flight")
	for _, c := range s.Candidates {
		out.Candidates = append(out.Candidates, newCandidate(c, signals, scorers))
	}
	return out
}

// scorersOf returns the scores of the first candidate that was scored; all scored candidates have the same scorers.
func scorersOf(s epp.StageTrace) []epp.ScoreTrace {
	for _, c := range s.Candidates {
		if len(c.Scores) > 0 {
			return c.Scores
		}
	}
	return nil
}

// signalsOf returns the signals that have a column. All candidates of a stage have the same.
func signalsOf(s epp.StageTrace) epp.Readings {
	for _, c := range s.Candidates {
		if len(c.Signals) > 0 {
			return c.Signals.ForTables()
		}
	}
	return nil
}

func newCandidate(c epp.CandidateTrace, signals epp.Readings, scorers []epp.ScoreTrace) candidate {
	choice, total := absent, absent
	if c.Chosen > 0 {
		choice = strconv.Itoa(c.Chosen)
	}
	if c.Dropped == "" {
		total = fraction(c.Total)
	}
	cells := []string{choice, c.Endpoint, c.Role, c.Why, total}
	for _, sc := range scorers {
		cell := absent
		if i := slices.IndexFunc(c.Scores, func(s epp.ScoreTrace) bool { return s.Scorer == sc.Scorer }); i >= 0 {
			cell = fraction(c.Scores[i].Score)
		}
		cells = append(cells, cell)
	}
	cells = append(cells, strconv.Itoa(c.Cached))
	for _, signal := range signals {
		reading := c.Signals.Of(signal.Name)
		cells = append(cells, reading.Text(absent))
	}
	cells = append(cells, fmt.Sprintf("%d req, %d tok", c.Requests, c.Tokens))
	return candidate{Chosen: c.Chosen > 0, Cells: cells}
}
