package pd

import "strings"

// Header names, in the lower case of HTTP/2 and Envoy. net/http changes the case itself.
const (
	// HeaderMode is the client's choice of local or remote prefill: see Mode.
	HeaderMode = "x-tandem-pd"
	// HeaderPrefill carries the prefill candidates, host:port[,host:port…], best first; absent means local. llm-d's name.
	HeaderPrefill = "x-prefiller-host-port"
	// HeaderPrefillNew is llm-d's newer name of HeaderPrefill. Its pickers send both.
	HeaderPrefillNew = "x-llm-d-prefiller-host-port"
	// HeaderEncode carries the endpoints that encode images, audio and video, host:port[,host:port…]; absent means that the prompt's
	// endpoint encodes them. llm-d's name.
	HeaderEncode = "x-encoder-hosts-ports"
	// HeaderSource carries the endpoint from whose memory the engine that computes the prompt may fetch blocks, host:port; absent means
	// none. llm-d's name.
	HeaderSource = "x-kv-cache-source-host-port"
	// HeaderRank carries the ip:port of the rank that a request is for, where the gateway sends it to the sidecar's first port. llm-d's
	// name.
	HeaderRank = "x-data-parallel-host-port"
	// HeaderDestination carries the endpoints that may serve the request, ip:port[,ip:port…], best first. The endpoint picker protocol's
	// name.
	HeaderDestination = "x-gateway-destination-endpoint"
	// HeaderPlan carries the picker's plan to the sidecar: see Plan.
	HeaderPlan = "x-tandem-plan"
	// HeaderAuth carries the secret shared by picker and sidecar, where one is configured.
	HeaderAuth = "x-tandem-auth"
	// HeaderModel tells the sidecar that another model answers than the one that the client asked for: see Rename.
	HeaderModel = "x-tandem-model"
	// HeaderSidecar tells a picker that reads a metrics page by way of the sidecar, by SidecarTakesPlans, that this sidecar takes
	// HeaderPlan and the like, and lets no engine see them.
	HeaderSidecar = "x-tandem-sidecar"
	// HeaderSidecarReads stands beside HeaderSidecar and lists, separated by commas, the optional members of plans that this sidecar
	// reads: SidecarReadsRanks, SidecarReadsSource. Sidecars that do not send it refuse plans with such members.
	HeaderSidecarReads = "x-tandem-sidecar-reads"
	// HeaderDecision tells the client what happened to the request: see Result.
	HeaderDecision = "x-tandem-pd-decision"
	// HeaderPods tells the client which pods served it, where the operator wants that: see Pods.
	HeaderPods = "x-tandem-pods"
	// HeaderTiming carries the phases in milliseconds: see Phases.
	HeaderTiming = "server-timing"
	// HeaderOutcome reports how an answer ended, as a trailer on streams: see AnswerSummary.
	HeaderOutcome = "x-tandem-outcome"
	// HeaderContinued tells how often another engine was asked for the whole answer, and, as a trailer of streams, how often others have
	// answered or gone on together; absent if none has. As a header of a request between sidecars it counts engines that have died or hung.
	HeaderContinued = "x-tandem-continued"
	// HeaderLeft tells another sidecar how often a stream has left an engine that is to end. HeaderContinued does not count these moves then.
	HeaderLeft = "x-tandem-left"
	// HeaderRetry is on a 502 or 503, or on the 500 or 504 of an engine that has died, if nothing was sent to the client, so
	// that another decode pod may try.
	HeaderRetry = "x-tandem-retry"
	// HeaderRequestID is the id that both engine legs, the answer and all logs share.
	HeaderRequestID = "x-request-id"
	// HeaderDropped is llm-d's header for why a picker refused a request.
	HeaderDropped = "x-llm-d-request-dropped-reason"
	// HeaderQueue tells the client of a refused request where in the queue a new try would be: see QueuePlace; and that of a
	// served one how long it waited for capacity, if it did: see QueueWait.
	HeaderQueue = "x-tandem-queue"
	// HeaderHeadroom tells the client of a request of negative priority which share of their goals the times of online requests leave; it is
	// negative while they miss them, and absent if none has a goal.
	HeaderHeadroom = "x-tandem-headroom"
)

// SidecarTakesPlans is the value of HeaderSidecar.
const SidecarTakesPlans = "plan"

// SidecarReadsRanks says in HeaderSidecarReads that the sidecar reads the ranks of a Plan.
const SidecarReadsRanks = "ranks"

// SidecarReadsSource says in HeaderSidecarReads that the sidecar reads SourceTokens of a Plan.
const SidecarReadsSource = "source-tokens"

// internalPrefixes are the beginnings of headers that only Tandem's components and other pickers may set. Engines do not use
// them, and a client must not choose pods or plans by them.
var internalPrefixes = []string{
	"x-tandem-", "x-prefiller-", "x-encoder-", "x-kv-cache-", "x-data-parallel-", "x-gateway-destination-",
	"x-llm-d-prefiller-", "x-llm-d-encoder-", "x-llm-d-kv-cache-",
}

// Internal reports whether a header, in any case, is internal: for use between Tandem's components. The sidecar removes all
// internal headers from what engines get; the picker removes all but HeaderMode from what clients send.
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

// WellFormedRequestID reports whether a HeaderRequestID has 1 to 128 letters, digits and -._: only. Engines put it into their own
// ids, logs and traces.
func WellFormedRequestID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && !(c >= '0' && c <= '9') && !strings.ContainsRune("-._:", rune(c)) {
			return false
		}
	}
	return true
}
