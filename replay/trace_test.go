package replay

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
)

// local is a pool in which no prompt is computed remotely.
func local(t testing.TB) Options { return options(t, 1_000_000, "1B") }

// TestSessions: a turn arrives a think time after the answer before it, however late that was.
func TestSessions(t *testing.T) {
	think := 7 * time.Second
	trace := &Trace{BlockTokens: 16, Requests: []Request{
		{Input: 1000, Output: 50, Streams: []Stream{{ID: 1}}},
		{Due: think, After: 1, Input: 1150, Output: 50, Streams: []Stream{{ID: 1}}},
		{Due: think, After: 2, Input: 1300, Output: 50, Streams: []Stream{{ID: 1}}},
		{Due: time.Second, Input: 1000, Output: 10, Streams: []Stream{{ID: 2}}},
	}}
	r := replayed(t, local(t), trace).Records
	for turn := 1; turn < 3; turn++ {
		if want := r[turn-1].Due + r[turn-1].E2E + think; r[turn].Due != want {
			t.Errorf("turn %d arrived at %v, want %v", turn+1, r[turn].Due, want)
		}
	}
	if r[3].Due != time.Second {
		t.Errorf("another session began at %v, want 1s", r[3].Due)
	}
	// The last token of an answer is never computed, and blocks have 16 tokens.
	for turn, want := range []int{0, 1040, 1184} {
		if r[turn].Cached != want {
			t.Errorf("turn %d: %d tokens were cached, want %d, of the prompt and the answer before", turn+1, r[turn].Cached, want)
		}
	}
}

// TestConcurrency: so many sessions run at a time, whatever their arrivals.
func TestConcurrency(t *testing.T) {
	trace := &Trace{Concurrency: 3}
	for i := range 12 {
		trace.Requests = append(trace.Requests, Request{Due: time.Duration(i) * time.Hour, Input: 500 + 300*i, Output: 20})
	}
	trace.Requests = append(trace.Requests, Request{Due: time.Second, After: 12, Input: 100, Output: 5})
	r := replayed(t, local(t), trace).Records
	for i := range r {
		running := 0
		for j := range 12 {
			if r[j].Due <= r[i].Due && r[i].Due < r[j].Due+r[j].E2E {
				running++
			}
		}
		if i < 10 && running != 3 {
			t.Errorf("when request %d arrived, %d ran, want 3", i+1, running)
		}
	}
	if want := r[11].Due + r[11].E2E + time.Second; r[12].Due != want {
		t.Errorf("the second turn arrived at %v, want %v", r[12].Due, want)
	}
}

// refusing refuses requests of negative priority once anything runs.
const refusing = `
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: queue-scorer}
saturationDetector: {pluginRef: concurrency-detector}
`

// TestRefusedSessions: a session goes on after a refusal. Its successor in a closed loop waits for a second, so that clients do not fail in
// no time.
func TestRefusedSessions(t *testing.T) {
	c, err := config.Parse([]byte(refusing), plugin.Table)
	if err != nil {
		t.Fatal(err)
	}
	o := local(t)
	o.Config = c
	trace := &Trace{Concurrency: 2, Classes: []Class{{Name: "important"}, {Name: "sheddable", Priority: -1}}, Requests: []Request{
		{Input: 1000, Output: 2000},
		{Input: 1000, Output: 20, Class: 1},
		{Due: 2 * time.Second, After: 2, Input: 1000, Output: 20, Class: 1},
		{Input: 1000, Output: 20, Class: 1},
	}}
	result := replayed(t, o, trace)
	for i, want := range []time.Duration{0, 0, 2 * time.Second, 3 * time.Second} {
		if one := result.Records[i]; one.Due != want || one.Refused != (i > 0) {
			t.Errorf("request %d: arrived at %v, refused %v; want %v, and all but the first refused", i+1, one.Due, one.Refused, want)
		}
	}
	by := result.ByClass(SLO{})
	if len(by) != 2 || by[0].Requests != 1 || by[1].Refused != 3 || by[0].Goodput == 0 || by[1].Goodput != 0 {
		t.Errorf("by class: %+v", by)
	}
}

// TestClassObjectives: requests are measured by what their class must meet, or else by the usual objective.
func TestClassObjectives(t *testing.T) {
	r := Result{End: 10 * time.Second, Classes: []Class{{Name: "chat", SLO: SLO{TTFT: time.Second}}, {Name: "batch"}, {Name: "chat", Flow: "other"}},
		Records: []Record{
			{Class: 0, Input: 1, Output: 1, TTFT: 2 * time.Second}, {Class: 0, Input: 1, Output: 1, TTFT: time.Second},
			{Class: 1, Input: 1, Output: 1, TTFT: 4 * time.Second}, {Class: 2, Input: 1, Output: 1, TTFT: 4 * time.Second},
		}}
	if got := r.Summary(SLO{TTFT: 5 * time.Second}).Goodput; got != 0.3 {
		t.Errorf("goodput %v, want 0.3", got)
	}
	by := r.ByClass(SLO{TTFT: 5 * time.Second})
	if len(by) != 2 || by[0].Requests != 3 || by[0].Goodput != 0.2 || by[1].Goodput != 0.1 || by[1].SLO.TTFT != 5*time.Second {
		t.Errorf("by class: %+v", by)
	}
}

// TestAdapters: engines share no KV cache between LoRA adapters, and the picker does not look for it.
func TestAdapters(t *testing.T) {
	trace := &Trace{BlockTokens: 512, Classes: []Class{{Model: "a"}, {Model: "b"}}}
	for i, class := range []int{0, 1, 0} {
		trace.Requests = append(trace.Requests, Request{Due: time.Duration(i) * time.Minute, Input: 2000, Output: 1, Blocks: []int64{1, 2, 3}, Class: class})
	}
	r := replayed(t, local(t), trace).Records
	if r[0].Cached != 0 || r[1].Cached != 0 || r[2].Cached != 1536 {
		t.Errorf("cached: %d, %d and %d tokens, want 0, 0 and 1536", r[0].Cached, r[1].Cached, r[2].Cached)
	}
}

func TestStreams(t *testing.T) {
	hash := func(tokens int, streams ...Stream) []uint64 {
		return (&prompt{streams: streams, each: 16, tokens: tokens, seed: seed}).shared()
	}
	base := hash(300, Stream{1, 100}, Stream{2, 100}, Stream{3, 0})
	for _, test := range []struct {
		name   string
		other  []uint64
		shared int // parts of 16 tokens
	}{
		{"longer", hash(400, Stream{1, 100}, Stream{2, 100}, Stream{3, 0}), 18},
		{"another last stream", hash(300, Stream{1, 100}, Stream{2, 100}, Stream{4, 0}), 12},
		{"another middle", hash(300, Stream{1, 100}, Stream{5, 100}, Stream{3, 0}), 6},
		{"another length of the first", hash(300, Stream{1, 50}, Stream{2, 100}, Stream{3, 0}), 3},
		{"another first", hash(300, Stream{6, 100}, Stream{2, 100}, Stream{3, 0}), 0},
	} {
		shared := 0
		for shared < len(base) && base[shared] == test.other[shared] {
			shared++
		}
		if shared != test.shared {
			t.Errorf("%s: %d parts are shared, want %d", test.name, shared, test.shared)
		}
	}
}

func TestSessionsInDisorder(t *testing.T) {
	for name, test := range map[string]struct {
		after []int
		want  string
	}{
		"after itself":           {[]int{0, 2}, "request 2 is to follow request 2"},
		"after a later one":      {[]int{2, 0}, "request 1 is to follow request 2"},
		"two after the same one": {[]int{0, 1, 1}, "requests 2 and 3 are to follow request 1"},
	} {
		trace := &Trace{}
		for _, after := range test.after {
			trace.Requests = append(trace.Requests, Request{Input: 1, Output: 1, After: after})
		}
		o := local(t)
		if err := o.Check(trace); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
