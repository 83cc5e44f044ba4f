package config

import (
	"cmp"
	"slices"
)

// Foreign plugins are plugins of llm-d that this picker does not have. A foreign type is accepted, with a warning, if no
// request is served worse without it. The others are refused by name, and not reported as mistyped.

// role is how an accepted foreign plugin may be referenced, with its article.
type role string

const (
	roleParser role = "a request parser"
	roleSyncer role = "a syncer of replicas"
	roleNotice role = "a source of notifications"
	roleNone   role = "a plugin without effect"
)

const (
	noReplicas = "the picker's flag --share-with names the replicas that exchange their loads"
	watched    = "endpoints are always watched"
)

// accepted are the foreign types that are accepted, and what replaces them.
var accepted = map[string]struct {
	role role
	why  string
}{
	"local-syncer": {roleSyncer, noReplicas},

	"endpoint-notification-source":           {roleNotice, watched},
	"k8s-notification-source":                {roleNotice, watched},
	"disaggregatedset-rollout-pod-extractor": {roleNone, "the labels of endpoints are always watched"},

	"sheddable-eviction-filter":                {roleNone, "with enableEviction, only requests of negative priority are evicted"},
	"priority-then-time-eviction-order-policy": {roleNone, "with enableEviction, the lowest priority is evicted first, and its newest request"},

	// Older configurations list these with the profile handler that needed them.
	"disagg-headers-handler": {roleNone, "the headers of the routing sidecar are always set"},
	"prefill-header-handler": {roleNone, "the headers of the routing sidecar are always set"},
}

// Advice for several refused types.
const (
	leaveOut   = "leave it out"
	noClusters = "a picker serves one cluster; put one picker into each"
)

// refused are the foreign types that are refused, with what to do instead.
var refused = map[string]string{
	"kv-cache-hint-v2":                          leaveOut,
	"lmetric-scorer":                            "token-load-scorer rates by load and by what is cached, too",
	"models-responder":                          "leave it out; GET /v1/models goes to one endpoint",
	"multicluster-approx-prefix-cache-producer": noClusters,
	"multicluster-file-discovery":               noClusters,
	"multicluster-kv-cache-utilization-scorer":  noClusters,
	"multicluster-metrics-data-source":          noClusters,
	"multicluster-metrics-extractor":            noClusters,
	"multicluster-prefix-cache-scorer":          noClusters,
	"multicluster-queue-scorer":                 noClusters,
	"multicluster-session-affinity-filter":      noClusters,
	"outlen-bucket":                             "leave it out; inflight-load-producer estimates answers by the length of the prompt",
	"session-interturn-latency-producer":        leaveOut,
	"thunder-agent":                             "program-aware-fairness with the strategy turn-priority, and session-affinity-scorer",
}

// Foreign is one plugin of llm-d that this picker does not have.
type Foreign struct {
	Type    string
	Refused bool
	// Why says what replaces a plugin that is accepted without effect, or what to do instead of one that is refused.
	Why string
}

// ForeignTypes returns all plugins of llm-d that this picker does not have, by name.
func ForeignTypes() (all []Foreign) {
	for name, a := range accepted {
		all = append(all, Foreign{Type: name, Why: a.why})
	}
	for name, instead := range refused {
		all = append(all, Foreign{Type: name, Refused: true, Why: instead})
	}
	slices.SortFunc(all, func(a, b Foreign) int { return cmp.Compare(a.Type, b.Type) })
	return all
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

// gates are the feature gates of llm-d, older ones included, and why each has no effect here; "" = it has.
var gates = map[string]string{
	gateFlow:                       "",
	"haPopulateNonLeaderDatastore": "every replica has all endpoints",
	"prepareDataPlugins":           "what plugins read is always prepared",
	"dataLayer":                    "there is always a data layer",
	"enableLegacyMetrics":          "metrics pages are read in one way",
}
