package config

import "slices"

// Foreign plugins are plugins of llm-d that this picker does not have. A foreign type is accepted, with a warning, if no
// request is served worse without it. The others are refused by name, and not reported as mistyped.

// role is how an accepted foreign plugin may be referenced, with its article.
type role string

const (
	roleParser   role = "a request parser"
	roleFairness role = "a fairness policy"
	roleOrdering role = "an ordering policy"
	roleUsage    role = "a usage limit policy"
	roleSyncer   role = "a syncer of replicas"
	roleNone     role = "a plugin without effect"
)

const (
	noQueue    = "requests are not queued"
	noReplicas = "replicas do not tell each other their load"
)

// accepted are the foreign types that are accepted, and what replaces them.
var accepted = map[string]struct {
	role role
	why  string
}{
	"openai-parser":      {roleParser, "every API is parsed, whatever is listed"},
	"anthropic-parser":   {roleParser, "every API is parsed, whatever is listed"},
	"vllmhttp-parser":    {roleParser, "every API is parsed, whatever is listed"},
	"passthrough-parser": {roleParser, "what cannot be parsed is passed through"},

	"global-strict-fairness-policy": {roleFairness, noQueue},
	"round-robin-fairness-policy":   {roleFairness, noQueue},
	"program-aware-fairness":        {roleFairness, noQueue},
	"fcfs-ordering-policy":          {roleOrdering, noQueue},
	"edf-ordering-policy":           {roleOrdering, noQueue},
	"slo-deadline-ordering-policy":  {roleOrdering, noQueue},
	"static-usage-limit-policy":     {roleUsage, noQueue},
	"local-syncer":                  {roleSyncer, noReplicas},

	// Older configurations list these with the profile handler that needed them.
	"disagg-headers-handler": {roleNone, "the headers of the routing sidecar are always set"},
	"prefill-header-handler": {roleNone, "the headers of the routing sidecar are always set"},
}

// refused are the foreign types that are refused.
var refused = []string{
	"agent-identity", "always-disagg-multimodal-decider", "burst-prefix-cache-producer",
	"context-length-aware", "data-parallel-profile-handler", "dcgm-data-source", "dcgm-extractor",
	"disaggregatedset-rollout-screener", "encode-filter", "endpoint-attribute-filter", "endpoint-attribute-scorer",
	"endpoint-notification-source", "header-based-testing-filter", "header-label-affinity-scorer", "header-profile-handler",
	"k8s-notification-source", "latency-scorer", "latency-slo-admitter", "load-aware-scorer", "mm-embeddings-cache-producer",
	"mm-embeddings-cache-scorer", "models-data-extractor", "models-data-source", "multicluster-approx-prefix-cache-producer",
	"multicluster-file-discovery", "multicluster-kv-cache-utilization-scorer", "multicluster-metrics-data-source",
	"multicluster-metrics-extractor", "multicluster-prefix-cache-scorer", "multicluster-queue-scorer",
	"multicluster-session-affinity-filter", "no-hit-lru-scorer", "p2p-source-producer", "precise-prefix-cache-producer",
	"precise-prefix-cache-scorer", "predicted-latency-producer", "priority-holdback-policy",
	"priority-then-time-eviction-order-policy", "probabilistic-admitter", "request-attribute-reporter",
	"session-affinity-filter", "session-affinity-scorer", "session-id-producer", "sglanghttp-parser",
	"sheddable-eviction-filter", "slo-headroom-tier-filter", "soft-reflective-ceiling-policy", "topology-affinity-filter",
	"topology-affinity-scorer", "topology-extractor", "utilization-filter", "vertexai-parser", "vllmgrpc-parser",
}

// acceptedAs returns the foreign types with a role.
func acceptedAs(want role) (names []string) {
	for name, a := range accepted {
		if a.role == want {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// gates are the feature gates of llm-d, older ones included, and the effect of each here.
var gates = map[string]string{
	"flowControl":                  noQueue,
	"haPopulateNonLeaderDatastore": "every replica has all endpoints",
	"prepareDataPlugins":           "what plugins read is always prepared",
	"dataLayer":                    "there is always a data layer",
	"enableLegacyMetrics":          "metrics pages are read in one way",
}
