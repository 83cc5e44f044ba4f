package epp

import (
	"cmp"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// Names of the endpoint picker protocol (gateway API inference extension, proposal 004): headers, and keys of the dynamic
// metadata in the namespaces beneath.
const (
	// HeaderDestination carries the picked endpoints, ip:port[,ip:port…], best first.
	HeaderDestination = pd.HeaderDestination
	// HeaderServed names the endpoint that served the request, which may be a later one of the list.
	HeaderServed = "x-gateway-destination-endpoint-served"
	// HeaderSubset lists the endpoints that a gateway allows.
	HeaderSubset = "x-gateway-destination-endpoint-subset"

	// HeaderObjective names the InferenceObjective of a request, and so its priority. It is passed on to the engine, as in
	// llm-d.
	HeaderObjective = "x-llm-d-inference-objective"
	// HeaderObjectiveOld is its older name. If both are sent the newer one counts.
	HeaderObjectiveOld = "x-gateway-inference-objective"
	// HeaderTarget names the model that answers, unless a rewrite of the pool chooses another: a gateway before the picker
	// rewrites by it. The picker removes it. Clients can send it too, so a gateway that grants models by the name in the body
	// has to remove it from what they send.
	HeaderTarget = "x-llm-d-model-name-rewrite"
	// HeaderTargetOld is its older name.
	HeaderTargetOld = "x-gateway-model-name-rewrite"

	// HeaderFlow carries the fairness id of a request, which names the flow that it belongs to while requests wait for capacity.
	HeaderFlow = "x-llm-d-inference-fairness-id"
	// HeaderFlowOld is its older name.
	HeaderFlowOld = "x-gateway-inference-fairness-id"
	// HeaderTTFT carries the time to first token that the client wants, in milliseconds.
	HeaderTTFT = "x-llm-d-slo-ttft-ms"
	// HeaderTTFTOld is its older name.
	HeaderTTFTOld = "x-slo-ttft-ms"
	// HeaderTPOT carries the time for each further token that the client wants, in milliseconds.
	HeaderTPOT = "x-llm-d-slo-tpot-ms"
	// HeaderTPOTOld is its older name.
	HeaderTPOTOld = "x-slo-tpot-ms"

	// HeaderPrefer carries a client's preferences: see IfAvailable.
	HeaderPrefer = "prefer"

	NamespaceLB     = "envoy.lb"
	NamespaceSubset = "envoy.lb.subset_hint"
)

// longestGoal bounds the times that clients may want.
const longestGoal = time.Hour

// WantedTTFT returns the time to first token that the client wants, 0 if it names none that is possible.
func (r *Request) WantedTTFT() time.Duration { return r.wanted(HeaderTTFT, HeaderTTFTOld) }

// WantedTPOT returns the time for each further token that the client wants, likewise.
func (r *Request) WantedTPOT() time.Duration { return r.wanted(HeaderTPOT, HeaderTPOTOld) }

// wanted returns the time that a header names in milliseconds.
func (r *Request) wanted(header, older string) time.Duration {
	sent := cmp.Or(r.Header(header), r.Header(older))
	if sent == "" {
		return 0
	}
	ms, err := strconv.ParseFloat(sent, 64)
	if err != nil || !(ms > 0 && ms <= float64(longestGoal/time.Millisecond)) {
		return 0
	}
	return time.Duration(math.Ceil(ms * float64(time.Millisecond)))
}

// IfAvailable reports whether a HeaderPrefer has the preference if-available of llm-d's coordinator: to be refused rather than
// served by an endpoint that has nothing of the prompt cached. Preferences are separated by commas, and may have a value and
// parameters (RFC 7240).
func IfAvailable(prefer string) bool {
	for preference := range strings.SplitSeq(prefer, ",") {
		name, _, _ := strings.Cut(preference, ";")
		name, _, _ = strings.Cut(name, "=")
		if strings.EqualFold(strings.TrimSpace(name), "if-available") {
			return true
		}
	}
	return false
}

// SplitList splits comma-separated lists and leaves out blank items.
func SplitList(lists ...string) []string {
	var all []string
	for _, list := range lists {
		for item := range strings.SplitSeq(list, ",") {
			if item = strings.TrimSpace(item); item != "" {
				all = append(all, item)
			}
		}
	}
	return all
}
