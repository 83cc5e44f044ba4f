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

// phaseOrder is the phases as they follow each other in time.
var phaseOrder = [...]pd.Phase{pd.PhaseEPP, pd.PhaseRecv, pd.PhasePrefill, pd.PhaseHandoff, pd.PhaseFirst, pd.PhaseDecode}

// What became of a request.
var (
	remote  = pd.Remote.String()
	local   = pd.Local.String()
	refused = pd.Refused.String()
)

// spread is measured values from the smallest to the largest, in milliseconds.
type spread []float64

// sorted leaves out what no clock can have shown: negative, infinite and not a number.
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

// plausible leaves out also what is longer than thirty years, for which no scale is made.
func plausible(v float64) bool { return v >= 0 && v <= 1e12 }

// percentile is the nearest-rank percentile, 1 to 100: the smallest value that at least p percent of the values do not
// exceed. It is always one that was measured, and not a number if nothing was.
func (s spread) percentile(p int) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	return s[(p*len(s)+99)/100-1]
}

// thinned is at most n of the values, evenly by rank, the smallest and the largest among them.
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

// group is requests that belong together.
type group struct {
	class    string
	decision string // "" = of every kind
	requests []*Request
}

// name tells requests of one class apart by what became of them.
func (g *group) name() string { return g.class + ", " + g.decision }

// classes groups by class, in the order in which the classes first appear.
func classes(d *Data) []*group {
	return grouped(d, func(r *Request) (group, bool) { return group{class: r.Class}, true })
}

// outcomes groups the requests that an engine answered by class and decision, the classes in the order in which they first
// appear. It is what distributions are drawn of: a mixture of local and remote requests has two humps.
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

// count is how many of the group went this way.
func (g *group) count(decision string) (n int) {
	for _, r := range g.requests {
		if r.Decision == decision {
			n++
		}
	}
	return n
}

// ttft is the times to the first byte of what an engine answered.
func (g *group) ttft() spread {
	var all []float64
	for _, r := range g.requests {
		if r.served() {
			all = append(all, r.TTFT)
		}
	}
	return sorted(all)
}

// itl is the gaps between tokens, of all requests together: a request with more tokens counts more.
func (g *group) itl() spread {
	var all []float64
	for _, r := range g.requests {
		if r.served() {
			all = append(all, r.ITL...)
		}
	}
	return sorted(all)
}

// phase is the time spent in a phase, and how many went through it.
func (g *group) phase(p pd.Phase) (sum float64, through int) {
	for _, r := range g.requests {
		if v, ok := r.Phases[p.String()]; ok && plausible(v) {
			sum += v
			through++
		}
	}
	return sum, through
}

// meanPhase is over those that went through the phase, and not a number if none did.
func (g *group) meanPhase(p pd.Phase) float64 {
	sum, through := g.phase(p)
	return sum / float64(through)
}

// example is the remote request to show: of those that went through every phase, the one whose first byte came at the
// median, so that what is shown is usual. Streamed ones come first, because their tokens can be drawn one by one.
func example(d *Data) *Request {
	var whole []*Request
	for i := range d.Requests {
		if r := &d.Requests[i]; r.Decision == remote && r.whole() {
			whole = append(whole, r)
		}
	}
	if len(whole) == 0 {
		return nil
	}
	if streamed := slices.DeleteFunc(slices.Clone(whole), func(r *Request) bool { return len(r.ITL) == 0 }); len(streamed) > 0 {
		whole = streamed
	}
	slices.SortStableFunc(whole, func(a, b *Request) int { return cmp.Compare(a.TTFT, b.TTFT) })
	return whole[(len(whole)-1)/2]
}

// whole reports whether everything that a waterfall shows was measured.
func (r *Request) whole() bool {
	for _, p := range phaseOrder {
		if v, ok := r.Phases[p.String()]; !plausible(v) || !ok && p != pd.PhaseEPP {
			return false
		}
	}
	return plausible(r.TTFT) && plausible(r.Total)
}

// reasonCount is how many requests were decided in one way for one reason.
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

// span is how long the run took: from the first request sent to the last byte of any.
func span(d *Data) float64 {
	first, last := math.Inf(1), math.Inf(-1)
	for _, r := range d.Requests {
		if plausible(r.Start) && plausible(r.Total) {
			first, last = min(first, r.Start), max(last, r.Start+r.Total)
		}
	}
	return max(0, last-first)
}

// broken counts the promises that were not kept.
func broken(d *Data) (n int) {
	for _, p := range d.Promises {
		if !p.Kept {
			n++
		}
	}
	return n
}

// summary is the run in a few sentences.
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

// verdict is the proof in one sentence.
func verdict(d *Data) string {
	switch kept := len(d.Promises) - broken(d); {
	case len(d.Promises) == 0:
		return "Nothing was proven."
	case broken(d) > 0:
		return fmt.Sprintf("BROKEN: %d of %s.", broken(d), counted(len(d.Promises), "promise"))
	case kept == 1:
		return "The one promise was kept."
	default:
		return fmt.Sprintf("All %d promises were kept.", kept)
	}
}

func started(d *Data) string {
	if d.Started.IsZero() {
		return ""
	}
	return d.Started.UTC().Format(time.DateTime + " UTC")
}

// maxFailures is how many are told; one cause usually fails many. The table of all requests has them all.
const maxFailures = 10

// failures are the first requests that failed, and how many more there are.
func failures(d *Data) (told []*Request, more int) {
	for i := range d.Requests {
		switch {
		case d.Requests[i].Failure == "":
		case len(told) < maxFailures:
			told = append(told, &d.Requests[i])
		default:
			more++
		}
	}
	return told, more
}
