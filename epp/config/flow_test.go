package config_test

import (
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/flow"
)

const flowHeader = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"

// TestQueues holds what becomes of flowControl.
func TestQueues(t *testing.T) {
	usual := flow.Band{Limits: flow.Limits{Requests: 5000, Bytes: 1e9}}
	attained := flow.Band{Limits: usual.Limits, Fairness: flow.LeastAttained, Attained: flow.Attained{HalfLife: time.Minute, Keep: time.Hour}}
	for _, tc := range []struct {
		name, file string
		want       *flow.Settings // nil: requests do not wait
	}{
		{"off", "flowControl: {maxRequests: 7}", nil},
		{"off again", "featureGates: [flowControl, flowControl=false]", nil},
		{"defaults", "featureGates: [flowControl]", &flow.Settings{TTL: time.Minute, EmptyTTL: time.Minute, Other: usual, Negative: usual}},
		{"limits and times", "featureGates: [flowControl=true]\nflowControl: {maxRequests: 1k, maxBytes: 1.5Gi, defaultRequestTTL: 5s}",
			&flow.Settings{All: flow.Limits{Requests: 1000, Bytes: 3 << 29}, TTL: 5 * time.Second, EmptyTTL: 5 * time.Second, Other: usual, Negative: usual}},
		{"limits of a flow", "featureGates: [flowControl]\nflowControl: {maxFlowRequests: 20, maxFlowBytes: 1Mi}", &flow.Settings{
			Flow: flow.Limits{Requests: 20, Bytes: 1 << 20}, TTL: time.Minute, EmptyTTL: time.Minute, Other: usual, Negative: usual}},
		{"eviction", "featureGates: [flowControl]\nflowControl: {enableEviction: true}",
			&flow.Settings{TTL: time.Minute, EmptyTTL: time.Minute, Eviction: flow.Eviction{On: true}, Other: usual, Negative: usual}},
		{"bands", `
featureGates: [flowControl]
plugins: [{type: static-usage-limit-policy, name: limit, parameters: {threshold: 0.8}}]
flowControl:
  noEndpointRequestTTL: 1h
  usageLimitPolicyPluginRef: limit
  priorityBands: [{priority: 9, maxRequests: 3, fairnessPolicyRef: served-tokens-fairness-policy}]
  defaultPriorityBand: {maxBytes: "0", orderingPolicyRef: slo-deadline-ordering-policy}
  defaultNegativePriorityBand: {maxBytes: 1500m, fairnessPolicyRef: round-robin-fairness-policy, orderingPolicyRef: edf-ordering-policy}`,
			&flow.Settings{TTL: time.Minute, EmptyTTL: time.Hour, Usage: flow.Usage{Ceiling: 0.8},
				Bands:    []flow.Band{{Priority: 9, Limits: flow.Limits{Requests: 3, Bytes: 1e9}, Fairness: flow.ServedTokens}},
				Other:    flow.Band{Limits: flow.Limits{Requests: 5000}, Ordering: flow.SLODeadline},
				Negative: flow.Band{Limits: flow.Limits{Requests: 5000, Bytes: 2}, Fairness: flow.RoundRobin, Ordering: flow.EDF}}},
		{"ceilings by priority", "featureGates: [flowControl]\nplugins: [{type: priority-holdback-policy, name: h, parameters: {minCeiling: 0.25, domain: value}}]\n" +
			"flowControl: {usageLimitPolicyPluginRef: h}", &flow.Settings{TTL: time.Minute, EmptyTTL: time.Minute,
			Usage: flow.Usage{Policy: flow.Holdback, Ceiling: 1, Least: 0.25, ByValue: true}, Other: usual, Negative: usual}},
		{"soft ceilings", "featureGates: [flowControl]\nflowControl: {usageLimitPolicyPluginRef: soft-reflective-ceiling-policy}",
			&flow.Settings{TTL: time.Minute, EmptyTTL: time.Minute, Usage: flow.Usage{Policy: flow.SoftReflective}, Other: usual, Negative: usual}},
		{"other bands stand in for negative ones", "featureGates: [flowControl]\nflowControl: {defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}}",
			&flow.Settings{TTL: time.Minute, EmptyTTL: time.Minute, Other: attained, Negative: attained}},
		{"strategies", "featureGates: [flowControl]\nplugins: [{type: program-aware-fairness, name: d, parameters: {strategy: drr}},\n" +
			"  {type: program-aware-fairness, name: r, parameters: {strategy: rr}}]\n" +
			"flowControl: {defaultPriorityBand: {fairnessPolicyRef: d}, defaultNegativePriorityBand: {fairnessPolicyRef: r}}",
			&flow.Settings{TTL: time.Minute, EmptyTTL: time.Minute, Other: flow.Band{Limits: usual.Limits, Fairness: flow.ServedTokens},
				Negative: flow.Band{Limits: usual.Limits, Fairness: flow.RoundRobin}}},
		{"the deepest session first", "featureGates: [flowControl]\nplugins: [{type: program-aware-fairness, name: d, parameters: {strategy: turn-priority}},\n" +
			"  {type: program-aware-fairness, name: e, parameters: {strategy: turn-priority, turnPriorityTimeWeight: 2, " +
			"turnPriorityInactivitySeconds: 0, evictionTtlSeconds: 60}}]\n" +
			"flowControl: {defaultPriorityBand: {fairnessPolicyRef: d}, defaultNegativePriorityBand: {fairnessPolicyRef: e}}",
			&flow.Settings{TTL: time.Minute, EmptyTTL: time.Minute,
				Other: flow.Band{Limits: usual.Limits, Fairness: flow.DeepestFirst,
					Depth: flow.Depth{PerSecond: 0.05, Idle: 2 * time.Minute, Keep: time.Hour}},
				Negative: flow.Band{Limits: usual.Limits, Fairness: flow.DeepestFirst, Depth: flow.Depth{PerSecond: 2, Keep: time.Minute}}}},
		{"half-lives", "featureGates: [flowControl]\nplugins: [{type: program-aware-fairness, name: n, parameters: {lasHalfLifeSeconds: 30, lasDecayFactor: 0.9}},\n" +
			"  {type: program-aware-fairness, name: o, parameters: {serviceHalfLifeSeconds: 20}},\n" +
			"  {type: program-aware-fairness, name: f, parameters: {lasWeightService: 0.8, lasWeightHeadWait: 0.2, lasDecayFactor: 0.5}}]\n" +
			"flowControl: {priorityBands: [{priority: 1, fairnessPolicyRef: n}], defaultPriorityBand: {fairnessPolicyRef: o}, " +
			"defaultNegativePriorityBand: {fairnessPolicyRef: f}}",
			&flow.Settings{TTL: time.Minute, EmptyTTL: time.Minute,
				Bands:    []flow.Band{{Priority: 1, Limits: usual.Limits, Fairness: flow.LeastAttained, Attained: flow.Attained{HalfLife: 30 * time.Second, Keep: time.Hour}}},
				Other:    flow.Band{Limits: usual.Limits, Fairness: flow.LeastAttained, Attained: flow.Attained{HalfLife: 20 * time.Second, Keep: time.Hour}},
				Negative: flow.Band{Limits: usual.Limits, Fairness: flow.LeastAttained, Attained: flow.Attained{HalfLife: time.Second, Keep: time.Hour}}}},
		{"times of bands", "featureGates: [flowControl]\nflowControl: {priorityBands: [{priority: -1, defaultRequestTTL: 2h30m}], " +
			"defaultPriorityBand: {defaultRequestTTL: 0s}, defaultNegativePriorityBand: {}}",
			&flow.Settings{TTL: time.Minute, EmptyTTL: time.Minute, Bands: []flow.Band{{Priority: -1, Limits: usual.Limits, TTL: new(150 * time.Minute)}},
				Other: flow.Band{Limits: usual.Limits, TTL: new(time.Duration(0))}, Negative: usual}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := parse(t, []byte(flowHeader+tc.file))
			for _, c := range []*config.Config{c, parse(t, c.YAML())} { // the effective configuration means the same
				b, err := c.Build(slog.New(slog.DiscardHandler), &epp.Keep{})
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				if (b.Queues == nil) != (tc.want == nil) || tc.want != nil && !reflect.DeepEqual(*b.Queues, *tc.want) {
					t.Errorf("got %+v, want %+v", b.Queues, tc.want)
				}
			}
		})
	}
}
