package load

import (
	"time"
)

// Schema names the form of Result. It changes when a member changes its meaning or goes away.
const Schema = "tandem-load/1"

// Result is all that was measured. All times named _ms are milliseconds as a client sees them.
type Result struct {
	Schema      string             `json:"schema"`
	Version     string             `json:"version"` // of this program
	Started     time.Time          `json:"started"`
	Seconds     float64            `json:"took_s"`
	Interrupted bool               `json:"interrupted"` // Ctrl-C: what follows is of the requests answered until then
	Load        LoadResult         `json:"load"`
	Objective   map[string]float64 `json:"slo_ms,omitempty"` // the bounds of --slo
	Points      []PointResult      `json:"points"`           // one, or one for each length of a sweep
	Sweep       *SweepResult       `json:"sweep,omitempty"`
	ClientWait  float64            `json:"client_wait_p99_ms"` // how long this program's own goroutines waited for a processor
	Notes       []string           `json:"notes"`              // what a reader must know before trusting the figures
}

// LoadResult is the load that was asked for.
type LoadResult struct {
	API          string  `json:"api"`
	Stream       bool    `json:"stream"`
	Open         bool    `json:"open_loop"`
	Rate         float64 `json:"rate,omitempty"`        // requests in a second
	Arrivals     string  `json:"arrivals,omitempty"`    // poisson, constant or trace
	Concurrency  int     `json:"concurrency,omitempty"` // of a closed loop
	InFlight     int     `json:"max_in_flight,omitempty"`
	Rounds       int     `json:"rounds"`
	Requests     int     `json:"requests"`   // of a round, at most
	Duration     float64 `json:"duration_s"` // of a round, at most
	Warmup       int     `json:"warmup"`
	Seed         int     `json:"seed"`
	InputTokens  string  `json:"input_tokens,omitempty"`
	OutputTokens string  `json:"output_tokens,omitempty"`
	SharedPrefix float64 `json:"shared_prefix,omitempty"`
	Trace        string  `json:"trace,omitempty"`
	TraceSpeed   float64 `json:"trace_speed,omitempty"`
	TraceTokens  float64 `json:"trace_tokens,omitempty"`
}

// PointResult is what was measured with one length of prompts.
type PointResult struct {
	InputTokens string       `json:"input_tokens"` // as asked for: a number, a range, or trace
	PickerCount int          `json:"picker_count"` // mean prompt in units of four bytes, as a picker counts that has no tokenizer
	Sides       []SideResult `json:"sides"`
	Comparison  *Comparison  `json:"comparison,omitempty"`
}

// SideResult is what was measured of one side, over all its rounds.
type SideResult struct {
	Name  string `json:"name"`
	URL   string `json:"url"`
	Model string `json:"model"`
	Mode  string `json:"mode,omitempty"` // x-tandem-pd
	GPUs  int    `json:"gpus,omitempty"`

	Requests int     `json:"requests"` // that were due
	Answered int     `json:"answered"`
	Failed   int     `json:"failed"`
	Unsent   int     `json:"unsent"` // not begun before the round ended
	Seconds  float64 `json:"seconds"`

	RequestRate float64          `json:"requests_per_s"` // answered
	InputRate   float64          `json:"input_tokens_per_s"`
	OutputRate  float64          `json:"output_tokens_per_s"`
	Objective   *ObjectiveResult `json:"slo,omitempty"`
	PerGPU      *PerGPU          `json:"per_gpu,omitempty"`

	TTFT *Distribution `json:"ttft_ms,omitempty"` // from when the request was due to the first token
	ITL  *Distribution `json:"itl_ms,omitempty"`  // between events of a stream
	TPOT *Distribution `json:"tpot_ms,omitempty"` // mean of a request's tokens after the first
	E2E  *Distribution `json:"e2e_ms,omitempty"`  // from when the request was due to the end of the answer
	Late *Distribution `json:"late_ms,omitempty"` // from when the request was due to when it was sent

	Input         *Distribution `json:"input_tokens,omitempty"`
	Cached        *Distribution `json:"cached_tokens,omitempty"`
	Output        *Distribution `json:"output_tokens,omitempty"`
	TokensCounted bool          `json:"tokens_counted"`             // by the endpoint; otherwise output tokens are events
	EventTokens   float64       `json:"tokens_per_event,omitempty"` // mean

	Failures  []FailureCount           `json:"failures,omitempty"`
	Decisions []DecisionCount          `json:"decisions,omitempty"` // by x-tandem-pd-decision
	Phases    map[string]*Distribution `json:"phases_ms,omitempty"` // by Server-Timing
	Rounds    []RoundResult            `json:"rounds"`

	itl       []float64 // for drawings, as the next two
	ttft, e2e []float64
}

// ObjectiveResult is how often the service level objective was met. A request that failed or was not sent did not.
type ObjectiveResult struct {
	Met     int     `json:"met"`
	Percent float64 `json:"percent"`
	Goodput float64 `json:"goodput_per_s"`
}

// PerGPU is throughput divided by the number of GPUs.
type PerGPU struct {
	RequestRate float64  `json:"requests_per_s"`
	OutputRate  float64  `json:"output_tokens_per_s"`
	Goodput     *float64 `json:"goodput_per_s,omitempty"`
}

// FailureCount is how often requests failed in the same way.
type FailureCount struct {
	Status  int    `json:"status,omitempty"`
	Reason  string `json:"reason"`
	Count   int    `json:"count"`
	Example string `json:"example"` // of the message
}

// DecisionCount is how often Tandem decided in the same way.
type DecisionCount struct {
	Decision string `json:"decision"`
	Reason   string `json:"reason"`
	Count    int    `json:"count"`
}

// RoundResult is one round of a side.
type RoundResult struct {
	Number   int                `json:"round"`
	Order    int                `json:"order"` // 1: this side went first
	Answered int                `json:"answered"`
	Seconds  float64            `json:"seconds"`
	Figures  map[string]float64 `json:"figures"` // by the names of Difference.Metric; without those that so few requests cannot support
}

// Comparison is the first side of a point against its second.
type Comparison struct {
	First  string `json:"first"`
	Second string `json:"second"`
	Pairs  int    `json:"pairs"` // of rounds
	// Differences are of the metrics that every round of both sides has.
	Differences []Difference `json:"differences"`
}

// Verdicts on a difference.
const (
	Better        = "better"         // the whole interval is on the good side of 0
	Worse         = "worse"          // the whole interval is on the bad side
	NoDifference  = "no difference"  // that the noise allows to see: the interval contains 0
	TooFewRounds  = "too few rounds" // for an interval
	unknownFigure = "–"
)

// Difference is the median over the pairs of rounds of the first side's figure less the second side's.
type Difference struct {
	Metric     string    `json:"metric"`
	First      float64   `json:"first"`  // median over the rounds
	Second     float64   `json:"second"` // likewise
	Difference float64   `json:"difference"`
	Percent    *float64  `json:"percent,omitempty"` // of Second
	Low        *float64  `json:"low,omitempty"`     // of the interval that contains the true median with 95 % confidence
	High       *float64  `json:"high,omitempty"`
	Pairs      []float64 `json:"pairs"` // the difference in each pair
	Verdict    string    `json:"verdict"`
}

// SweepResult says from which length of prompts the first side is better.
type SweepResult struct {
	Criterion string `json:"criterion"` // the metric that decides
	// PaysFrom is the shortest length from which on the first side is better at every length; 0: there is none.
	PaysFrom int `json:"pays_from_tokens,omitempty"`
	// PickerCount is the same length as a picker counts that has no tokenizer: for its threshold.
	PickerCount int `json:"pays_from_picker_count,omitempty"`
	// CostsUpTo is the longest length up to which the first side is worse at every length; 0: there is none.
	CostsUpTo int    `json:"costs_up_to_tokens,omitempty"`
	Verdict   string `json:"verdict"` // in words
}
