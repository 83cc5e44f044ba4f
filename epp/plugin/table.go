package plugin

import "github.com/tandem-serving/tandem/epp"

// Table lists all plugins. A plugin without a row cannot be configured.
var Table = []epp.Row{
	// Filters.
	{Type: "decode-filter", New: newDecodeFilter},
	{Type: "prefill-filter", New: newPrefillFilter},
	{Type: "label-selector-filter", Deprecated: []string{"by-label", "by-label-selector"}, New: newLabelSelectorFilter},
	{Type: "prefix-cache-affinity-filter", New: newPrefixCacheAffinityFilter},

	// Saturation detectors, which are filters too.
	{Type: "utilization-detector", New: newUtilizationDetector},
	{Type: "concurrency-detector", New: newConcurrencyDetector},

	// Scorers.
	{Type: "queue-scorer", New: newQueueScorer},
	{Type: "running-requests-size-scorer", New: newRunningRequestsSizeScorer},
	{Type: "kv-cache-utilization-scorer", New: newKVCacheUtilizationScorer},
	{Type: "active-request-scorer", New: newActiveRequestScorer},
	{Type: "token-load-scorer", New: newTokenLoadScorer},
	{Type: "prefix-cache-scorer", New: newPrefixCacheScorer},
	{Type: "lora-affinity-scorer", New: newLoRAAffinityScorer},

	// Pickers.
	{Type: "max-score-picker", New: newMaxScorePicker},
	{Type: "random-picker", New: newRandomPicker},
	{Type: "weighted-random-picker", New: newWeightedRandomPicker},

	// Profile handlers, and the deciders about prefill.
	{Type: "single-profile-handler", New: newSingleProfileHandler},
	{Type: "disagg-profile-handler", New: newDisaggProfileHandler},
	{Type: "pd-profile-handler", New: newPDProfileHandler},
	{Type: "prefix-based-pd-decider", New: newPrefixBasedPDDecider},
	{Type: "always-disagg-pd-decider", New: newAlwaysDisaggPDDecider},

	// Producers, whose results the other plugins use.
	{Type: "approx-prefix-cache-producer", New: newApproxPrefixCacheProducer},
	{Type: "inflight-load-producer", New: newInflightLoadProducer},
	{Type: "token-producer", Deprecated: []string{"tokenizer"}, New: newTokenProducer},

	// Sources of endpoints and of their metrics.
	{Type: "file-discovery", New: newFileDiscovery},
	{Type: "metrics-data-source", New: newMetricsDataSource},
	{Type: "core-metrics-extractor", New: newCoreMetricsExtractor},
}
