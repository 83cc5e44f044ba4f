package replay

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// batchSlots is how many requests one engine of TestBatchBesideOnline runs at once.
const batchSlots = 64

// withSlots is a configuration whose requests wait in the picker while all engines run as many as they can.
func withSlots(plugins, flowControl string) string {
	return fmt.Sprintf(`
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: disagg-profile-handler
  parameters: {deciders: {prefill: prefix-based-pd-decider}}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 100}}
- type: approx-prefix-cache-producer
- type: inflight-load-producer
- type: decode-filter
- type: prefill-filter
- type: active-request-scorer
- type: token-load-scorer
- type: max-score-picker
- {type: concurrency-detector, parameters: {maxConcurrency: %d}}
%s
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}, {pluginRef: max-score-picker}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: token-load-scorer}, {pluginRef: max-score-picker}]
flowControl:
  defaultRequestTTL: 0s
  defaultPriorityBand: {maxRequests: 100000}
  saturationDetector: {pluginRef: concurrency-detector}
%s`, batchSlots, plugins, flowControl)
}

// besides are the online requests of a trace, and lines of a batch that all wait from the beginning.
func besides(rate float64, length time.Duration, lines int) *Trace {
	rng := random(7)
	trace := &Trace{Classes: []Class{{Name: "online"}, {Name: "batch", Priority: -10, Flow: "batch"}}}
	for range lines {
		trace.Requests = append(trace.Requests, Request{Input: 250 + rng.IntN(500), Output: 50 + rng.IntN(300), Class: 1})
	}
	for at := rng.ExpFloat64() / rate; rate > 0 && at < length.Seconds(); at += rng.ExpFloat64() / rate {
		trace.Requests = append(trace.Requests, Request{Due: time.Duration(at * float64(time.Second)), Input: 2000, Output: 200})
	}
	return trace
}

// TestBatchBesideOnline: with a tenth of the slots kept for online requests, and lines that end for those that find none, a batch uses what online
// requests leave, and these wait little for it. Without, it takes the slots that they need.
func TestBatchBesideOnline(t *testing.T) {
	const (
		capacity = 25.0 // online requests a second that the pool can do without a batch
		length   = 100 * time.Second
		settled  = 20 * time.Second // after the lines of the beginning, which all begin at once
		lines    = 3000             // more than end
	)
	plain := withSlots("", "")
	kept := withSlots("- {type: priority-holdback-policy, parameters: {minCeiling: 0.9}}",
		"  usageLimitPolicyPluginRef: priority-holdback-policy\n  enableEviction: true")
	measured := func(text string, rate float64, lines int) (ttft time.Duration, answered float64) {
		o := configured(t, text)
		o.Engine.Sequences = batchSlots
		if err := o.Pool.UnmarshalText([]byte("4P+2D")); err != nil {
			t.Fatal(err)
		}
		var times []time.Duration
		for _, r := range replayed(t, o, besides(rate, length, lines)).Records {
			switch ended := r.Due + r.E2E; {
			case r.Refused:
			case r.Class == 1 && ended > settled && ended < length:
				answered++
			case r.Class == 0 && r.Due > settled:
				times = append(times, r.TTFT)
			}
		}
		slices.Sort(times)
		if len(times) > 0 {
			ttft = times[len(times)*99/100]
		}
		return ttft, answered / (length - settled).Seconds()
	}
	loads := []float64{0.2, 0.6}
	if testing.Short() {
		loads = loads[1:]
	}
	_, alone := measured(plain, 0, lines)
	for _, load := range loads {
		without, _ := measured(plain, load*capacity, 0)
		for _, tc := range []struct {
			name, config string
			slower       [2]float64 // least and most
		}{
			{"lines take all slots", plain, [2]float64{1.4, 10}},
			{"slots are kept, and taken back", kept, [2]float64{0.9, 1.5}},
		} {
			ttft, rate := measured(tc.config, load*capacity, lines)
			slower, used := float64(ttft)/float64(without), rate/(alone*(1-load))
			t.Logf("%.0f %% online, %s: TTFT p99 %v, %.2f times that without a batch; %.1f lines/s, %.0f %% of what is left", 100*load, tc.name, ttft, slower, rate, 100*used)
			if slower < tc.slower[0] || slower > tc.slower[1] || used < 0.9 {
				t.Errorf("want a TTFT of %v times, and 90 %% used", tc.slower)
			}
		}
	}
}
