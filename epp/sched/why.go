package sched

import (
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// ranking is what the sentence about a candidate's rank depends on.
type ranking struct {
	runs     *stage              // the stage
	mixed    map[string]bool     // filters that dropped candidates of that role
	foreign  int                 // candidates of other roles that no filter dropped
	left     int                 // candidates that no filter dropped
	chosen   int                 // candidates chosen
	drawn    bool                // at random, whatever their totals: see epp.Drawer
	scorers  int                 // scorers that rated them
	best     float64             // the highest total
	atBest   int                 // candidates that have it
	totals   []float64           // of the chosen candidates, in their order
	first    *epp.CandidateTrace // the first choice; nil if there is none
	lastPick *epp.CandidateTrace // the last choice
}

// rank reads the trace of a stage whose candidates are in order.
func rank(runs *stage, stage *epp.StageTrace, chosen int) ranking {
	r := ranking{runs: runs, mixed: make(map[string]bool), chosen: chosen}
	for i := range stage.Candidates {
		c := &stage.Candidates[i]
		if c.Dropped != "" {
			r.mixed[c.Dropped] = r.mixed[c.Dropped] || r.fits(c)
			continue
		}
		if !r.fits(c) {
			r.foreign++
		}
		switch {
		case r.left == 0 || c.Total > r.best:
			r.best, r.atBest = c.Total, 1
		case c.Total == r.best:
			r.atBest++
		}
		r.left++
		r.scorers = max(r.scorers, len(c.Scores)) // unreachable candidates have no scores
	}
	if chosen > 0 {
		r.first, r.lastPick = &stage.Candidates[0], &stage.Candidates[chosen-1]
		for i := range chosen {
			r.totals = append(r.totals, stage.Candidates[i].Total)
		}
	}
	return r
}

// otherwise explains an order that does not follow the totals, as with pickers that draw.
const otherwise = "the picker does not go by totals alone"

// refusesCache comes before the reason why prefill and decode do not fit.
const refusesCache = "dropped: the decode engine cannot read its KV caches: "

// why returns one sentence about the result for a candidate.
func (r *ranking) why(c *epp.CandidateTrace) string {
	for _, excluded := range r.runs.Excludes {
		if c.Dropped == itself(excluded) {
			return fmt.Sprintf("it is the %s endpoint itself", excluded)
		}
	}
	switch {
	case c.Dropped == engineMode:
		return fmt.Sprintf("dropped: its engine runs in the mode %s, which does not do this", c.Mode)
	case c.Dropped == kvMismatch:
		return refusesCache + c.Mismatch
	case c.Dropped == unreachable:
		return "unreachable, as all others are"
	case c.Dropped != "":
		return r.dropped(c)
	case len(c.Scores) == 0 && r.scorers > 0:
		return "unreachable, so it comes last"
	case c.Chosen == 1:
		return "chosen: " + r.won(c)
	case c.Chosen > 1:
		return fmt.Sprintf("choice %d of %d: %s", c.Chosen, r.chosen, r.won(c))
	case r.first == nil:
		return "the picker chose no endpoint"
	case r.drawn:
		return fmt.Sprintf("not picked, which was at random; total %.2f", c.Total)
	case c.Total == r.lastPick.Total:
		return r.even() + "; the tie was broken at random"
	case c.Total > r.first.Total:
		return fmt.Sprintf("total %.2f is %.3g above the chosen one; %s", c.Total, c.Total-r.first.Total, otherwise)
	}
	return fmt.Sprintf("total %.2f is %.3g below the chosen one%s", c.Total, r.first.Total-c.Total, mostly(r.first, c))
}

// fits reports whether a candidate has the role that the stage is for.
func (r *ranking) fits(c *epp.CandidateTrace) bool {
	role, ok := pd.ParseRole(c.Role)
	return ok && role.Has(r.runs.Role)
}

// dropped names the filter, and what it says of it, or the role if the role explains it: the filter dropped no candidate of the right role, and none
// of another role is left.
func (r *ranking) dropped(c *epp.CandidateTrace) string {
	if c.Because != "" {
		return fmt.Sprintf("dropped by %s: %s", c.Dropped, c.Because)
	}
	if r.mixed[c.Dropped] || r.foreign > 0 {
		return "dropped by " + c.Dropped
	}
	return fmt.Sprintf("dropped by %s: its role is %s", c.Dropped, c.Role)
}

// won returns why a candidate was chosen.
func (r *ranking) won(c *epp.CandidateTrace) string {
	switch {
	case r.left == 1:
		return "the only candidate left"
	case r.drawn:
		return fmt.Sprintf("picked at random among %d candidates; total %.2f", r.left, c.Total)
	case r.scorers == 0:
		return fmt.Sprintf("picked at random among %d candidates, as the profile has no scorers", r.left)
	case c.Chosen > 1 && c.Total == r.totals[c.Chosen-2]:
		return fmt.Sprintf("total %.2f, tied with choice %d; the tie was broken at random", c.Total, c.Chosen-1)
	case c.Total == r.best && r.atBest == 1:
		return fmt.Sprintf("highest total %.2f of %d", c.Total, r.left)
	case c.Total == r.best:
		return fmt.Sprintf("highest total %.2f of %d, tied with %d; the tie was broken at random", c.Total, r.left, r.atBest-1)
	case r.first.Total < r.best:
		return fmt.Sprintf("total %.2f, where the highest of %d is %.2f; %s", c.Total, r.left, r.best, otherwise)
	}
	return fmt.Sprintf("total %.2f is %.3g below the first%s", c.Total, r.best-c.Total, mostly(r.first, c))
}

func (r *ranking) even() string {
	if r.chosen == 1 {
		return "tied with the chosen one"
	}
	return fmt.Sprintf("tied with choice %d", r.chosen)
}

// mostly names the scorer that lowered a candidate's total most, compared with one that has scores of the same scorers.
func mostly(first, c *epp.CandidateTrace) string {
	name, most := "", math.Inf(-1)
	for i, s := range c.Scores {
		back := first.Scores[i].Weight*first.Scores[i].Score - s.Weight*s.Score
		if back > most {
			name, most = s.Scorer, back
		}
	}
	return "; mostly " + name
}
