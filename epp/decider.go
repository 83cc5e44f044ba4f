package epp

import (
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// Decider decides whether a stage runs on an endpoint of its own or on one that was picked before: whether, for instance, a
// prompt is computed on a prefill endpoint or on the decode endpoint. It must be safe for concurrent use and must not keep
// its arguments.
type Decider interface {
	Decide(a *Alternatives) Ruling
}

// Comparer is a Decider that reads Alternatives.Remote and Links. The stage's profile runs before a Comparer is called; for
// other deciders it runs only if they rule that the stage is wanted.
type Comparer interface {
	Decider
	Compares()
}

// Pairer is a Comparer that also chooses the endpoints, of the best that the profiles of both stages have found.
type Pairer interface {
	Comparer
	// Pairs reports whether it does so as it is configured.
	Pairs() bool
}

// CacheReader is a Decider that wants Alternatives.Cached as another Matcher than the configuration's first knows it.
type CacheReader interface {
	Decider
	// Reads returns that matcher; nil = the first.
	Reads() Matcher
}

// LengthDecider is a Decider that rules pd.Local for every prompt that is shorter than a length, whatever is cached. Flow control
// asks it before the pick, so that such requests do not wait for an endpoint that they will not need.
type LengthDecider interface {
	Decider
	// RemoteFrom returns that length in tokens; math.MaxInt: it never rules pd.Remote.
	RemoteFrom() int
}

// NamedDecider is a decider with its name in the configuration, "" for one that a profile handler made itself. The zero value
// is no decider.
type NamedDecider struct {
	Name string
	Decider
}

// Alternatives is what a Decider chooses between. Candidates have the loads, the requests in flight and the cached tokens of
// the beginning of the pick.
type Alternatives struct {
	*Round       // its Stage is the one that is decided on
	Tokens int   // tokens of the prompt
	Cached int   // how many of these the first of Local has cached; never more than Tokens
	Loads  Loads // how many of the cached ones it must load
	// Local are the endpoints that do the work if the ruling is pd.Local, best first: those of the first stage.
	Local []Candidate
	// Remote are the endpoints that do it if the ruling is pd.Remote, best first; empty if none is available. nil unless the
	// decider is a Comparer.
	Remote []Candidate
	// Pairs: the ruling may name any of Local and Remote, up to pd.MaxTargets of each; otherwise those behind the first are only there for
	// when it cannot be reached. Only a Pairer is asked so.
	Pairs bool
	// Links has what is known of the network from each of Remote to the first of Local. nil unless the decider is a Comparer.
	Links []Link
}

// Moved returns how many tokens' KV the first of Local needs if another endpoint computes the prompt: all but those in its accelerator's memory.
func (a *Alternatives) Moved() int { return a.Tokens - a.Cached + a.Loads.Sum() }

// Ruling is the result of a Decider.
type Ruling struct {
	Verdict pd.Verdict // pd.Local or pd.Remote
	Reason  pd.Reason  // must explain the verdict: see pd.Reason.Explains
	// Local and Remote are the indices in Alternatives of the endpoints of the first stage and of this one. They must be 0 unless
	// Alternatives.Pairs, and endpoints that Candidate.Reads allows together.
	Local, Remote int
	// Costs are those of the alternatives, if the decider compared them: first that of pd.Local, then those of pd.Remote.
	// Explanations show them, observers get them, and metrics count them.
	Costs []Cost
}

// Cost is what a Decider expects if an endpoint does the work of the stage.
type Cost struct {
	Verdict  pd.Verdict // pd.Local: the endpoint was picked before; pd.Remote: it is one of the stage
	Endpoint *Endpoint
	Time     time.Duration // until the first token
	Harm     time.Duration // what the decider adds for requests that are delayed by it
}

// Total returns what alternatives are compared by.
func (c *Cost) Total() time.Duration { return c.Time + c.Harm }

// Link is what is known of the network between two endpoints. The zero value means that nothing is known.
type Link struct {
	Known          bool
	Latency        time.Duration // of a transfer, whatever its size
	BytesPerSecond float64
}

// LinkEstimator is a plugin that estimates links. It must be safe for concurrent use.
type LinkEstimator interface {
	Link(from, to *Endpoint) Link
}
