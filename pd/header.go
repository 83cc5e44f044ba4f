package pd

import "strings"

// Header names, in the lower case HTTP/2 and Envoy use. net/http canonicalises on use.
const (
	// HeaderMode is the client's choice of local or remote prefill: see Mode.
	HeaderMode = "x-tandem-pd"
	// HeaderPrefill carries the prefill candidates, host:port[,host:port…], best first; absent means local. llm-d's name.
	HeaderPrefill = "x-prefiller-host-port"
	// HeaderPlan carries the picker's plan to the sidecar: see Plan.
	HeaderPlan = "x-tandem-plan"
	// HeaderAuth carries the secret shared by picker and sidecar, where one is configured.
	HeaderAuth = "x-tandem-auth"
	// HeaderModel tells the sidecar that another model answers than the client asked for: see Rename.
	HeaderModel = "x-tandem-model"
	// HeaderDecision tells the client what happened: see Result.
	HeaderDecision = "x-tandem-pd-decision"
	// HeaderTiming carries the phases in milliseconds: see Phases.
	HeaderTiming = "server-timing"
	// HeaderOutcome closes the report on an answer, as a trailer on streams: see AnswerSummary.
	HeaderOutcome = "x-tandem-outcome"
	// HeaderRetry says, beside a 502 or 503, or the 500 or 504 of an engine that has died, that nothing was sent to the client and
	// another decode pod may try.
	HeaderRetry = "x-tandem-retry"
	// HeaderRequestID is the one id that both engine legs, the answer and all logs share.
	HeaderRequestID = "x-request-id"
	// HeaderDropped is llm-d's header for why a picker refused a request.
	HeaderDropped = "x-llm-d-request-dropped-reason"
)

// internalPrefixes are the header families that only Tandem's own parts and foreign pickers may set. No engine has a use
// for them, and a client that sets one tries to change what is not its to decide.
var internalPrefixes = []string{
	"x-tandem-", "x-prefiller-", "x-encoder-", "x-kv-cache-", "x-data-parallel-", "x-gateway-destination-",
}

// Internal reports whether a header, in any case, belongs to the families between Tandem's parts. The sidecar removes all
// of them from what engines get; the picker removes all but HeaderMode from what clients send.
func Internal(name string) bool {
	if len(name) < 3 || name[0]|0x20 != 'x' || name[1] != '-' {
		return false
	}
	for _, p := range internalPrefixes {
		if len(name) >= len(p) && strings.EqualFold(name[:len(p)], p) {
			return true
		}
	}
	return false
}
