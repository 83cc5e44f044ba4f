package recent

import (
	"net"
	"slices"
	"time"
)

// Served is what a sidecar tells of a request.
type Served struct {
	ID       string    `json:"request_id"`
	Began    time.Time `json:"began"`
	API      string    `json:"api"`
	Mode     string    `json:"mode"`
	Planned  string    `json:"planned"`           // verdict
	PlanID   string    `json:"plan_id,omitempty"` // of the picker's decision
	Decision string    `json:"decision"`          // as in pd.HeaderDecision
	Decode   string    `json:"decode"`            // this pod, as the gateway reached it
	Prefill  string    `json:"prefill,omitempty"` // the last prefill pod that was tried
	Notable  string    `json:"notable,omitempty"` // why the request is worth a look: failed, fallback, slow
	Status   int       `json:"status"`            // that the client got; 0 = none
	State    string    `json:"state"`             // how far it came
	End      string    `json:"end"`               // how the answer ended: see pd.End
	Tokens   Tokens    `json:"tokens"`
	Millis   float64   `json:"ms"`              // from the first byte to the last
	Timing   string    `json:"timing"`          // the phases, as in pd.HeaderTiming
	Error    string    `json:"error,omitempty"` // why the client did not get the answer that it asked for
	Legs     []Leg     `json:"legs"`
	LegsLeft int       `json:"legs_left_out,omitempty"` // further legs
	Releases []Release `json:"releases,omitempty"`      // also those that ended after the request
}

// Tokens are counts of the engine's; -1 = not reported.
type Tokens struct {
	Prompt     int64 `json:"prompt"`
	Cached     int64 `json:"cached"`
	Completion int64 `json:"completion"`
}

// Leg is one leg that was sent.
type Leg struct {
	Leg    string  `json:"leg"`    // prefill, decode, local or continue
	Engine string  `json:"engine"` // host:port
	At     float64 `json:"at_ms"`  // when it was sent, after the request began
	Millis float64 `json:"ms"`     // to the end of its answer (prefill) or to its headers (decode, local)
	Status int     `json:"status"` // 0 = no answer
	Error  string  `json:"error,omitempty"`
}

// Release is one release of a hand-off that decode did not read.
type Release struct {
	Way    string  `json:"way"`
	Result string  `json:"result"`
	At     float64 `json:"at_ms"` // when it ended, after the request began
	Error  string  `json:"error,omitempty"`
}

// Picked is what a picker knows of a request: what it decided, and what it was told of the answer.
type Picked struct {
	ID       string    `json:"request_id"` // "": the client sent none that a sidecar accepts
	Ended    time.Time `json:"ended"`
	API      string    `json:"api"`
	PlanID   string    `json:"plan_id,omitempty"`
	Decision string    `json:"decision"`           // local, remote or refused, as planned
	Reason   string    `json:"reason"`             // of the decision
	Strict   bool      `json:"strict"`             // the client forbade local prefill
	Picks    []Pick    `json:"picks,omitempty"`    // none: it was refused, or another replica picked
	Costs    []Cost    `json:"costs,omitempty"`    // that the decider compared
	Tokens   int       `json:"prompt_tokens"`      // as they were known at the pick
	Cached   int       `json:"cached_tokens"`      // of these, on the decode pod
	PickMs   float64   `json:"pick_ms"`            // the picker's own time
	Status   int       `json:"status"`             // of the answer; 0 = it never came
	Happened string    `json:"happened,omitempty"` // as in pd.HeaderDecision; "": nothing was reported
	Served   string    `json:"served,omitempty"`   // host:port that served
	Millis   float64   `json:"ms"`                 // from the first frame to the last
	Own      bool      `json:"answered_by_picker"`
}

// Is implements Entry.
func (p *Picked) Is(id string) bool { return p.ID == id || p.PlanID == id }

// Size implements Entry. Addresses and names are the pool's; they count, because an endpoint may have left it.
func (p *Picked) Size() int {
	const fixed, pick, cost = 500, 100, 50
	n := fixed + len(p.ID) + len(p.Happened) + len(p.Costs)*cost
	for i := range p.Picks {
		n += pick
		for j, address := range p.Picks[i].Endpoints {
			n += len(address) + len(p.Picks[i].Names[j]) + 32 // the strings' headers
		}
	}
	return n
}

// Pick is what was picked for one stage.
type Pick struct {
	Stage     string   `json:"stage"`
	Endpoints []string `json:"endpoints"` // addresses, best first
	Names     []string `json:"names"`     // of the same endpoints
}

// Cost is what a decider expected of one alternative.
type Cost struct {
	Verdict  string  `json:"verdict"`
	Endpoint string  `json:"endpoint"`
	Seconds  float64 `json:"seconds"` // to the first token
}

// SentTo reports whether the request was served by an endpoint at an IP address or, if that is not known, may have been.
func (p *Picked) SentTo(ip string) bool {
	at := func(address string) bool {
		host, _, err := net.SplitHostPort(address)
		return err == nil && host == ip
	}
	if p.Served != "" {
		return at(p.Served)
	}
	return len(p.Picks) > 0 && slices.ContainsFunc(p.Picks[0].Endpoints, at)
}
