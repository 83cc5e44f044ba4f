package epp

import (
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// Decision is where a request goes, and why.
type Decision struct {
	// Picks are the stages that have endpoints, in the order in which they were picked for. The request is sent to the
	// endpoints of the first one, which always exists.
	Picks   []StagePick
	Verdict pd.Verdict // pd.Remote if a stage that splits the request has endpoints, else pd.Local
	Reason  pd.Reason
	Strict  bool  // the client forbade local prefill
	Tokens  int   // length of the prompt, as it was known at the pick
	Cached  int   // how many of these the first endpoint has cached
	Loads   Loads // how many of the cached ones it must load
	// TokenSource is what made the token ids that Tokens counts; nil if the request has ids itself, or its length is estimated.
	TokenSource TokenSource
	Costs       []Cost // of the alternatives that the decider of the splitting stage compared; nil if it compared none
	// PullFrom is the endpoint from which the engine that computes the prompt may fetch blocks of it; nil = none.
	PullFrom *Endpoint
	// PullTokens is how many tokens of the prompt PullFrom has cached, from the beginning.
	PullTokens int
	// Expected is what a PickObserver that predicts expects of the request; zero: nothing is expected.
	Expected Expected
	// Goals are those that a PickObserver has noted; nil: the request has none.
	Goals  *Goals
	Origin Origin // of the request
	Pass   Pass   // of the admission
	// Reservation charges the endpoints; nil in a decision that was only explained.
	Reservation *Reservation
	// AnswerPlugins take part in the answer; nil if there are none.
	AnswerPlugins *AnswerPlugins
	// Trace says how the decision was made; nil unless it was requested.
	Trace *Trace
}

// Expected is how long a request is expected to take, as far as it is known.
type Expected struct {
	TTFT Quantiles // from the time that its first leg is sent to its first token
	TPOT Quantiles // for each further token
	// Left is the share of the endpoint's time that was expected to be left for answers, besides prompts. 0: not known.
	Left float64
}

// Goals are the times that a request should take at most. 0: any.
type Goals struct {
	TTFT, TPOT time.Duration
	begun      atomic.Bool
}

// Begin reports whether it is called for the first time. The time to first token of an answer is known when its headers come or only when it
// has ended, and is to count once.
func (g *Goals) Begin() bool { return !g.begun.Swap(true) }

// Quantiles are the times that half of the requests of a kind, and nine of ten, need at most. Zero: not known.
type Quantiles struct{ P50, P90 time.Duration }

// StagePick is what was picked for one stage.
type StagePick struct {
	Row       *StageRow   // the stage, as configured when it was picked for; it does not change
	Reason    pd.Reason   // why the stage runs; "" for the first stage
	Endpoints []*Endpoint // best first, never empty
	Ranks     []pd.Rank   // data-parallel ranks of Endpoints that are to do the stage; nil = none is named
	// Seen is what the pick knew of the first endpoint; nil if no observer is configured.
	Seen *Seen
}

// Seen is what a pick knew of an endpoint.
type Seen struct {
	Load     Load     // from its metrics page, and signals that producers computed
	InFlight InFlight // that this picker had sent there
	Cached   int      // tokens of the prompt in its prefix cache
	Loads    Loads    // those of them that it must load
}

// Endpoints returns those picked for a stage, best first; none if the stage has none.
func (d *Decision) Endpoints(stage Stage) []*Endpoint {
	for i := range d.Picks {
		if d.Picks[i].Row.Stage == stage {
			return d.Picks[i].Endpoints
		}
	}
	return nil
}

// Moved returns how many tokens' KV the first endpoint needs if another one computes the prompt: all but those in its accelerator's memory.
func (d *Decision) Moved() int { return d.Tokens - d.Cached + d.Loads.Sum() }

// First returns the endpoints that the request is sent to, best first.
func (d *Decision) First() []*Endpoint { return d.Picks[0].Endpoints }

// Plan returns the decision as the plan for the sidecar. The stream adds the id, the picker's time, and whether it reads
// reports.
func (d *Decision) Plan() pd.Plan {
	p := pd.Plan{Verdict: d.Verdict, Reason: d.Reason, Strict: d.Strict, SourceTokens: d.PullTokens}
	for i := range d.Picks {
		switch s := &d.Picks[i]; {
		case i == 0 && s.Ranks != nil && len(s.Endpoints) == 1: // the gateway may turn to others, which have other ranks
			p.DecodeRank = s.Ranks[0]
		case i == 0:
		case s.Row.Split: // the verdict tells of it
			p.PrefillRanks = s.Ranks
		default:
			p.Stages = append(p.Stages, pd.PlanStage{Name: string(s.Row.Stage), Reason: s.Reason})
		}
	}
	return p
}

// Trace is how a decision was made, for people and for programs.
type Trace struct {
	Snapshot uint64         `json:"snapshot"`           // version of the pool's snapshot
	Outside  []string       `json:"outside_subset"`     // endpoints the gateway's subset hint excluded
	Screened []ScreenTrace  `json:"screened,omitempty"` // by screener, in the order they ran
	Stages   []StageTrace   `json:"stages"`             // in the order they ran
	Deciders []DeciderTrace `json:"deciders,omitempty"` // that were called, in their order
	// Preparers are those that ran before the pick, in the order of the configuration.
	Preparers []PreparerTrace `json:"preparers,omitempty"`
}

// splitter returns the name of the decider that was called for the stage that splits requests, "" if none was, or if t is nil.
func (t *Trace) splitter() string {
	if t == nil {
		return ""
	}
	for i := range t.Deciders {
		if t.Deciders[i].Split {
			return t.Deciders[i].Decider
		}
	}
	return ""
}

// ScreenTrace is one run of a screener that dropped endpoints.
type ScreenTrace struct {
	Screener  string   `json:"screener"` // name in the configuration
	Endpoints []string `json:"endpoints"`
}

// PreparerTrace is one run of a preparer.
type PreparerTrace struct {
	Preparer string  `json:"preparer"` // name in the configuration
	Seconds  float64 `json:"seconds"`
	Error    string  `json:"error,omitempty"` // why it added nothing
}

// DeciderTrace is one call of a decider, and its ruling.
type DeciderTrace struct {
	Stage   Stage       `json:"stage"`   // the stage it decided about
	Split   bool        `json:"-"`       // that stage splits requests
	Decider string      `json:"decider"` // name in the configuration
	Verdict string      `json:"verdict"`
	Reason  pd.Reason   `json:"reason"`
	Costs   []CostTrace `json:"costs,omitempty"`
}

// CostTrace is the printable form of a Cost.
type CostTrace struct {
	Verdict  string  `json:"verdict"`
	Endpoint string  `json:"endpoint"`
	Seconds  float64 `json:"seconds"`        // until the first token
	Harm     float64 `json:"harm,omitempty"` // to other requests, in seconds of the decider's choice
}

// StageTrace is one run of a profile.
type StageTrace struct {
	Stage      Stage            `json:"stage"`
	Profile    string           `json:"profile"`
	Candidates []CandidateTrace `json:"candidates"` // chosen ones first in their order, then by total, then those that filters dropped
}

// CandidateTrace is one candidate of one run.
type CandidateTrace struct {
	Endpoint string       `json:"endpoint"`
	Address  string       `json:"address"`
	Role     string       `json:"role"`
	Mode     EngineMode   `json:"engine_mode,omitempty"`
	Chosen   int          `json:"chosen"`                   // 1 = first choice; 0 = not chosen
	Dropped  string       `json:"dropped_by,omitzero"`      // name of the filter that excluded it
	Because  string       `json:"dropped_because,omitzero"` // why that filter did, if it is an Explainer
	Mismatch string       `json:"kv_mismatch,omitzero"`     // why the decode engine would refuse its KV caches
	Why      string       `json:"why"`                      // one sentence
	Total    float64      `json:"total"`
	Scores   []ScoreTrace `json:"scores,omitempty"`
	// The values that scorers read.
	Signals  Readings `json:"signals"`
	LoadAge  float64  `json:"load_age_seconds"` // -1 = never read
	Requests int      `json:"inflight_requests"`
	Tokens   int      `json:"inflight_tokens"`
	Cached   int      `json:"cached_tokens"`
	CachedBy string   `json:"cached_by,omitempty"` // how that is known, where the matcher knows in several ways
	// Loads are the cached tokens that are not in the accelerator's memory, by where they are, and LoadTime how long loading them takes.
	Loads    map[string]int `json:"loads,omitempty"`
	LoadTime float64        `json:"load_seconds,omitempty"`
	// Saved is how much time the cached tokens save, where the matcher knows.
	Saved float64 `json:"saved_seconds,omitempty"`
}

// ScoreTrace is one scorer's score of one candidate.
type ScoreTrace struct {
	Scorer string  `json:"scorer"`
	Weight float64 `json:"weight"`
	Score  float64 `json:"score"` // 0..1
}

// Outcome is how a request ended, as far as the picker's streams show it.
type Outcome struct {
	Request   string // id
	API       pd.API
	Status    int               // HTTP status of the answer; 0 = it never came
	Plan      pd.Plan           // what was planned
	Decision  *Decision         // decision for the request; nil if it was refused, or another replica picked
	Happened  *pd.Result        // what happened, as the sidecar reports; nil if it did not report
	Phases    *pd.Phases        // as reported; nil if not
	Result    *pd.AnswerSummary // how the answer ended, with token counts; nil if not reported
	Served    string            // ip:port that served; "" if unknown
	Answered  time.Duration     // from the first frame to the headers of the answer; 0: none came
	Duration  time.Duration     // from the first frame to the last
	Immediate bool              // answered by the picker itself
}

// TTFT returns the time to the first token, from the last byte of the request at the picker, as far as the phases that the sidecar has
// reported tell it.
func (o *Outcome) TTFT() (took time.Duration, ok bool) {
	if o.Phases == nil {
		return 0, false
	}
	if _, ok := o.Phases.Get(pd.PhaseFirst); !ok {
		return 0, false
	}
	picker, _ := o.Phases.Get(pd.PhaseEPP)
	after, _ := o.Phases.Get(pd.PhaseDecode)
	return max(0, picker+o.Phases.Sum()-after), true
}

// Observer gets the outcome of every request, with its decision.
//
// A plugin that is an Observer is called from one goroutine, after the stream has ended, so it cannot delay a request. If it
// is slower than requests come, outcomes are dropped and counted. It gets the outcomes that become known while its
// configuration is in use, also of requests that an earlier configuration picked for, and none after it was closed. What it
// learns outlives a reload if it is in Builder.Keep. It must not change the outcome, and may keep it.
type Observer interface {
	Observe(o *Outcome)
}
