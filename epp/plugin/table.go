package plugin

import (
	"slices"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/affinity"
	"github.com/tandem-serving/tandem/epp/plugin/conformance"
	"github.com/tandem-serving/tandem/epp/plugin/filter"
	"github.com/tandem-serving/tandem/epp/plugin/handler"
	"github.com/tandem-serving/tandem/epp/plugin/parser"
	"github.com/tandem-serving/tandem/epp/plugin/picker"
	"github.com/tandem-serving/tandem/epp/plugin/producer"
	"github.com/tandem-serving/tandem/epp/plugin/queue"
	"github.com/tandem-serving/tandem/epp/plugin/reporter"
	"github.com/tandem-serving/tandem/epp/plugin/scorer"
)

// Table lists all plugins. A plugin without a row cannot be configured.
var Table = []epp.Row{
	// Filters.
	{Type: "decode-filter", New: filter.NewDecode},
	{Type: "prefill-filter", New: filter.NewPrefill},
	{Type: "encode-filter", New: filter.NewEncode},
	{Type: "label-selector-filter", Deprecated: []string{"by-label", "by-label-selector"}, New: filter.NewLabelSelector},
	{Type: "prefix-cache-affinity-filter", New: filter.NewPrefixCacheAffinity},
	{Type: "session-affinity-filter", New: affinity.NewSessionFilter},
	{Type: "topology-affinity-filter", New: affinity.NewTopologyFilter},
	{Type: "endpoint-attribute-filter", New: filter.NewEndpointAttribute},
	{Type: "utilization-filter", New: filter.NewUtilization},
	{Type: "slo-headroom-tier-filter", New: filter.NewSLOHeadroomTier},
	{Type: "cheapest-variant-filter", New: filter.NewCheapestVariant},
	{Type: "role-turner", New: newRoleTurner},

	// Screeners, which narrow down the endpoints for all profiles.
	{Type: "disaggregatedset-rollout-screener", New: affinity.NewRolloutScreener},

	// Saturation detectors, which are filters too.
	{Type: "utilization-detector", New: filter.NewUtilizationDetector},
	{Type: "concurrency-detector", New: filter.NewConcurrencyDetector},

	// Admitters, which refuse requests before any profile runs.
	{Type: "probabilistic-admitter", New: filter.NewProbabilisticAdmitter},
	{Type: "latency-slo-admitter", New: filter.NewLatencySLOAdmitter},

	// Policies of flowControl, for requests that wait. They have an effect only with the feature gate flowControl.
	{Type: "global-strict-fairness-policy", New: queue.NewGlobalStrict},
	{Type: "round-robin-fairness-policy", New: queue.NewRoundRobin},
	{Type: "program-aware-fairness", New: queue.NewProgramAware},
	{Type: "served-tokens-fairness-policy", New: queue.NewServedTokens},
	{Type: "fcfs-ordering-policy", New: queue.NewFCFS},
	{Type: "edf-ordering-policy", New: queue.NewEDF},
	{Type: "slo-deadline-ordering-policy", New: queue.NewSLODeadline},
	{Type: "static-usage-limit-policy", New: queue.NewStaticUsageLimit},
	{Type: "priority-holdback-policy", New: queue.NewPriorityHoldback},
	{Type: "soft-reflective-ceiling-policy", New: queue.NewSoftReflectiveCeiling},

	// Scorers.
	{Type: "queue-scorer", New: scorer.NewQueue},
	{Type: "running-requests-size-scorer", New: scorer.NewRunningRequestsSize},
	{Type: "kv-cache-utilization-scorer", New: scorer.NewKVCacheUtilization},
	{Type: "active-request-scorer", New: scorer.NewActiveRequest},
	{Type: "token-load-scorer", New: scorer.NewTokenLoad},
	{Type: "prefix-cache-scorer", New: scorer.NewPrefixCache},
	{Type: "precise-prefix-cache-scorer", New: scorer.NewPrecisePrefixCache},
	{Type: "lora-affinity-scorer", New: scorer.NewLoRAAffinity},
	{Type: "load-aware-scorer", New: scorer.NewLoadAware},
	{Type: "no-hit-lru-scorer", New: scorer.NewNoHitLRU},
	{Type: "session-affinity-scorer", New: affinity.NewSessionScorer},
	{Type: "mm-embeddings-cache-scorer", New: affinity.NewMediaScorer},
	{Type: "header-label-affinity-scorer", New: affinity.NewHeaderLabelScorer},
	{Type: "topology-affinity-scorer", New: affinity.NewTopologyScorer},
	{Type: "endpoint-attribute-scorer", New: scorer.NewEndpointAttribute},
	{Type: "context-length-aware", New: scorer.NewContextLengthAware},
	{Type: "latency-scorer", New: scorer.NewLatency},

	// Pickers.
	{Type: "max-score-picker", New: picker.NewMaxScore},
	{Type: "random-picker", New: picker.NewRandom},
	{Type: "weighted-random-picker", New: picker.NewWeightedRandom},

	// Profile handlers, and the deciders about prefill and encode.
	{Type: "single-profile-handler", New: handler.NewSingleProfile},
	{Type: "disagg-profile-handler", New: handler.NewDisaggProfile},
	{Type: "data-parallel-profile-handler", New: handler.NewDataParallelProfile},
	{Type: "header-profile-handler", New: handler.NewHeaderProfile},
	{Type: "pd-profile-handler", New: handler.NewPDProfile},
	{Type: "prefix-based-pd-decider", New: handler.NewPrefixBasedPDDecider},
	{Type: "always-disagg-pd-decider", New: handler.NewAlwaysDisaggPDDecider},
	{Type: "cost-pd-decider", New: handler.NewCostPDDecider},
	{Type: "drift-pd-decider", New: handler.NewDriftPDDecider},
	{Type: "always-disagg-multimodal-decider", New: handler.NewAlwaysDisaggMultimodalDecider},

	// Producers, whose results the other plugins use.
	{Type: "approx-prefix-cache-producer", New: producer.NewApproxPrefixCache},
	{Type: "precise-prefix-cache-producer", New: producer.NewPrecisePrefixCache},
	{Type: "burst-prefix-cache-producer", New: producer.NewBurstPrefixCache},
	{Type: "inflight-load-producer", New: producer.NewInflightLoad},
	{Type: "p2p-source-producer", New: producer.NewP2PSource},
	{Type: "predicted-latency-producer", New: producer.NewPredictedLatency},
	{Type: "session-id-producer", New: affinity.NewSessionIDProducer},
	{Type: "mm-embeddings-cache-producer", New: affinity.NewMediaProducer},
	{Type: "agent-identity", New: affinity.NewAgentIdentity},
	{Type: "topology-extractor", New: affinity.NewTopologyExtractor},
	{Type: "token-producer", Deprecated: []string{"tokenizer"}, New: producer.NewToken},

	// Reporters of numbers about answers, to gateways and clients.
	{Type: "request-attribute-reporter", New: reporter.NewRequestAttribute},
	{Type: "slo-headroom-reporter", New: reporter.NewSLOHeadroom},

	// What computes how many replicas there should be, for autoscalers.
	{Type: "replica-sizer", New: newReplicaSizer},

	// Request parsers, for requestHandler.
	{Type: "openai-parser", New: parser.NewOpenAI},
	{Type: "anthropic-parser", New: parser.NewAnthropic},
	{Type: "vllmhttp-parser", New: parser.NewVLLMHTTP},
	{Type: "sglanghttp-parser", New: parser.NewSGLangHTTP},
	{Type: "vllmgrpc-parser", New: parser.NewVLLMGRPC},
	{Type: "vertexai-parser", New: parser.NewVertexAI},
	{Type: "passthrough-parser", New: parser.NewPassthrough},

	// Sources of endpoints and of what their pages say.
	{Type: "file-discovery", New: newFileDiscovery},
	{Type: "metrics-data-source", New: newMetricsDataSource},
	{Type: "core-metrics-extractor", New: newCoreMetricsExtractor},
	{Type: "models-data-source", New: newModelsDataSource},
	{Type: "models-data-extractor", New: newModelsDataExtractor},
	{Type: "dcgm-data-source", New: newDCGMDataSource},
	{Type: "dcgm-extractor", New: newDCGMExtractor},

	// For conformance tests of gateways: with them every client chooses its endpoint, so they need the flag --conformance.
	{Type: "header-based-testing-filter", Flag: FlagConformance, New: conformance.NewHeaderFilter},
	{Type: "destination-endpoint-served-verifier", Flag: FlagConformance, New: conformance.NewServedVerifier},
}

// FlagConformance is the flag of the picker that the plugins for conformance tests need.
const FlagConformance = "--conformance"

// With returns the table as a picker has it to which a flag was given.
func With(flag string) []epp.Row {
	rows := slices.Clone(Table)
	for i := range rows {
		if rows[i].Flag == flag {
			rows[i].Flag = ""
		}
	}
	return rows
}
