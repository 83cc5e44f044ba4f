package report

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Data is one run of a stack. All times are in milliseconds; times of day count from Started.
type Data struct {
	Title    string       `json:"title"`
	Started  time.Time    `json:"started"`
	Stack    []string     `json:"stack"`    // the programs, one line each: "2 prefill engines (simulated)", "Envoy 1.40.0"
	Requests []Request    `json:"requests"` // in the order they were sent
	Load     []LoadSample `json:"load"`     // in the order of time
	Why      []Why        `json:"why"`      // decisions with their numbers
	Checks   []Check      `json:"checks"`
	KVMoved  int64        `json:"kv_bytes"` // bytes of KV cache that all requests together pulled; -1 if unknown

	Comparison *Comparison `json:"comparison,omitempty"` // of local prefill with P/D; nil if it was not measured
}

// Request is one request and its result.
type Request struct {
	Number     int                `json:"number"` // from 1
	Class      string             `json:"class"`  // kind of request: "short chat", "long completion, streamed", …
	API        string             `json:"api"`
	Stream     bool               `json:"stream"`
	Decision   string             `json:"decision"` // local, remote or refused; "" if there is no answer
	Reason     string             `json:"reason"`
	Attempts   int                `json:"attempts"`
	DecodePod  string             `json:"decode_pod,omitempty"`  // whose engine answered; "" if unknown
	PrefillPod string             `json:"prefill_pod,omitempty"` // whose engine was asked to prefill; "" if none was, or if unknown
	Prompt     int                `json:"prompt_tokens"`
	Cached     int                `json:"cached_tokens"`
	Completion int                `json:"completion_tokens"`
	Start      float64            `json:"start_ms"`
	TTFT       float64            `json:"ttft_ms,omitempty"` // to the first token of a streamed answer; 0 for others, which come in one piece
	Total      float64            `json:"total_ms"`          // to the end of the answer (E2E)
	ITL        []float64          `json:"itl_ms,omitempty"`
	Phases     map[string]float64 `json:"phases_ms"` // by the tokens of pd.Phase, epp included; only phases that it went through
	KVBytes    int64              `json:"kv_bytes"`  // pulled for it; -1 if unknown
	Failure    string             `json:"failure,omitempty"`
}

// LoadSample is the load of one endpoint at one time, as the picker saw it.
type LoadSample struct {
	At       float64 `json:"at_ms"`
	Endpoint string  `json:"endpoint"`
	Role     string  `json:"role"`
	Waiting  int     `json:"waiting"`
	Running  int     `json:"running"`
	KVUsage  float64 `json:"kv_usage"` // 0..1
	InFlight int     `json:"inflight_requests"`
}

// Why is one decision with its numbers.
type Why struct {
	Question    string           `json:"question"` // "Why was request 3 local?"
	Request     int              `json:"request"`  // its number
	Explanation *epp.Explanation `json:"explanation"`
}

// Check is something that the run was checked for, and what was found.
type Check struct {
	Name   string `json:"check"`
	Passed bool   `json:"passed"`
	Got    string `json:"got"`
}
