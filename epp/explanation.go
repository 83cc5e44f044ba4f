package epp

import (
	"net/netip"
	"strings"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// Explanation is the answer of the picker's POST /explain: where a request would go now, and why. It reserves and learns
// nothing.
type Explanation struct {
	Request  RequestSummary    `json:"request"`
	Decision string            `json:"decision"` // local, remote or refused
	Reason   pd.Reason         `json:"reason"`
	Refusal  *RefusalSummary   `json:"refusal,omitempty"`
	Picks    []PickSummary     `json:"picks"`   // one for each stage that has endpoints, in their order
	Headers  map[string]string `json:"headers"` // what the gateway would add; the plan's id is made at the pick
	Decider  DeciderNumbers    `json:"decider"`
	Trace    *Trace            `json:"trace"`
}

// PickSummary is what was picked for one stage.
type PickSummary struct {
	Stage     Stage    `json:"stage"`
	Endpoints []string `json:"endpoints"` // addresses, best first
}

// Endpoints returns the addresses picked for a stage, best first; none if the stage has none.
func (x *Explanation) Endpoints(stage Stage) []string {
	for _, p := range x.Picks {
		if p.Stage == stage {
			return p.Endpoints
		}
	}
	return nil
}

// RequestSummary is what the picker read of a request. It holds no prompt.
type RequestSummary struct {
	API    string `json:"api"`
	Model  string `json:"model"`
	Stream bool   `json:"stream"`
	Mode   string `json:"mode"`
	Split  bool   `json:"splittable"`
	Tokens int    `json:"prompt_tokens"` // estimated
	Blocks int    `json:"prompt_blocks"`

	Asked     string `json:"asked_model,omitempty"`   // by the client, if another model answers
	Rewrite   string `json:"model_rewrite,omitempty"` // what chose the model; each request draws anew
	Objective string `json:"objective,omitempty"`
	Known     bool   `json:"objective_known,omitempty"` // to the pool; otherwise its priority is 0
	Priority  int    `json:"priority"`
}

// RefusalSummary is how a request would be refused.
type RefusalSummary struct {
	Status  int    `json:"status"`
	Message string `json:"message"`
}

// DeciderNumbers are the numbers that the decider of the stage that splits requests compared.
type DeciderNumbers struct {
	Name       string `json:"name"`                 // in the configuration; "" if none was asked
	Parameters any    `json:"parameters,omitempty"` // as configured
	Tokens     int    `json:"prompt_tokens"`
	Cached     int    `json:"cached_tokens"` // on the decode endpoint
	Uncached   int    `json:"uncached_tokens"`
	// Loads are the cached tokens that the decode endpoint must load, by where they are.
	Loads map[string]int `json:"loads,omitempty"`
}

// Explain makes an explanation from a request (nil if it could not be read), its decision (nil if there is none) and its
// refusal (nil if it is served).
func Explain(r *Request, d *Decision, refused error) *Explanation {
	x := &Explanation{Picks: []PickSummary{}, Headers: map[string]string{}}
	if r != nil {
		x.Request = RequestSummary{API: r.API.String(), Model: r.Model, Stream: r.Stream, Mode: r.Mode.String(),
			Split: r.Fit == request.FitSplit, Tokens: r.Prompt.Tokens, Blocks: len(r.Prompt.Blocks),
			Asked: r.Asked, Rewrite: r.Rewrite, Objective: r.Objective, Known: r.Known, Priority: r.Priority}
	}
	if d != nil {
		x.Decision, x.Reason, x.Trace = d.Verdict.String(), d.Reason, d.Trace
		for i := range d.Picks {
			x.Picks = append(x.Picks, PickSummary{d.Picks[i].Row.Stage, addresses(d.Picks[i].Endpoints)})
		}
		x.Decider = DeciderNumbers{Tokens: d.Tokens, Cached: d.Cached, Uncached: max(0, d.Tokens-d.Cached), Loads: d.Loads.ByTier()}
		x.Decider.Name = d.Trace.splitter()
	}
	if d != nil && refused == nil {
		x.addHeaders(r, d)
	}
	if refused != nil {
		why := pd.AsRefusal(refused)
		x.Decision, x.Reason = pd.Refused.String(), why.Result().Reason
		x.Refusal = &RefusalSummary{Status: why.Status(), Message: why.Message}
	}
	return x
}

func (x *Explanation) addHeaders(r *Request, d *Decision) {
	x.Headers[HeaderDestination] = strings.Join(x.Picks[0].Endpoints, ",")
	if port := d.Picks[0].Row.Port; port != 0 {
		x.Headers[pd.HeaderRank] = d.First()[0].Address
		x.Headers[HeaderDestination] = netip.AddrPortFrom(d.First()[0].Addr.Addr(), port).String()
	}
	if !r.API.Generates() {
		return
	}
	plan := d.Plan()
	plan.ID = "0000000000000000"
	x.Headers[pd.HeaderPlan] = plan.String()
	for i, p := range x.Picks[1:] {
		x.Headers[d.Picks[1+i].Row.Header] = strings.Join(p.Endpoints, ",")
	}
	if d.PullFrom != nil {
		x.Headers[pd.HeaderSource] = d.PullFrom.Address
	}
	if r.Asked != "" {
		x.Headers[pd.HeaderModel] = pd.Rename{Asked: r.Asked, Answers: r.Model}.String()
	}
}

func addresses(endpoints []*Endpoint) []string {
	all := make([]string, len(endpoints))
	for i, e := range endpoints {
		all[i] = e.Address
	}
	return all
}
