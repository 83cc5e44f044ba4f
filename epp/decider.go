package epp

import "github.com/tandem-serving/tandem/pd"

// Decider decides whether the work of a stage is done on an endpoint of its own or on one that was picked before: whether
// a prompt is computed on a prefill endpoint or on the decode endpoint, for instance. It is called from many goroutines
// and must not keep what it is given.
type Decider interface {
	Decide(a *Alternatives) Ruling
}

// Alternatives is what a Decider chooses between.
type Alternatives struct {
	Round      // Stage is the stage that is decided on
	Tokens int // tokens of the prompt
	Cached int // of these, tokens whose KV cache the first decode choice already has; never more than Tokens
	// Local are the endpoints that do the work if the ruling is pd.Local: the decode choices, best first, with their loads.
	Local []Candidate
}

// Ruling is what a Decider answers.
type Ruling struct {
	Verdict pd.Verdict // pd.Local or pd.Remote
	Reason  pd.Reason  // must explain the verdict: see pd.Reason.Explains
}
