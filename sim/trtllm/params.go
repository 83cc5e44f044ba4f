package trtllm

import "encoding/base64"

// The types of requests.
const (
	ContextOnly    = "context_only"
	GenerationOnly = "generation_only"
	Both           = "context_and_generation"
)

// GenerationFirst is the schedule_style of legs that are sent at the same time.
const GenerationFirst = 1

// Params are a request's disaggregated_params, in the order in which answers have them. The ids are of 64 bits.
type Params struct {
	RequestType        string  `json:"request_type"`
	FirstGenTokens     []int   `json:"first_gen_tokens"`
	FirstGenLogProbs   any     `json:"first_gen_log_probs"`
	FirstGenLogits     any     `json:"first_gen_logits"`
	CtxRequestID       *int64  `json:"ctx_request_id"`
	EncodedOpaqueState *string `json:"encoded_opaque_state"`
	DraftTokens        []int   `json:"draft_tokens"`
	DisaggRequestID    *int64  `json:"disagg_request_id"`
	CtxDPRank          *int    `json:"ctx_dp_rank"`
	CtxInfoEndpoint    *string `json:"ctx_info_endpoint"`
	ScheduleStyle      *int    `json:"schedule_style"`
	CtxUsage           any     `json:"ctx_usage"`
	// CachedOfContext is what CtxUsage says of cached tokens; -1: nothing.
	CachedOfContext int `json:"-"`
}

// id returns the id of both legs.
func (p *Params) id() (id int64, ok bool) {
	for _, have := range []*int64{p.DisaggRequestID, p.CtxRequestID} {
		if have != nil {
			return *have, true
		}
	}
	return 0, false
}

// generationFirst reports whether the legs are sent at the same time.
func (p *Params) generationFirst() bool {
	return p.ScheduleStyle != nil && *p.ScheduleStyle == GenerationFirst
}

// source returns the endpoint that has the KV of a generation leg, "" if it does not say.
func (p *Params) source() string {
	if p.CtxInfoEndpoint != nil {
		return endpointAddress(*p.CtxInfoEndpoint)
	}
	if p.EncodedOpaqueState == nil {
		return ""
	}
	b, err := base64.StdEncoding.DecodeString(*p.EncodedOpaqueState)
	if err != nil {
		return ""
	}
	return string(b)
}

// tcp begins the endpoint of a context engine.
const tcp = "tcp://"

func endpointAddress(endpoint string) string {
	if len(endpoint) < len(tcp) || endpoint[:len(tcp)] != tcp {
		return ""
	}
	return endpoint[len(tcp):]
}
