package replay

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/pd"
)

// queueing is a configuration whose pool is full with one request for each endpoint.
const queueing = `
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: round-robin-fairness-policy}
- {type: queue-scorer}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultRequestTTL: 60s
  defaultPriorityBand: {maxRequests: 4, fairnessPolicyRef: round-robin-fairness-policy}
`

func configured(t testing.TB, text string) Options {
	t.Helper()
	c, err := config.Parse([]byte(text), plugin.Table)
	if err != nil {
		t.Fatal(err)
	}
	o := local(t)
	o.Config = c
	return o
}

// order returns the requests that were answered, from 1, in the order in which they left the queue.
func order(r *Result) (all []int) {
	for {
		next := -1
		for i := range r.Records {
			one := &r.Records[i]
			if one.Refused || one.Queued < 0 {
				continue
			}
			if next < 0 || one.Due+one.Queued < r.Records[next].Due+r.Records[next].Queued {
				next = i
			}
		}
		if next < 0 {
			return all
		}
		r.Records[next].Queued = -1
		all = append(all, next+1)
	}
}

// TestQueue: while the pool is full, the production queue decides who is next.
func TestQueue(t *testing.T) {
	classes := []Class{{Name: "usual"}, {Name: "urgent", Priority: 5}, {Name: "a", Flow: "a"}, {Name: "b", Flow: "b"}}
	requests := func(class ...int) *Trace {
		trace := &Trace{Classes: classes}
		for i, c := range class {
			trace.Requests = append(trace.Requests, Request{Due: time.Duration(i) * time.Millisecond, Input: 1000, Output: 50, Class: c})
		}
		return trace
	}
	for _, test := range []struct {
		name    string
		trace   *Trace
		want    []int
		refused map[pd.Reason]int
	}{
		{"in the order of arrival", requests(0, 0, 0, 0), []int{1, 2, 3, 4}, map[pd.Reason]int{}},
		{"a higher priority first", requests(0, 0, 0, 1), []int{1, 4, 2, 3}, map[pd.Reason]int{}},
		{"flows in turn", requests(2, 2, 2, 3), []int{1, 2, 4, 3}, map[pd.Reason]int{}},
		{"as many as may wait", requests(0, 0, 0, 0, 0, 0, 0), []int{1, 2, 3, 4, 5}, map[pd.Reason]int{pd.QueueFull: 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := configured(t, queueing)
			r, again := replayed(t, o, test.trace), replayed(t, o, test.trace)
			if !reflect.DeepEqual(r, again) {
				t.Error("two runs with the same seed differ")
			}
			for i := range r.Records {
				if one := &r.Records[i]; !one.Refused && one.TTFT <= one.Queued {
					t.Errorf("request %d: first token after %v, and in the queue for %v", i+1, one.TTFT, one.Queued)
				}
			}
			if got := r.Refusals(); !reflect.DeepEqual(got, test.refused) {
				t.Errorf("refused: %v, want %v", got, test.refused)
			}
			if got := order(again); !reflect.DeepEqual(got, test.want) {
				t.Errorf("order %v, want %v", got, test.want)
			}
		})
	}
}

// TestQueueTTL: a request is refused when its time to live ends, to the moment.
func TestQueueTTL(t *testing.T) {
	o := configured(t, strings.Replace(queueing, "60s", "2s", 1))
	r := replayed(t, o, &Trace{Requests: []Request{{Input: 1000, Output: 5000}, {Due: time.Second, Input: 1000, Output: 1}}})
	if one := r.Records[1]; !one.Refused || one.Reason != pd.QueueTimeout || one.Queued != 2*time.Second {
		t.Errorf("%+v, want that it was refused after 2s for %s", one, pd.QueueTimeout)
	}
	if s := r.Summary(SLO{}); s.Refused != 1 || s.Queued.P99 != 0 {
		t.Errorf("%+v, want one refusal, and no time in the queue of those that were answered", s)
	}
}

// TestQueueReadsPages: a detector that goes by metrics pages lets requests pass when a page shows capacity, not before.
func TestQueueReadsPages(t *testing.T) {
	o := configured(t, `
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: utilization-detector, parameters: {queueDepthThreshold: 1, kvCacheUtilThreshold: 0.5, metricsStalenessThreshold: 5s}}
- {type: queue-scorer}
flowControl: {saturationDetector: {pluginRef: utilization-detector}}
`)
	o.Engine.KVTokens, o.Scrape = 8000, 100*time.Millisecond
	r := replayed(t, o, &Trace{Requests: []Request{{Input: 6000, Output: 100}, {Due: time.Second, Input: 1000, Output: 1}}})
	first, second := r.Records[0], r.Records[1]
	if passed, ended := second.Due+second.Queued, first.E2E; passed <= ended || passed > ended+120*time.Millisecond {
		t.Errorf("the second request passed at %v, want within a page's interval after the first ended at %v", passed, ended)
	}
}

// TestBurst: a preparer has equal prompts of a burst wait until the first of them has been picked for, at most for its window, and places
// them together.
func TestBurst(t *testing.T) {
	text := `
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
PLUGINS
- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 50}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}}
- {type: max-score-picker}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: max-score-picker}]}
`
	trace := &Trace{BlockTokens: 64, Requests: []Request{{Input: 64, Output: 3000}}}
	for i := range 8 {
		trace.Requests = append(trace.Requests, Request{Due: time.Second + time.Duration(i)*time.Millisecond, Input: 640, Output: 20, Streams: []Stream{{ID: 7}}})
	}
	o := configured(t, strings.Replace(text, "PLUGINS", "plugins:", 1))
	o.Pool = Pool{Both: 4}
	r := replayed(t, o, trace)
	for i := 2; i < len(r.Records); i++ {
		if r.Records[i].Decode != r.Records[1].Decode {
			t.Errorf("request %d went to %s, and the first with its prompt to %s", i+1, r.Records[i].Decode, r.Records[1].Decode)
		}
	}

	// While the first of them is in the queue, the others wait for it, but no longer than the window.
	o = configured(t, strings.Replace(text, "PLUGINS", `featureGates: [flowControl]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}`, 1))
	r = replayed(t, o, trace)
	if n := len(r.Refusals()); n > 0 {
		t.Errorf("refused: %v", r.Refusals())
	}
	if got := order(r); !reflect.DeepEqual(got, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("order %v", got)
	}
}
