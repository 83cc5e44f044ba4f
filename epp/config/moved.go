package config

// movedFields are parameters that llm-d has removed from a plugin, by type and parameter, with what to write instead.
var movedFields = map[string]map[string]string{
	"prefix-cache-scorer": {
		"autoTune":               toProducer("autoTune"),
		"blockSize":              toProducer("blockSizeTokens"),
		"blockSizeTokens":        toProducer("blockSizeTokens"),
		"hashBlockSize":          toProducer("blockSizeTokens, in tokens instead of characters"),
		"lruCapacityPerServer":   toProducer("lruCapacityPerServer"),
		"maxPrefixBlocksToMatch": toProducer("maxPrefixBlocksToMatch"),
		"maxPrefixTokensToMatch": toProducer("maxPrefixTokensToMatch"),
		"mode":                   toPrecise,
		"indexerConfig":          toPrecise,
		"kvEventsConfig":         toPrecise,
		"tokenProcessorConfig":   toPrecise,
	},
	"disagg-profile-handler": {
		"threshold":        "has moved: list a prefix-based-pd-decider, whose nonCachedTokens counts tokens instead of characters, and name it in deciders.prefill",
		"hashBlockSize":    toProducer("blockSizeTokens, in tokens instead of characters"),
		"prefixPluginType": "was removed: leave it out; the decider names the producer in prefixMatchInfoProducerName",
		"prefixPluginName": "was removed: leave it out; the decider names the producer in prefixMatchInfoProducerName",
	},
	"prefix-based-pd-decider": {
		"threshold": "is now nonCachedTokens, in tokens instead of characters",
	},
}

const toPrecise = "has moved to the plugin precise-prefix-cache-producer; list that plugin, and name it in prefixMatchInfoProducerName"

// toProducer says that a parameter is now one of the producer.
func toProducer(name string) string {
	return "has moved to the plugin approx-prefix-cache-producer (" + name + "); list that plugin to set it"
}
