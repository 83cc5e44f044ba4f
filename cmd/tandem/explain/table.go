package explain

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/tandem-serving/tandem/epp"
)

// Text formats an explanation: the request, the decision with its numbers, and the best top candidates of each stage; 0: all.
func Text(x *epp.Explanation, top int) string {
	var b strings.Builder
	r := x.Request
	if r.API != "" {
		fmt.Fprintf(&b, "request   %s, model %s, about %d prompt tokens, x-tandem-pd: %s%s\n", r.API, model(&r), r.Tokens, r.Mode, urgency(&r))
	}
	fmt.Fprintf(&b, "decision  %s, because: %s\n", x.Decision, x.Reason)
	if x.Refusal != nil {
		fmt.Fprintf(&b, "refused   with status %d: %s\n", x.Refusal.Status, x.Refusal.Message)
	}
	if x.Trace != nil && len(x.Picks) > 0 {
		fmt.Fprintf(&b, "decider   %s\n", decider(x.Decider))
	}
	for _, p := range x.Picks {
		fmt.Fprintf(&b, "%-9s %s\n", p.Stage, strings.Join(p.Endpoints, ", then "))
	}
	if x.Trace == nil {
		return b.String()
	}
	if len(x.Trace.Outside) > 0 {
		fmt.Fprintf(&b, "outside   the gateway's subset: %s\n", strings.Join(x.Trace.Outside, ", "))
	}
	costs(&b, x.Trace.Deciders)
	for _, stage := range x.Trace.Stages {
		writeStage(&b, stage, top)
	}
	return b.String()
}

// costs shows what deciders expected of the alternatives that they compared.
func costs(b *strings.Builder, deciders []epp.DeciderTrace) {
	for _, d := range deciders {
		for _, c := range d.Costs {
			fmt.Fprintf(b, "cost      %s stage, %s on %s: first token after %ss", d.Stage, c.Verdict, c.Endpoint, number(c.Seconds))
			if c.Harm >= 0.001 {
				fmt.Fprintf(b, ", and %ss for other requests", number(c.Harm))
			}
			b.WriteByte('\n')
		}
	}
}

// model returns the model that answers, and why it is not the requested one.
func model(r *epp.RequestSummary) string {
	switch {
	case r.Rewrite == "":
		return orNone(r.Model)
	case r.Asked == "":
		return fmt.Sprintf("%s (by rewrite %s)", r.Model, r.Rewrite)
	}
	return fmt.Sprintf("%s (asked for %s, rewritten by %s)", r.Model, r.Asked, r.Rewrite)
}

// urgency returns the objective of a request that has one.
func urgency(r *epp.RequestSummary) string {
	switch {
	case r.Objective == "":
		return ""
	case !r.Known:
		return fmt.Sprintf(", objective %q is not known: priority 0", r.Objective)
	}
	return fmt.Sprintf(", objective %s: priority %d", r.Objective, r.Priority)
}

// decider describes the decider's numbers.
func decider(d epp.DeciderNumbers) string {
	numbers := fmt.Sprintf("%d of %d prompt tokens are not cached on the decode endpoint", d.Uncached, d.Tokens)
	for _, tier := range slices.Sorted(maps.Keys(d.Loads)) {
		numbers += fmt.Sprintf(", %d are loaded from %s", d.Loads[tier], tier)
	}
	if d.Name == "" {
		return "was not called; " + numbers
	}
	if p, ok := d.Parameters.(map[string]any); ok && len(p) > 0 {
		return fmt.Sprintf("%s: %s (%s)", d.Name, numbers, parameters(p))
	}
	return d.Name + ": " + numbers
}

func parameters(p map[string]any) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(p)) {
		all = append(all, fmt.Sprintf("%s %v", name, p[name]))
	}
	return strings.Join(all, ", ")
}

func writeStage(b *strings.Builder, stage epp.StageTrace, top int) {
	fmt.Fprintf(b, "\n%s stage, profile %s\n", stage.Stage, stage.Profile)
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	scorers := scorersOf(stage)
	fmt.Fprint(w, "\tendpoint\trole\t")
	signals := signalsOf(stage)
	for _, s := range signals {
		fmt.Fprintf(w, "%s\t", s.Title())
	}
	fmt.Fprint(w, "load age\tin flight\tcached\t")
	for _, sc := range scorers {
		fmt.Fprintf(w, "%s ×%s\t", sc.Scorer, number(sc.Weight))
	}
	fmt.Fprint(w, "total\twhy\n")
	shown := stage.Candidates
	if top > 0 && len(shown) > top {
		shown = shown[:top]
	}
	for _, c := range shown {
		row(w, c, signals, len(scorers))
	}
	_ = w.Flush() // writing to a strings.Builder never fails
	if hidden := len(stage.Candidates) - len(shown); hidden > 0 {
		fmt.Fprintf(b, "and %d more (--top 0 shows all)\n", hidden)
	}
}

func scorersOf(stage epp.StageTrace) []epp.ScoreTrace {
	for _, c := range stage.Candidates {
		if len(c.Scores) > 0 {
			return c.Scores
		}
	}
	return nil
}

// signalsOf returns the signals that have a column. All candidates of a stage have the same.
func signalsOf(stage epp.StageTrace) epp.Readings {
	for _, c := range stage.Candidates {
		if len(c.Signals) > 0 {
			return c.Signals.ForTables()
		}
	}
	return nil
}

func row(w *tabwriter.Writer, c epp.CandidateTrace, signals epp.Readings, scorers int) {
	mark := ""
	if c.Chosen > 0 {
		mark = strconv.Itoa(c.Chosen)
	}
	age := "never"
	if c.LoadAge >= 0 {
		age = number(c.LoadAge) + "s"
	}
	fmt.Fprintf(w, "%s\t%s %s\t%s\t", mark, c.Endpoint, c.Address, c.Role)
	for _, s := range signals {
		reading := c.Signals.Of(s.Name)
		fmt.Fprintf(w, "%s\t", reading.Text("?"))
	}
	fmt.Fprintf(w, "%s\t%d req %d tok\t%s\t", age, c.Requests, c.Tokens, cached(c))
	for i := range scorers {
		cell := "-"
		if i < len(c.Scores) {
			cell = number(c.Scores[i].Score)
		}
		fmt.Fprintf(w, "%s\t", cell)
	}
	total := "-"
	if c.Dropped == "" {
		total = number(c.Total)
	}
	fmt.Fprintf(w, "%s\t%s\n", total, c.Why)
}

// cached returns how many tokens a candidate has cached, how that is known, how many of them its engine must load, and what they save.
func cached(c epp.CandidateTrace) string {
	if c.CachedBy == "" {
		return strconv.Itoa(c.Cached)
	}
	text := fmt.Sprintf("%d (%s)", c.Cached, c.CachedBy)
	for _, tier := range slices.Sorted(maps.Keys(c.Loads)) {
		text += fmt.Sprintf(", %d from %s", c.Loads[tier], tier)
	}
	if c.LoadTime > 0 {
		text += " in " + milliseconds(c.LoadTime)
	}
	if c.Saved != 0 {
		text += ", saves " + milliseconds(c.Saved)
	}
	return text
}

// milliseconds formats a time in seconds.
func milliseconds(seconds float64) string {
	return strconv.FormatFloat(seconds*1e3, 'f', 1, 64) + " ms"
}

// number formats a number with at most three digits after the point.
func number(f float64) string {
	return strconv.FormatFloat(float64(int64(f*1000+0.5))/1000, 'f', -1, 64)
}

func orNone(s string) string {
	if s == "" {
		return "not named"
	}
	return s
}
