package plugin

import (
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp"
)

// TestReferences checks that what a plugin names must be there, and be what it is taken for.
func TestReferences(t *testing.T) {
	for _, test := range []struct{ typ, field, right, kind string }{
		{"active-request-scorer", "inFlightLoadProducerName", "charger", "Charger"},
		{"utilization-filter", "inFlightLoadProducerName", "charger", "Charger"},
		{"no-hit-lru-scorer", "prefixMatchInfoProducerName", "matcher", "Matcher"},
		{"session-affinity-filter", "sessionIDProducerName", "sessions", "Sessions"},
		{"session-affinity-scorer", "sessionIDProducerName", "sessions", "Sessions"},
		{"topology-affinity-filter", "topologyProducerName", "topology-extractor", "Topology"},
		{"topology-affinity-scorer", "topologyProducerName", "topology-extractor", "Topology"},
		{"token-load-scorer", "inFlightLoadProducerName", "charger", "Charger"},
		{"prefix-cache-scorer", "prefixMatchInfoProducerName", "matcher", "Matcher"},
		{"prefix-cache-affinity-filter", "prefixMatchInfoProducerName", "matcher", "Matcher"},
		{"prefix-cache-affinity-filter", "inFlightLoadProducerName", "charger", "Charger"},
		{"prefix-based-pd-decider", "prefixMatchInfoProducerName", "matcher", "Matcher"},
		{"inflight-load-producer", "prefixMatchInfoProducerName", "matcher", "Matcher"},
		{"disagg-profile-handler", "deciders.prefill", "always", "Decider"},
		{"disagg-profile-handler", "prefillDeciderPluginName", "always", "Decider"},
		{"disagg-profile-handler", "deciderPluginName", "always", "Decider"},
		{"pd-profile-handler", "deciderPluginName", "always", "Decider"},
	} {
		t.Run(test.typ+"/"+test.field, func(t *testing.T) {
			for name, want := range map[string]string{
				test.right: "",
				"picker":   test.field + `: plugin "picker" is no ` + test.kind,
				"unknown":  test.field + `: no plugin is named "unknown"`,
			} {
				parameters := test.field + ": " + name
				if outer, inner, ok := strings.Cut(test.field, "."); ok {
					parameters = outer + ": {" + inner + ": " + name + "}"
				}
				p, err := decode(t, test.typ, parameters)
				if err != nil {
					t.Fatal(err)
				}
				if refs := p.(epp.Referrer).References(); len(refs) != 1 || refs[test.field] != name {
					t.Errorf("references %v", refs)
				}
				if _, err := p.Build(builder()); err != nil && err.Error() != want || err == nil && want != "" {
					t.Errorf("%s: error %v, want %q", name, err, want)
				}
			}
		})
	}
}

// TestProblems lists what each plugin refuses.
func TestProblems(t *testing.T) {
	for _, test := range []struct{ typ, parameters, want string }{
		{"prefix-cache-scorer", "matchLengthWeight: .nan", "matchLengthWeight: must be from 0 to 1, got NaN"},
		{"prefix-cache-scorer", "{matchLengthScaleTokens: 0, matchLengthWeight: 0.5}", "matchLengthScaleTokens: must be at least 1, got 0"},
		{"prefix-cache-affinity-filter", "affinityThreshold: -0.1", "affinityThreshold: must be from 0 to 1, got -0.1"},
		{"prefix-cache-affinity-filter", "explorationProbability: 2", "explorationProbability: must be from 0 to 1, got 2"},
		{"prefix-cache-affinity-filter", "maxTTFTPenaltyMs: -1", "maxTTFTPenaltyMs: must not be negative, got -1"},
		{"prefix-cache-affinity-filter", "peakPrefillThroughput: 0", "peakPrefillThroughput: must be more than 0 tokens per second, got 0"},
		{"prefix-cache-affinity-filter", "{peakPrefillThroughput: 0, maxTTFTPenaltyMs: 0}", ""},
		{"prefix-cache-affinity-filter", "maxTokensInFlightPenalty: -1", "maxTokensInFlightPenalty: must not be negative, got -1"},
		{"program-aware-fairness", "{lasDecayFactor: 1.5, turnPriorityTimeWeight: -1}",
			"lasDecayFactor: must be above 0 and at most 1, got 1.5|turnPriorityTimeWeight: must not be negative, got -1"},
		{"program-aware-fairness", "lasHalfLifeSeconds: -1", "lasHalfLifeSeconds: must be above 0 and at most 31536000, got -1"},
		{"program-aware-fairness", "turnPriorityInactivitySeconds: -1", "turnPriorityInactivitySeconds: must be above 0 and at most 31536000, got -1"},
		{"prefix-cache-affinity-filter", "{ttftSource: latencyPredictor, peakPrefillThroughput: 0}", ""},
		{"prefix-cache-affinity-filter", "{ttftSource: latencyPredictor, maxTokensInFlightPenalty: 5}", "maxTokensInFlightPenalty: is in tokens: with ttftSource latencyPredictor use maxTTFTPenaltyMs"},
		{"prefix-cache-affinity-filter", "ttftSource: x", `ttftSource: must be prefillThroughput or latencyPredictor, got "x"`},
		{"slo-headroom-tier-filter", "epsilonExploreNeg: 2", "epsilonExploreNeg: must be from 0 to 1, got 2"},
		{"cheapest-variant-filter", "", ""},
		{"cheapest-variant-filter", "{costs: {a: 1}, costLabel: price}", "costLabel: cannot be combined with costs"},
		{"cheapest-variant-filter", "{costs: {a: -1}, variantLabel: ''}", "variantLabel: must not be empty|costs: a must cost a number that is not negative, got -1"},
		{"cheapest-variant-filter", "{costs: {a: 1}, ttftMs: 0, tpotMs: 4000000}", "ttftMs: must be more than 0 and at most an hour in milliseconds, got 0|tpotMs: must be more than 0 and at most an hour in milliseconds, got 4e+06"},
		{"cheapest-variant-filter", "{costs: {a: 1}, headroom: 1, quantile: 0.99}", "headroom: must be from 0 and below 1, got 1|quantile: must be 0.5 or 0.9, got 0.99"},
		{"cheapest-variant-filter", "{costs: {a: 1}, predictions: []}", "predictions: must not be empty"},
		{"cheapest-variant-filter", "{costs: {a: .inf}, predictions: [ttft, e2e]}", `costs: a must cost a number that is not negative, got +Inf|predictions[1]: must be ttft or tpot, got "e2e"`},
		{"cheapest-variant-filter", "costLabel: price", ""},
		{"replica-sizer", "{prefill: {maxReplicas: 0}, variants: [{variant: a, maxReplicas: 1, variantCost: 1}]}", ""},
		{"replica-sizer", "{variants: [{variant: a, maxReplicas: 1, variantCost: 1}, {variant: b, role: prefill, maxReplicas: 1, variantCost: 1}]}", ""},
		{"replica-sizer", "{variants: [{variant: a, maxReplicas: 1, variantCost: 1}], variantLabel: ''}", "variantLabel: must not be empty with variants"},
		{"replica-sizer", "{variants: [{variant: a, role: encode, maxReplicas: 1, variantCost: 1}, {variant: b, role: prefill, tpotMs: 20, maxReplicas: 1, variantCost: 1}]}",
			`variants[0].role: must be decode or prefill, got "encode"|variants[1].tpotMs: must not be set with the role prefill, whose replicas generate no further tokens; got 20`},
		{"replica-sizer", "{variants: [{variant: prefill, maxReplicas: 1, variantCost: 1}]}", `variants[0].variant: must be a name that no other variant has, got "prefill"`},
		{"replica-sizer", "{variants: [{variant: decode, role: prefill, maxReplicas: 1, variantCost: 1}]}", `variants[0].variant: must be a name that no other variant has, got "decode"`},
		{"replica-sizer", "{prefill: {maxReplicas: 0}, variants: [{variant: prefill, maxReplicas: 1, variantCost: 1}]}", ""},
		{"replica-sizer", "{prefill: {maxReplicas: 0}, variants: [{variant: a, maxReplicas: 1, variantCost: 1}, {variant: a, minReplicas: 2, maxReplicas: 1}]}",
			`variants[1].variant: must be a name that no other variant has, got "a"|variants[1].minReplicas: must be from 0 to 1, got 2|variants[1].variantCost: must be more than 0 and at most 1e+09, got 0`},
		{"replica-sizer", "pattern: {days: weekend, timeZone: America/New_York}", ""},
		{"replica-sizer", "pattern: {days: sunday, timeZone: Atlantis, share: 1}", `pattern.days: must be alike, weekend or week, got "sunday"|` +
			`pattern.timeZone: must be the name of a time zone such as Europe/Berlin, got "Atlantis"|pattern.share: must be more than 0 and less than 1, got 1`},
		{"latency-scorer", "ttftWeight: -1", "ttftWeight: must be a number that is not negative, got -1|ttftWeight: or tpotWeight must be more than 0"},
		{"latency-scorer", "{ttftWeight: 0, tpotWeight: 0}", "ttftWeight: or tpotWeight must be more than 0"},
		{"latency-scorer", "headroomSelectionStrategy: composite-only", `headroomSelectionStrategy: must be least or most, got "composite-only"`},
		{"predicted-latency-producer", "{quantile: 0.99, sloBufferFactor: 0}", "quantile: must be 0.5 or 0.9, got 0.99|sloBufferFactor: must be more than 0 and at most 10, got 0"},
		{"prefix-based-pd-decider", "nonCachedTokens: -1", "nonCachedTokens: must not be negative, got -1"},
		{"prefix-based-pd-decider", "promptTokens: -1", "promptTokens: must not be negative, got -1"},
		{"inflight-load-producer", "outputRatio: -1", "outputRatio: must be from 0 to 1000, got -1"},
		{"inflight-load-producer", "maxEstimatedOutputTokens: -1", "maxEstimatedOutputTokens: must not be negative, got -1"},
		{"token-producer", "estimate: {}", ""},
		{"replica-sizer", "prefill: {maxReplicas: 0}", ""},
		{"replica-sizer", "{ttftMs: 0, tpotMs: .nan, attainment: 1}", "ttftMs: must be more than 0 and at most 3.6e+06, got 0|" +
			"tpotMs: must be more than 0 and at most 3.6e+06, got NaN|attainment: must be more than 0 and less than 1, got 1"},
		{"replica-sizer", "{decode: {maxReplicas: 0}, prefill: {minReplicas: 5, readySeconds: -1}}", "prefill.minReplicas: must be from 0 to maxReplicas, got 5|" +
			"prefill.readySeconds: must be more than 0 and at most 3600, got -1|decode.maxReplicas: must be from 1 to 1024, got 0"},
		{"replica-sizer", "decode: {variant: prefill}", `decode.variant: must differ from that of prefill, or their metrics cannot be told apart; got "prefill"`},
		{"role-turner", "{ttftMs: 3000, tpotMs: 40, attainment: 0.95, gain: 0.2}", ""},
		{"role-turner", "{ttftMs: 0, tpotMs: -1, attainment: .nan, gain: 0}", "ttftMs: must be more than 0 and at most 3.6e+06, got 0|" +
			"tpotMs: must be more than 0 and at most 3.6e+06, got -1|gain: must be more than 0 and at most 10, got 0|attainment: must be more than 0 and less than 1, got NaN"},

		{"label-selector-filter", "matchLabels: {'': x}", "matchLabels: a label has no name"},
		{"by-label-selector", "matchExpressions: [{key: a, operator: In}]", "matchExpressions[0].values: must not be empty with In"},
		{"label-selector-filter", "matchExpressions: [{key: a, operator: Exists, values: [x]}]", "matchExpressions[0].values: must be empty with Exists"},
		{"label-selector-filter", "matchExpressions: [{key: a, operator: Exists}, {operator: exists}]", "matchExpressions[1].key: must not be empty|" +
			`matchExpressions[1].operator: must be In, NotIn, Exists or DoesNotExist, got "exists"`},
		{"by-label", "{label: a, validValues: [x], matchLabels: {a: x}}", "label: label, validValues and allowsNoLabel cannot be combined with matchLabels and matchExpressions"},
		{"by-label", "validValues: [x]", "label: must not be empty if validValues or allowsNoLabel is set"},
		{"by-label", "label: a", "validValues: must not be empty without allowsNoLabel: no endpoint would be left"},

		{"disagg-profile-handler", "stageOrder: both", `stageOrder: must be decode-first or prefill-first, got "both"`},
		{"utilization-detector", "queueDepthThreshold: 0", "queueDepthThreshold: must be at least 1, got 0"},
		{"utilization-detector", "queueDepthPerRunning: -1", "queueDepthPerRunning: must be from 0 to 1000, got -1"},
		{"utilization-detector", "kvCacheUtilThreshold: 1.1", "kvCacheUtilThreshold: must be above 0 and at most 1, got 1.1"},
		{"utilization-detector", "kvCacheUtilThreshold: .nan", "kvCacheUtilThreshold: must be above 0 and at most 1, got NaN"},
		{"utilization-detector", "metricsStalenessThreshold: 0s", "metricsStalenessThreshold: must be more than 0, got 0s"},
		{"utilization-detector", "headroom: -0.1", "headroom: must not be negative, got -0.1"},
		{"utilization-detector", "headroom: .inf", "headroom: must be a number, got +Inf"},
		{"utilization-detector", "onAllFull: ''", `onAllFull: must be keep or refuse, got ""`},
		{"concurrency-detector", "concurrencyMode: both", `concurrencyMode: must be one of requests, tokens, hybrid, got "both"`},
		{"concurrency-detector", "maxConcurrency: 0", "maxConcurrency: must be at least 1, got 0"},
		{"concurrency-detector", "maxTokenConcurrency: -1", "maxTokenConcurrency: must be at least 1, got -1"},
		{"concurrency-detector", "headroom: .nan", "headroom: must not be negative, got NaN"},
		{"disagg-profile-handler", "onNoPrefill: ''", `onNoPrefill: must be local, budget or refuse, got ""`},
		{"disagg-profile-handler", "{fallbackRatio: 1.1, fallbackBurst: -1}", "fallbackRatio: must be from 0 to 1, got 1.1|fallbackBurst: must not be negative, got -1"},
		{"disagg-profile-handler", "fallbackRatio: .nan", "fallbackRatio: must be from 0 to 1, got NaN"},
		{"disagg-profile-handler", "prefillCandidates: 17", "prefillCandidates: must be from 1 to 16, got 17"},
		{"disagg-profile-handler", "{stageOrder: prefill-first, deciders: {prefill: x}}", "deciders.prefill: must be empty with stageOrder prefill-first, which prefills every request remotely"},
		{"disagg-profile-handler", "{deciders: {encode: d}, encodeProfile: p, encodeDeciderPluginName: d}", "encodeProfile: the older form must not be mixed with profiles and deciders; write it there|" +
			"encodeDeciderPluginName: the older form must not be mixed with profiles and deciders; write it there"},
		{"mm-embeddings-cache-producer", "cacheSizeInMBPerServer: 2097153", "cacheSizeInMBPerServer: must be at most 2097152, got 2097153"},
		{"disagg-profile-handler", "{profiles: {decode: d}, prefillProfile: p}", "prefillProfile: the older form must not be mixed with profiles and deciders; write it there"},
		{"file-discovery", "", "path: must name the endpoints file"},
		{"metrics-data-source", "scheme: ftp", `scheme: must be http or https, got "ftp"`},
		{"burst-prefix-cache-producer", "{windowDurationMs: 0, maxPerReplica: 0, blockSizeTokens: 0, minColocateBlocks: -1, balanceBy: load}",
			"windowDurationMs: must be at least 1, got 0|blockSizeTokens: must be at least 1, got 0|minColocateBlocks: must not be negative, got -1|" +
				`maxPerReplica: must be -1, for no limit, or at least 1, got 0|balanceBy: must be requests or tokens, got "load"`},
		{"slo-headroom-reporter", "", ""},
		{"slo-headroom-reporter", "{ttftMs: 500, tpotMs: 40, attainment: 0.95, windowSeconds: 30}", ""},
		{"slo-headroom-reporter", "ttftMs: -1", "ttftMs: must be from 0 to 3600000, got -1"},
		{"slo-headroom-reporter", "tpotMs: 4e6", "tpotMs: must be from 0 to 3600000, got 4e+06"},
		{"slo-headroom-reporter", "attainment: 1", "attainment: must be more than 0 and less than 1, got 1"},
		{"slo-headroom-reporter", "windowSeconds: 0.5", "windowSeconds: must be from 1 to 3600, got 0.5"},
		{"request-attribute-reporter", "", "attributes: must have one entry, got 0"},
		{"request-attribute-reporter", "attributes: [{}, {}]", "attributes: must have one entry, got 2"},
		{"request-attribute-reporter", "attributes: [{condition: x}]", "attributes[0].key.name: must not be empty|attributes[0].expression: must not be empty"},
		{"probabilistic-admitter", "{queueDepthThreshold: 0, kvCacheUtilThreshold: 0, power: .nan, k: .inf}", "queueDepthThreshold: must be at least 1, got 0|" +
			"kvCacheUtilThreshold: must be a number above 0, got 0|power: must be a number above 0, got NaN|k: must be a number above 0, got +Inf"},
		{"utilization-filter", "conditions: []", "conditions: must not be empty"},
		{"utilization-filter", "conditions: [{metric: queue, maxValue: -1}]", "conditions[0].metric: must be one of active-requests, kv-cache-utilization, " +
			`running-requests, waiting-queue, got "queue"|conditions[0].maxValue: must not be negative, got -1`},
		{"disaggregatedset-rollout-screener", "", `scope.labelSelector: must not be empty|` +
			`revisionGating.mode: must be one of max-role, sum, disabled, got ""`},
		{"disaggregatedset-rollout-screener", "{scope: {labelSelector: '='}, headerSelectors: [{name: a, mode: x}], revisionGating: {mode: sum}}",
			`scope.labelSelector: "=" is no label selector: at "=" want a condition like a=b, a!=b, a, !a, a in (b, c) or a notin (b)|` +
				`headerSelectors[0]: must have a headerName and a labelKey|headerSelectors[0].mode: must be strict or prefer, got "x"|` +
				`revisionGating.requireRoles.values: must not be empty with mode sum`},
		{"endpoint-attribute-filter", "{producer: mine, onMissing: Drop}", "attribute: must not be empty|" +
			`producer: must be core-metrics-extractor or dcgm-extractor, got "mine"|onMissing: must be Pass or Fail, got "Drop"|` +
			`algorithm.type: must be one of threshold, range, topK, percentile, got ""`},
		{"endpoint-attribute-filter", "{attribute: a, producer: dcgm-extractor, algorithm: {type: topK}}",
			`attribute: dcgm-extractor has only the attribute GPUUtilization, got "a"|algorithm.topK.k: must be at least 1, got 0`},
		{"endpoint-attribute-filter", "{attribute: a, algorithm: {type: percentile, percentile: {percentile: 101}}}",
			"algorithm.percentile.percentile: must be from 0 to 100, got 101"},
		{"endpoint-attribute-filter", "{attribute: a, algorithm: {type: range, range: {min: 2, max: 1}}}", "algorithm.range: min must be at most max, got 2 and 1"},
		{"endpoint-attribute-scorer", "{attributeKey: a, algorithm: {type: linear, normalization: {fixedRange: {min: 1, max: 1}}}}",
			`algorithm.type: must be linear_lower_is_better or linear_higher_is_better, got "linear"|` +
				"algorithm.normalization.fixedRange: min must be less than max, got 1 and 1"},
		{"session-affinity-filter", "strategy: cookie", `strategy: must be encoded_endpoint_header or session_id, got "cookie"`},
		{"session-affinity-scorer", "sessionIdConfig: {sources: [{header: a, attribute: b}], evictionTtlSeconds: 0}",
			"sessionIdConfig.sources[0]: must have either header or attribute|" +
				"sessionIdConfig.evictionTtlSeconds: must be more than 0 and less than 1e9, got 0"},
		{"session-id-producer", "{headerName: a, cookieName: b, lruSize: 0, ttl: 0s}",
			"cookieName: cannot be combined with headerName|lruSize: must be at least 1, got 0|ttl: must be more than 0, got 0s"},
		{"header-label-affinity-scorer", "", "headerName: must not be empty|labelKey: must not be empty"},
		{"agent-identity", "additionalSessionHeaders: ['']", "additionalSessionHeaders[0]: must not be empty"},
		{"topology-affinity-filter", "minAffinity: node", `minAffinity: must be one of host, rack, zone, region, got "node"`},
		{"context-length-aware", "label: ''", "label: must not be empty"},
		{"pd-profile-handler", "threshold: -1", "threshold: must not be negative, got -1"},
		{"pd-profile-handler", "{threshold: 5, deciderPluginName: x}", "threshold: cannot be combined with deciderPluginName"},
		{"pd-profile-handler", "hashBlockSize: -5", "hashBlockSize: must not be negative, got -5"},
		{"data-parallel-profile-handler", "primaryPort: 0", "primaryPort: must be from 1 to 65535, got 0"},
		{"data-parallel-profile-handler", "primaryPort: 65536", "primaryPort: must be from 1 to 65535, got 65536"},
		{"pd-profile-handler", "primaryPort: -1", "primaryPort: must be from 0 to 65535, got -1"},
	} {
		p, err := decode(t, test.typ, test.parameters)
		if err != nil {
			t.Errorf("%s {%s}: %v", test.typ, test.parameters, err)
			continue
		}
		if found := strings.Join(problems(p), "|"); found != test.want {
			t.Errorf("%s {%s}:\n got %s\nwant %s", test.typ, test.parameters, found, test.want)
		}
	}
}

// TestCorrections lists the values that are replaced by defaults, because llm-d does that.
func TestCorrections(t *testing.T) {
	for _, test := range []struct{ typ, field, value, fallback string }{
		{"active-request-scorer", "idleThreshold", "-1", "0"},
		{"active-request-scorer", "maxBusyScore", "1.5", "1"},
		{"active-request-scorer", "maxBusyScore", "-0.5", "1"},
		{"token-load-scorer", "queueThresholdTokens", "0", "4194304"},
		{"token-load-scorer", "queueThresholdTokens", "-8", "4194304"},
		{"load-aware-scorer", "threshold", "0", "128"},
		{"no-hit-lru-scorer", "lruSize", "0", "1024"},
		{"max-score-picker", "maxNumOfEndpoints", "0", "1"},
		{"random-picker", "maxNumOfEndpoints", "-1", "1"},
		{"weighted-random-picker", "maxNumOfEndpoints", "0", "1"},
		{"mm-embeddings-cache-producer", "cacheSizeInMBPerServer", "0", "4096"},
	} {
		p, err := decode(t, test.typ, test.field+": "+test.value)
		if err != nil {
			t.Fatal(err)
		}
		var warned []string
		p.(epp.Corrector).Correct(func(field, format string, args ...any) {
			warned = append(warned, field+": "+fmt.Sprintf(format, args...))
		})
		want := fmt.Sprintf("%s: %s is not possible; as in llm-d, the default %s counts", test.field, test.value, test.fallback)
		if len(warned) != 1 || warned[0] != want {
			t.Errorf("%s: warned %q, want %q", test.typ, warned, want)
		}
		written, err := yaml.Marshal(p)
		if err != nil || !strings.Contains(string(written), test.field+": "+test.fallback+"\n") {
			t.Errorf("%s {%s: %s} became\n%s", test.typ, test.field, test.value, written)
		}
		if found := problems(p); found != nil {
			t.Errorf("%s: %q", test.typ, found)
		}
	}
}

// TestWarnings: what has no effect is told.
func TestWarnings(t *testing.T) {
	for _, test := range []struct{ typ, parameters, want string }{
		{"disagg-profile-handler", "", ""},
		{"disagg-profile-handler", "profiles: {prefill: p}", ""},
		{"disagg-profile-handler", "deciders: {encode: d}", ""},
		{"disagg-profile-handler", "encodeDeciderPluginName: d", ""},
		{"disagg-profile-handler", "profiles: {encode: e}", "profiles.encode: has no effect without deciders.encode"},
		{"disagg-profile-handler", "encodeProfile: e", "encodeProfile: has no effect without encodeDeciderPluginName"},
		{"disagg-profile-handler", "{profiles: {encode: e}, deciders: {encode: d}}", ""},
		{"token-producer", "estimate: {}", ""},
		{"token-producer", "estimate: {image: {width: 1}}", "estimate: has no effect: four bytes of text are taken for a token, and images are not counted"},
		{"token-producer", "{modelName: m, vllm: {url: x}}", ""},
		{"token-producer", "vllm: {mmTimeout: 30s}", "vllm.mmTimeout: has no effect: the service is not asked for requests with images"},
		{"tokenizer", "udsTokenizerConfig: {}", "udsTokenizerConfig: has no effect: name a vLLM server in vllm.url; until then four bytes of text are taken for a token"},
	} {
		p, err := decode(t, test.typ, test.parameters)
		if err != nil {
			t.Fatal(err)
		}
		var warned []string
		p.(epp.Corrector).Correct(func(field, format string, args ...any) {
			warned = append(warned, field+": "+fmt.Sprintf(format, args...))
		})
		if got := strings.Join(warned, "|"); got != test.want {
			t.Errorf("%s {%s} warns %q, want %q", test.typ, test.parameters, got, test.want)
		}
	}
}

// TestGuide builds the plugins of llm-d's guide for P/D serving, and of its sample configurations.
func TestGuide(t *testing.T) {
	for _, p := range []struct{ typ, parameters string }{
		{"always-disagg-pd-decider", ""},
		{"disagg-profile-handler", "deciders: {prefill: always}"},
		{"prefill-filter", ""},
		{"decode-filter", ""},
		{"approx-prefix-cache-producer", "maxPrefixTokensToMatch: 131072"},
		{"inflight-load-producer", ""},
		{"prefix-cache-affinity-filter", "peakPrefillThroughput: 33821"},
		{"token-load-scorer", ""},
		{"active-request-scorer", ""},
		{"max-score-picker", ""},
		{"prefix-based-pd-decider", "nonCachedTokens: 16"},
		{"prefix-cache-scorer", ""},
		{"queue-scorer", ""},
		{"kv-cache-utilization-scorer", ""},
		{"token-producer", "estimate: {}"},
		{"pd-profile-handler", "{threshold: 0, hashBlockSize: 5}"},
		{"by-label", "{label: llm-d.ai/role, validValues: [decode, both], allowsNoLabel: true}"},
	} {
		build[any](t, p.typ, p.parameters)
	}
}
