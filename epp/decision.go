package epp

import (
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// Decision is where a request goes, and why.
type Decision struct {
	Decode  []*Endpoint // best first, never empty
	Prefill []*Endpoint // candidates, best first; empty = the prompt is computed on the decode endpoint
	Verdict pd.Verdict  // pd.Local or pd.Remote
	Reason  pd.Reason
	Strict  bool // the client forbade local prefill
	Tokens  int  // of the prompt
	Cached  int  // of these, tokens whose KV cache the first decode choice already has
	// Reservation charges the endpoints; nil in a decision that was only explained.
	Reservation *Reservation
	// Trace tells how the decision came about; nil unless asked for.
	Trace *Trace
}

// Trace is how a decision came about, for people and for programs.
type Trace struct {
	Snapshot uint64       `json:"snapshot"`         // version of the pool's snapshot
	Outside  []string     `json:"outside_subset"`   // endpoints the gateway's subset hint excluded
	Stages   []StageTrace `json:"stages"`           // in the order they ran
	Decider  string       `json:"decider,omitzero"` // name of the decider that was asked; "" if none was
}

// StageTrace is one run of a profile.
type StageTrace struct {
	Stage      string           `json:"stage"`
	Profile    string           `json:"profile"`
	Candidates []CandidateTrace `json:"candidates"` // chosen ones first in their order, then by total, then those filtered out
}

// CandidateTrace is one candidate of one run.
type CandidateTrace struct {
	Endpoint string       `json:"endpoint"`
	Address  string       `json:"address"`
	Role     string       `json:"role"`
	Chosen   int          `json:"chosen"`              // 1 = first choice; 0 = not chosen
	Dropped  string       `json:"dropped_by,omitzero"` // name of the filter that excluded it
	Why      string       `json:"why"`                 // one sentence
	Total    float64      `json:"total"`
	Scores   []ScoreTrace `json:"scores,omitempty"`
	// What the scorers looked at.
	Signals  Readings `json:"signals"`
	LoadAge  float64  `json:"load_age_seconds"` // -1 = never read
	Requests int      `json:"inflight_requests"`
	Tokens   int      `json:"inflight_tokens"`
	Cached   int      `json:"cached_tokens"`
}

// ScoreTrace is what one scorer said of one candidate.
type ScoreTrace struct {
	Scorer string  `json:"scorer"`
	Weight float64 `json:"weight"`
	Score  float64 `json:"score"` // 0..1
}

// Outcome is what became of a request, as far as the picker's streams show it.
type Outcome struct {
	Request   string // id
	API       pd.API
	Status    int               // HTTP status of the answer; 0 = it never came
	Plan      pd.Plan           // what was planned
	Happened  *pd.Result        // what the sidecar says happened; nil if it did not say
	Phases    *pd.Phases        // as reported; nil if not
	Result    *pd.AnswerSummary // how the answer ended, with token counts; nil if not reported
	Served    string            // ip:port that served; "" if unknown
	Duration  time.Duration
	Immediate bool // answered by the picker itself
}

// Observer is told every outcome, on the goroutine of the stream that ended. It must be quick.
type Observer interface {
	Observe(o *Outcome)
}
