package epp

import (
	"log/slog"
	"math/rand/v2"
	"time"
)

// Candidate is an endpoint that may be picked, with all that was known of it when the pick began.
type Candidate struct {
	*Endpoint
	Load     *Load    // never nil
	Computed *Values  // set by the Producers of the configuration; nil without one
	Trust    float64  // in Load, 0..1: see Load.Trust
	InFlight InFlight // of this picker
	Cached   int      // tokens of this prompt's beginning that it has in its prefix cache; 0 without a Matcher
}

// Round is one run of a profile for one request. Plugins must not keep it.
type Round struct {
	Request *Request
	Stage   Stage
	Before  []Chosen   // first choices of the stages that were picked for before, in their order
	Rand    *rand.Rand // reproducible under a seed
	Now     time.Time
}

// Chosen is the first choice of a stage.
type Chosen struct {
	Stage    Stage
	Endpoint *Endpoint
}

// Chosen is the first choice of a stage that was picked for before, nil if there is none.
func (r *Round) Chosen(stage Stage) *Endpoint {
	for i := range r.Before {
		if r.Before[i].Stage == stage {
			return r.Before[i].Endpoint
		}
	}
	return nil
}

// Filter keeps the candidates that may serve. It works in place: the result is a prefix of c's array, in the same order.
type Filter interface {
	Filter(r *Round, c []Candidate) []Candidate
}

// Detector tells how full endpoints are. In a profile it is a Filter, which may leave none: then the stage is full, while
// other filters that leave none only say that no candidate fits.
type Detector interface {
	Filter
	// Saturation rates the endpoints of one stage together: 1 and more = full, also if there are none.
	Saturation(now time.Time, c []Candidate) float64
}

// Scorer rates candidates from 0 to 1, higher is better, into scores, which is as long as c and holds zeros. What is not
// known rates like the middle, never like the best. The plugins
// of this repository return 0..1 whatever the load, NaN and values that are not Valid included: the contract suite checks it. The
// caller clamps what another plugin returns.
type Scorer interface {
	Score(r *Round, c []Candidate, scores []float64)
}

// Picker orders candidates by their totals, the weighted sums of all scorers. It appends the indices of the chosen ones
// to dst, best first, as many as n or all there are. Ties are broken by r.Rand.
type Picker interface {
	Pick(r *Round, totals []float64, n int, dst []int) []int
	// Endpoints is how many the picker was configured to choose: the stage may want more.
	Endpoints() int
}

// Drawer is a Picker that draws lots also between candidates whose totals differ. Explanations say so; of other pickers they
// say that the totals decided.
type Drawer interface {
	Picker
	Draws()
}

// Matcher knows which endpoints have the beginning of a prompt in their prefix cache. Its methods are called from many
// goroutines. What it knows of an endpoint ends with EndpointLeft: the slot may then be another's.
type Matcher interface {
	EndpointObserver
	// Blocks says how prompts must be cut for Match and Learn.
	Blocks() BlockSpec
	// Match sets Cached of every candidate, in tokens.
	Match(p *Prompt, c []Candidate)
	// Learn is told that a prompt will be computed on an endpoint, whose load tells the size of its KV cache.
	Learn(p *Prompt, e *Endpoint, load *Load)
}

// Charge says how a request is charged to the endpoints it goes to.
type Charge struct {
	// Output adds OutputRatio times the prompt, at most MaxOutput (0 = no limit) tokens, for what will be generated. Tokens
	// then stay charged until the request ends. Otherwise they are discharged when the answer begins.
	Output      bool
	OutputRatio float64
	MaxOutput   int
}

// Charger is a plugin that says how requests are charged.
type Charger interface {
	Charge() Charge
}

// Profile is a chain of filters, the scorers of what is left, and the picker.
type Profile struct {
	Name    string
	Filters []NamedFilter
	Scorers []NamedScorer
	Picker  Picker
}

// NamedFilter is a filter under its name in the configuration.
type NamedFilter struct {
	Name string
	Filter
}

// NamedScorer is a scorer under its name in the configuration, with its weight in this profile.
type NamedScorer struct {
	Name   string
	Weight float64
	Scorer
}

// Report reports one problem of a configuration: the path of the field, and the error.
type Report func(field, format string, args ...any)

// Plugin is the parameters of one plugin: a pointer to a struct that holds the defaults, whose fields (tag yaml) are
// decoded strictly, and whose comments are the manual.
type Plugin interface {
	// Problems reports values that mean nothing. Fields are named by their yaml names.
	Problems(report Report)
	// Build makes the instance: what of Filter, Scorer, Picker, Matcher, Handler, Decider and the like it implements is
	// what it can be used for. If it is an io.Closer, it is closed when the configuration is replaced.
	Build(b *Builder) (any, error)
}

// Referrer is a Plugin whose parameters name other plugins.
type Referrer interface {
	// References returns the names by the yaml path of the parameter. These plugins are built before.
	References() map[string]string
}

// Builder holds what a plugin may use while it is built.
type Builder struct {
	Name string // the plugin's name in the configuration
	Log  *slog.Logger
	// Instance returns another plugin's instance by the name that References returned.
	Instance func(name string) (instance any, ok bool)
	// Keep holds the state that outlives a reload of the configuration.
	Keep *Keep
}

// Row is one plugin type of the table.
type Row struct {
	Type       string
	Aliases    []string // other names of the same; each is accepted silently
	Deprecated []string // names of older configurations; accepted with a warning
	New        func() Plugin
}
