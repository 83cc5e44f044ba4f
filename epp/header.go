package epp

import "strings"

// Names of the endpoint picker protocol (gateway API inference extension, proposal 004): headers, and keys of the dynamic
// metadata in the namespaces beneath.
const (
	// HeaderDestination carries the picked endpoints, ip:port[,ip:port…], best first.
	HeaderDestination = "x-gateway-destination-endpoint"
	// HeaderServed names the endpoint that served, which may be a later one of the list.
	HeaderServed = "x-gateway-destination-endpoint-served"
	// HeaderSubset lists the endpoints a gateway allows.
	HeaderSubset = "x-gateway-destination-endpoint-subset"

	// HeaderObjective names the InferenceObjective of a request, and with it its priority. It goes on to the engine, as llm-d
	// leaves it.
	HeaderObjective = "x-llm-d-inference-objective"
	// HeaderObjectiveOld is its older name. If both are there the newer one counts.
	HeaderObjectiveOld = "x-gateway-inference-objective"
	// HeaderTarget names the model that shall answer, unless a rewrite of the pool says otherwise: how a gateway before the
	// picker rewrites. It ends at the picker. Clients can set it as well: a gateway that grants models by the name in the
	// body has to remove it from what they send.
	HeaderTarget = "x-llm-d-model-name-rewrite"
	// HeaderTargetOld is its older name.
	HeaderTargetOld = "x-gateway-model-name-rewrite"

	NamespaceLB     = "envoy.lb"
	NamespaceSubset = "envoy.lb.subset_hint"
)

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
