package epp

import (
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// Decider decides whether the work of a stage is done on an endpoint of its own or on one that was picked before: whether
// a prompt is computed on a prefill endpoint or on the decode endpoint, for instance. It is called from many goroutines
// and must not keep what it is given.
type Decider interface {
	Decide(a *Alternatives) Ruling
}

// Comparer is a Decider that looks at Alternatives.Remote and Links. The profile of the stage runs before a Comparer is
// asked; for other deciders it runs only if they rule that the stage is wanted.
type Comparer interface {
	Decider
	Compares()
}

// NamedDecider is a decider under its name in the configuration, "" for one that a profile handler made by itself. The
// zero value is no decider.
type NamedDecider struct {
	Name string
	Decider
}

// Alternatives is what a Decider chooses between. Candidates carry the loads, the requests in flight and the cached tokens
// that were read when the pick began.
type Alternatives struct {
	*Round     // its Stage is the one that is decided on
	Tokens int // tokens of the prompt
	Cached int // of these, tokens whose KV cache the first of Local already has; never more than Tokens
	// Local are the endpoints that do the work if the ruling is pd.Local, best first: those of the first stage.
	Local []Candidate
	// Remote are the endpoints that do it if the ruling is pd.Remote, best first, none if there are none now. nil unless the
	// decider is a Comparer.
	Remote []Candidate
	// Links are what is known of the way from each of Remote to the first of Local. nil unless the decider is a Comparer.
	Links []Link
}

// Ruling is what a Decider answers.
type Ruling struct {
	Verdict pd.Verdict // pd.Local or pd.Remote
	Reason  pd.Reason  // must explain the verdict: see pd.Reason.Explains
	// Costs are those of the alternatives, where the decider compared any. Explanations show them, and observers get them.
	Costs []Cost
}

// Cost is what a Decider expects if an endpoint does the work of the stage.
type Cost struct {
	Verdict  pd.Verdict // pd.Local: the endpoint was picked before; pd.Remote: it is one of the stage
	Endpoint *Endpoint
	Time     time.Duration // until the first token
}

// Link is what is known of the network between two endpoints. The zero value is: nothing.
type Link struct {
	Known          bool
	Latency        time.Duration // of a transfer, whatever its size
	BytesPerSecond float64
}

// LinkEstimator is a plugin that knows links. It is called from many goroutines.
type LinkEstimator interface {
	Link(from, to *Endpoint) Link
}
