package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// phaseOrder lists the phases in the order of time.
var phaseOrder = [...]pd.Phase{pd.PhaseEPP, pd.PhaseRecv, pd.PhaseEncode, pd.PhasePrefill, pd.PhaseHandoff, pd.PhaseFirst, pd.PhaseDecode}

// concurrent reports whether both legs of the request were sent at once.
func (r *Request) concurrent() bool {
	_, ok := r.Phases[pd.PhaseOverlap.String()]
	return ok
}

// shownPhases returns the phases that tables have a column for: those of encoders and of concurrent legs only where there were any.
func shownPhases(d *Data) []pd.Phase {
	return slices.DeleteFunc(append(phaseOrder[:len(phaseOrder):len(phaseOrder)], pd.PhaseOverlap), func(p pd.Phase) bool {
		return (p == pd.PhaseEncode || p == pd.PhaseOverlap) && !slices.ContainsFunc(d.Requests, func(r Request) bool {
			_, went := r.Phases[p.String()]
			return went
		})
	})
}

// Results of a request.
var (
	remote  = pd.Remote.String()
	local   = pd.Local.String()
	refused = pd.Refused.String()
)

// spread holds measured values in ascending order, in milliseconds.
type spread []float64

// sorted sorts values, without impossible ones: negative, infinite and NaN.
func sorted(values []float64) spread {
	s := make(spread, 0, len(values))
	for _, v := range values {
		if plausible(v) {
			s = append(s, v)
		}
	}
	slices.Sort(s)
	return s
}

// plausible also excludes values above thirty years, for which no scale is made.
func plausible(v float64) bool { return v >= 0 && v <= 1e12 }

// percentile returns the nearest-rank percentile, 1 to 100: the smallest value that at least p percent of the values do not
// exceed. It is always a measured value, or NaN if there is none.
func (s spread) percentile(p int) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	return s[(p*len(s)+99)/100-1]
}

// enough is the least number of values of which the largest exceeds the true 99th percentile with 95 % confidence. That of
// fewer is most likely too small.
const enough = 299

// tail returns the largest value that says something about slow requests, and its name: the 99th percentile, or the maximum
// of too few values.
func (s spread) tail() (name string, v float64) {
	if len(s) < enough {
		return "max", s.percentile(100)
	}
	return "p99", s.percentile(99)
}

// tailCell formats the tail for a column of 99th percentiles.
func (s spread) tailCell() string {
	name, v := s.tail()
	if len(s) == 0 || name == "p99" {
		return millis(v)
	}
	return name + " " + millis(v)
}

// fewer explains tailCell.
const fewer = "max: of fewer than 299 values, which are too few for a 99th percentile"

// thinned returns at most n of the values, evenly by rank, with the smallest and the largest.
func (s spread) thinned(n int) spread {
	if len(s) <= n {
		return s
	}
	thin := make(spread, n)
	for i := range thin {
		thin[i] = s[i*(len(s)-1)/(n-1)]
	}
	return thin
}

// group is a set of requests.
type group struct {
	class    string
	decision string // "" = all
	requests []*Request
}

// name tells requests of one class apart by their decision.
func (g *group) name() string { return g.class + ", " + g.decision }

// classes groups requests by class, in the order in which the classes first appear.
func classes(d *Data) []*group {
	return grouped(d, func(r *Request) (group, bool) { return group{class: r.Class}, true })
}

// outcomes groups the requests that an engine answered by class and decision, the classes in the order in which they first
// appear. Distributions are drawn by these groups, because a mixture of local and remote requests has two humps.
func outcomes(d *Data) []*group {
	all := grouped(d, func(r *Request) (group, bool) { return group{class: r.Class, decision: r.Decision}, r.served() })
	position := map[string]int{}
	for _, g := range all {
		if _, ok := position[g.class]; !ok {
			position[g.class] = len(position)
		}
	}
	slices.SortStableFunc(all, func(a, b *group) int { return position[a.class] - position[b.class] })
	return all
}

func grouped(d *Data, of func(*Request) (group, bool)) (all []*group) {
	type key struct{ class, decision string }
	known := map[key]*group{}
	for i := range d.Requests {
		g, ok := of(&d.Requests[i])
		if !ok {
			continue
		}
		k := key{g.class, g.decision}
		if known[k] == nil {
			known[k] = &g
			all = append(all, &g)
		}
		known[k].requests = append(known[k].requests, &d.Requests[i])
	}
	return all
}

func (r *Request) served() bool { return r.Decision == remote || r.Decision == local }

// count returns how many requests of the group have this decision.
func (g *group) count(decision string) (n int) {
	for _, r := range g.requests {
		if r.Decision == decision {
			n++
		}
	}
	return n
}

// ttft returns the times to the first token of the streamed answers.
func (g *group) ttft() spread {
	return g.times(func(r *Request) (float64, bool) { return r.TTFT, r.Stream })
}

// e2e returns the times to the end of all answers.
func (g *group) e2e() spread {
	return g.times(func(r *Request) (float64, bool) { return r.Total, true })
}

// whole returns the times of the answers that came in one piece.
func (g *group) whole() spread {
	return g.times(func(r *Request) (float64, bool) { return r.Total, !r.Stream })
}

// times returns a time of the requests that an engine answered, if they have it.
func (g *group) times(of func(*Request) (ms float64, ok bool)) spread {
	var all []float64
	for _, r := range g.requests {
		if ms, ok := of(r); ok && r.served() {
			all = append(all, ms)
		}
	}
	return sorted(all)
}

// itl returns the gaps between tokens, of all requests together: a request with more tokens counts more.
func (g *group) itl() spread {
	var all []float64
	for _, r := range g.requests {
		if r.served() {
			all = append(all, r.ITL...)
		}
	}
	return sorted(all)
}

// phase returns the total time in a phase, and how many requests went through it.
func (g *group) phase(p pd.Phase) (sum float64, through int) {
	for _, r := range g.requests {
		if v, ok := r.Phases[p.String()]; ok && plausible(v) {
			sum += v
			through++
		}
	}
	return sum, through
}

// meanPhase returns the mean over the requests that went through the phase, or NaN if none did.
func (g *group) meanPhase(p pd.Phase) float64 {
	sum, through := g.phase(p)
	return sum / float64(through)
}

// explained returns the share of the time of the answered requests that their phases account for, in percent, or NaN.
func (g *group) explained() float64 {
	phases, measured := 0.0, 0.0
	for _, r := range g.requests {
		if !r.served() || !plausible(r.Total) {
			continue
		}
		measured += r.Total
		for _, p := range phaseOrder {
			if v := r.Phases[p.String()]; plausible(v) {
				phases += v
			}
		}
		if v := r.Phases[pd.PhaseOverlap.String()]; plausible(v) {
			phases -= v
		}
	}
	return 100 * phases / measured
}

// slowest returns the answered stream with the largest time to the first token, or nil.
func slowest(d *Data) (found *Request) {
	for i := range d.Requests {
		r := &d.Requests[i]
		if r.served() && r.Stream && plausible(r.TTFT) && plausible(r.Total) && (found == nil || r.TTFT > found.TTFT) {
			found = r
		}
	}
	return found
}

// example is a request that is shown step by step.
type example struct {
	title   string
	request *Request
}

// examples returns a typical remote request and the slowest of all, if there are such.
func examples(d *Data) (all []example) {
	usual, slow := typical(d), slowest(d)
	if usual != nil {
		title := "The remote request with the median TTFT"
		if !usual.Stream {
			title = "The remote request with the median E2E"
		}
		all = append(all, example{title, usual})
	}
	if slow != nil && slow != usual {
		all = append(all, example{"The slowest request, by TTFT", slow})
	}
	return all
}

// typical returns the remote request to show: of those that went through every phase, the one with the median time to the
// first token. Streamed ones are preferred, because their tokens can be drawn one by one.
func typical(d *Data) *Request {
	var whole []*Request
	for i := range d.Requests {
		if r := &d.Requests[i]; r.Decision == remote && r.complete() {
			whole = append(whole, r)
		}
	}
	if len(whole) == 0 {
		return nil
	}
	if streamed := slices.DeleteFunc(slices.Clone(whole), func(r *Request) bool { return len(r.ITL) == 0 }); len(streamed) > 0 {
		whole = streamed
	}
	slices.SortStableFunc(whole, func(a, b *Request) int { return cmp.Compare(a.firstToken(), b.firstToken()) })
	return whole[(len(whole)-1)/2]
}

// firstToken returns when the first token reached the client: with all others if the answer came in one piece.
func (r *Request) firstToken() float64 {
	if r.Stream {
		return min(r.TTFT, r.Total)
	}
	return r.Total
}

// complete reports whether everything that a waterfall shows was measured. Between legs that are sent at once is no time.
func (r *Request) complete() bool {
	for _, p := range phaseOrder {
		v, ok := r.Phases[p.String()]
		if optional := p == pd.PhaseEPP || p == pd.PhaseEncode || p == pd.PhaseHandoff && r.concurrent(); !plausible(v) || !ok && !optional {
			return false
		}
	}
	return plausible(r.TTFT) && plausible(r.Total)
}

// reasonCount is the number of requests with a decision and a reason.
type reasonCount struct {
	decision string
	reason   string
	count    int
}

// reasons counts the decisions: remote ones first, then local and refused ones, the most frequent reason first.
func reasons(d *Data) []reasonCount {
	counts := map[reasonCount]int{}
	for _, r := range d.Requests {
		if r.Decision != "" {
			counts[reasonCount{decision: r.Decision, reason: r.Reason}]++
		}
	}
	all := make([]reasonCount, 0, len(counts))
	for c, n := range counts {
		c.count = n
		all = append(all, c)
	}
	rank := func(c reasonCount) int { return slices.Index([]string{refused, local, remote}, c.decision) }
	slices.SortFunc(all, func(a, b reasonCount) int {
		if by := rank(b) - rank(a); by != 0 {
			return by
		}
		if by := b.count - a.count; by != 0 {
			return by
		}
		return strings.Compare(a.decision+" "+a.reason, b.decision+" "+b.reason)
	})
	return all
}

// span returns the duration of the run: from the first request sent to the last byte of any answer.
func span(d *Data) float64 {
	first, last := math.Inf(1), math.Inf(-1)
	for _, r := range d.Requests {
		if plausible(r.Start) && plausible(r.Total) {
			first, last = min(first, r.Start), max(last, r.Start+r.Total)
		}
	}
	return max(0, last-first)
}

// failedChecks counts the checks that failed.
func failedChecks(d *Data) (n int) {
	for _, c := range d.Checks {
		if !c.Passed {
			n++
		}
	}
	return n
}

// summary describes the run in a few sentences.
func summary(d *Data) string {
	if len(d.Requests) == 0 {
		return "No request was sent."
	}
	all := group{}
	for i := range d.Requests {
		all.requests = append(all.requests, &d.Requests[i])
	}
	parts := []string{fmt.Sprintf("%d prefilled remotely", all.count(remote)), fmt.Sprintf("%d locally", all.count(local))}
	if n := all.count(refused); n > 0 {
		parts = append(parts, fmt.Sprintf("%d refused", n))
	}
	if n := all.count(""); n > 0 {
		parts = append(parts, fmt.Sprintf("%d without an answer", n))
	}
	s := fmt.Sprintf("%s in %s: %s.", counted(len(d.Requests), "request"), seconds(span(d)), strings.Join(parts, ", "))
	if d.KVMoved > 0 {
		s += fmt.Sprintf(" %s of KV cache moved from prefill to decode engines.", bytesText(d.KVMoved))
	}
	return s
}

// verdict sums up the checks in one sentence.
func verdict(d *Data) string {
	switch of, failed := len(d.Checks), failedChecks(d); {
	case of == 0:
		return "Nothing was checked."
	case failed > 0:
		return fmt.Sprintf("FAILED: %d of %s.", failed, counted(of, "check"))
	case of == 1:
		return "The one check passed."
	default:
		return fmt.Sprintf("All %d checks passed.", of)
	}
}

func started(d *Data) string {
	if d.Started.IsZero() {
		return ""
	}
	return d.Started.UTC().Format(time.DateTime + " UTC")
}

// maxFailures is the largest number of failures listed; one cause usually fails many requests. The table of all requests has
// them all.
const maxFailures = 10

// failures returns the first requests that failed, and how many more there are.
func failures(d *Data) (first []*Request, more int) {
	for i := range d.Requests {
		switch {
		case d.Requests[i].Failure == "":
		case len(first) < maxFailures:
			first = append(first, &d.Requests[i])
		default:
			more++
		}
	}
	return first, more
}
