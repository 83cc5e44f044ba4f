package epp

// Matches is how much of a request's prompt the candidates have cached, as one Matcher knows it.
type Matches struct {
	Matcher Matcher
	// Whole is how many tokens of the prompt the matcher compares. A candidate has at most as many.
	Whole int
	// Cached are the cached tokens by the candidate's slot; nil: those of the configuration's first matcher, which are in
	// Candidate.Cached.
	Cached []int
	// Loads are those of Cached; nil: none of them is loaded, or they are in Candidate.Loads.
	Loads []Loads
}

// Of returns how many tokens of the prompt a candidate has cached.
func (m *Matches) Of(c *Candidate) int {
	if m.Cached == nil {
		return c.Cached
	}
	return m.Cached[c.Slot]
}

// LoadsOf returns how many of the cached tokens a candidate must load.
func (m *Matches) LoadsOf(c *Candidate) Loads {
	switch {
	case m.Cached == nil:
		return c.Loads
	case m.Loads == nil:
		return Loads{}
	}
	return m.Loads[c.Slot]
}

// Found returns what a matcher has found for the request; nil stands for the configuration's first matcher.
func (r *Round) Found(by Matcher) Matches {
	for i := range r.Matches {
		if m := &r.Matches[i]; m.Matcher == by || by == nil && m.Cached == nil {
			return *m
		}
	}
	return Matches{Whole: r.Request.Prompt.Matchable()}
}
