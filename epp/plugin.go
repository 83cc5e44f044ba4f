package epp

import (
	"log/slog"
	"math/rand/v2"
	"time"
)

// Candidate is an endpoint that may be picked, with everything that was known of it when the pick began.
type Candidate struct {
	*Endpoint
	Load     *Load    // never nil; where producers are configured, a copy for this request, with what they computed
	Trust    float64  // how far to trust Load, 0..1: see Load.Trust
	InFlight InFlight // requests of this picker and of its replicas
	Cached   int      // tokens of this prompt's beginning in its prefix cache, by the first Matcher; 0 without one
	Loads    Loads    // those of them that are not in the accelerator's memory
}

// Round is one run of a profile for one request. Plugins must not keep it.
type Round struct {
	Request *Request
	Stage   Stage
	Before  []Chosen   // first choices of the earlier stages, in their order
	Rand    *rand.Rand // reproducible under a seed
	Now     time.Time
	// Number is the pick's in its pipeline, from 1: with the pipeline's seed it determines Rand. Snapshot is the version of the pool's.
	Number, Snapshot uint64
	Matches          []Matches // of the matchers, where there are several: see Found
	Charged          Matcher   // by which uncached tokens are charged: see Charge
}

// Chosen is the first choice of a stage.
type Chosen struct {
	Stage    Stage
	Endpoint *Endpoint
}

// Chosen returns the first choice of an earlier stage, nil if there is none.
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

// Detector measures how full endpoints are. In a profile it is a Filter that may leave none: then the stage is full, while
// other filters that leave none mean that no candidate fits.
type Detector interface {
	Filter
	// Saturation returns the load of all endpoints of one stage together: 1 or more = full, also if there are none.
	Saturation(now time.Time, c []Candidate) float64
}

// ImmediateDetector is a Detector that goes by the requests in flight alone, so that the end of a request shows at once. Others go by
// metrics pages, which show it later.
type ImmediateDetector interface {
	Detector
	Immediate()
}

// StepDetector is a Detector that knows how much one more request in flight adds to the saturation of candidates at most, as long as
// their metrics pages say the same. Of others it is taken to be the whole capacity of one of them.
type StepDetector interface {
	Detector
	Step(c []Candidate) float64
}

// Shedder is a Filter that drops endpoints because they are full, as a Detector in a profile does: if it leaves none, the stage
// is full.
type Shedder interface {
	Filter
	Sheds()
}

// Explainer is a Filter that can say why it dropped a candidate. Explanations show it.
type Explainer interface {
	Filter
	// Explain returns why a candidate of all was dropped, where left are those that were kept, at least one. It is the end of a sentence, such
	// as: its queue has 12 requests, and may have 5. It need not be fast.
	Explain(r *Round, all, left []Candidate, dropped *Candidate) string
}

// Scorer rates candidates from 0 to 1, higher is better, into scores, which is as long as c and holds zeros. An unknown value
// gets the middle, never the best score. The plugins of this repository return 0..1 whatever the load, including NaN and
// values that are not Valid, as the contract suite checks. The caller clamps what other plugins return.
type Scorer interface {
	Score(r *Round, c []Candidate, scores []float64)
}

// Picker orders candidates by their totals, the weighted sums of all scores. It appends the indices of the chosen ones to
// dst, best first, at most n. r.Rand breaks ties.
type Picker interface {
	Pick(r *Round, totals []float64, n int, dst []int) []int
	// Endpoints returns how many the picker is configured to choose: the stage may want more.
	Endpoints() int
}

// Drawer is a Picker that chooses at random also between candidates whose totals differ. Explanations of other pickers say
// that the totals decided.
type Drawer interface {
	Picker
	Draws()
}

// Matcher knows which endpoints have the beginning of a prompt in their prefix cache. It must be safe for concurrent use.
// After EndpointLeft it must know nothing of the endpoint, because another one may get the slot.
type Matcher interface {
	EndpointObserver
	// Needs returns what Match and Learn need of prompts.
	Needs() PromptSpec
	// Match sets Cached of every candidate, in tokens, and Loads, which are zero before, and returns how many tokens of the prompt one can have at most. p is the request's
	// prompt, cut as Needs says, also where other matchers want other blocks. It is called only if p has blocks, or token ids that Needs
	// names.
	Match(r *Request, p *Prompt, c []Candidate) (whole int)
	// Learn records that a prompt will be computed on an endpoint, whose load has the size of its KV cache. p is as Match gets it.
	Learn(r *Request, p *Prompt, e *Endpoint, load *Load)
}

// SharedMatcher is a Matcher that knows only of prompts that it was told to learn, so that replicas of the picker tell each other what theirs
// learn.
type SharedMatcher interface {
	Matcher
	// SharedAs names what it shares. Those of the same name at two replicas understand each other's blocks, provided that both replicas
	// hash prompts with the same secret.
	SharedAs() string
	// Share has told called for every prompt that Learn learns, with the hashes of its blocks, which are valid during the call only; nil ends
	// that. told must return at once.
	Share(told func(e *Endpoint, blocks []uint64))
	// LearnShared learns a prompt that another replica has told. load is as for Learn.
	LearnShared(e *Endpoint, blocks []uint64, load *Load)
}

// Knower is a Matcher that knows in several ways.
type Knower interface {
	Matcher
	// How says how it knows what an endpoint has cached of a request's prompt; "" = it does not know.
	How(r *Request, e *Endpoint) string
}

// Assigner is a Matcher whose results are where requests should go, and not what caches hold. Only plugins that name it read them.
type Assigner interface {
	Matcher
	Assigns()
}

// Charge says what load a request adds to its endpoints.
type Charge struct {
	// Output adds OutputRatio tokens for each token of the prompt, at most MaxOutput (0 = no limit), for the tokens to be
	// generated. All tokens are then charged until the request ends, otherwise until the answer begins.
	Output      bool
	OutputRatio float64
	MaxOutput   int
	// Matcher tells which tokens of the prompt need not be computed; nil = the first of the configuration.
	Matcher Matcher
}

// Charger is a plugin that returns the Charge of requests.
type Charger interface {
	Charge() Charge
}

// Apart is a plugin that may say that replicas of the picker do not count each other's load in flight.
type Apart interface{ Apart() bool }

// Screener is a plugin that narrows down the candidates of all stages of a request together, before any profile runs. It works in
// place, as a Filter does. It sees labels and loads, and not what is cached. It must be safe for concurrent use.
type Screener interface {
	Screen(r *Round, c []Candidate) []Candidate
}

// NamedScreener is a screener with its name in the configuration.
type NamedScreener struct {
	Name string
	Screener
}

// Admitter is a plugin that refuses requests for the load of all candidates of all stages together, before any profile runs. It is
// called after the Admission, and never waits. It must be safe for concurrent use.
type Admitter interface {
	// Admits reports whether a request may be picked for.
	Admits(r *Round, c []Candidate) bool
}

// NamedAdmitter is an admitter with its name in the configuration.
type NamedAdmitter struct {
	Name string
	Admitter
}

// Identifier is a plugin that tells from a request whose it is: an agent's session, or a user. It must be safe for concurrent use.
type Identifier interface {
	// Identify returns the identity, "" if the request has none.
	Identify(r *Request) string
}

// FlowNamer is an Identifier whose identities are fairness ids too, of requests whose client sends none.
type FlowNamer interface {
	Identifier
	NamesFlows()
}

// Profile is a chain of filters, the scorers of the remaining candidates, and the picker.
type Profile struct {
	Name    string
	Filters []NamedFilter
	Scorers []NamedScorer
	Picker  Picker
}

// NamedFilter is a filter with its name in the configuration.
type NamedFilter struct {
	Name string
	Filter
}

// NamedScorer is a scorer with its name in the configuration and its weight in this profile.
type NamedScorer struct {
	Name   string
	Weight float64
	Scorer
}

// Report reports one problem of a configuration: the path of the field, and the error.
type Report func(field, format string, args ...any)

// Plugin is the parameters of one plugin: a pointer to a struct that holds the defaults. Its fields (tag yaml) are decoded
// strictly, and their comments are the manual.
type Plugin interface {
	// Problems reports values that are invalid, by the yaml names of their fields.
	Problems(report Report)
	// Build makes the instance. Its uses follow from the interfaces that it implements: Filter, Scorer, Picker, Matcher,
	// Handler, Decider and so on. If it is an io.Closer, it is closed when the configuration is replaced.
	Build(b *Builder) (any, error)
}

// Corrector is a Plugin that takes its default in place of some invalid values, as llm-d does.
type Corrector interface {
	Plugin
	// Correct replaces such values, and warns of each. It is called once, after the parameters were decoded and before
	// Problems.
	Correct(warn Report)
}

// Referrer is a Plugin whose parameters name other plugins.
type Referrer interface {
	// References returns the names by the yaml path of the parameter. These plugins are built first.
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

// Clock returns the clock by which the plugin tells the time where no argument of its methods does.
func (b *Builder) Clock() Clock {
	if b.Keep == nil || b.Keep.Clock == nil {
		return SystemClock
	}
	return b.Keep.Clock
}

// Row is one plugin type of the table.
type Row struct {
	Type       string
	Aliases    []string // other accepted names
	Deprecated []string // names of older configurations; accepted with a warning
	Flag       string   // flag of the picker without which the type is refused; "" = none
	New        func() Plugin
}
