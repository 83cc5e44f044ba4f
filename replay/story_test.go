package replay

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestStory: the story of a request has the pick that was made, and all that the record says, in the order of time. It changes nothing.
func TestStory(t *testing.T) {
	trace := conversation(t)
	plain := replayed(t, options(t, 2048, "2P+4D"), trace)
	for _, way := range []bool{true, false} {
		o := options(t, 2048, "2P+4D")
		for i := range plain.Records {
			if r := &plain.Records[i]; r.Remote == way && r.Waited > 0 {
				o.Explain = i + 1
			}
		}
		r := replayed(t, o, trace)
		if !reflect.DeepEqual(r.Records, plain.Records) {
			t.Fatal("a run that is explained is another one")
		}
		record, story := &r.Records[o.Explain-1], r.Story
		if x := story.Explanation; x.Reason != record.Reason || x.Trace.Stages[0].Candidates[0].Endpoint != "replay/"+record.Decode {
			t.Errorf("explained as %s on %s, but %s was picked because of %s", x.Reason, x.Trace.Stages[0].Candidates[0].Endpoint, record.Decode, record.Reason)
		}
		wants := []string{record.Decode + " the first token", record.Decode + " the last token"}
		if way {
			wants = append([]string{record.Prefill + " queued", record.Prefill + " the prompt is computed", record.Decode + " queued", record.Decode + " blocks are reserved",
				record.Decode + " the KV cache has arrived"}, wants...)
		} else {
			wants = append([]string{record.Decode + " queued", record.Decode + " leaves the queue, after " + rounded(record.Waited).String()}, wants...)
		}
		last := time.Duration(0)
		for _, e := range story.Events {
			if e.At < last {
				t.Errorf("%q at %v comes after something at %v", e.What, e.At, last)
			}
			last = e.At
			if len(wants) > 0 && strings.HasPrefix(e.Engine+" "+e.What, wants[0]) {
				if wants = wants[1:]; strings.HasPrefix(e.What, "the first") && e.At != record.TTFT {
					t.Errorf("first token at %v, want %v", e.At, record.TTFT)
				}
			}
		}
		if len(wants) > 0 || last != record.E2E {
			t.Errorf("remote %v: no %q, or it ends at %v instead of %v:\n%+v", way, wants, last, record.E2E, story.Events)
		}
	}
}

// TestStoryOfSteps: what the steps of a story computed adds up to the prompt and the answer.
func TestStoryOfSteps(t *testing.T) {
	o := options(t, 0, "1B")
	o.Explain, o.Engine.StepTokens = 1, 1000
	r := replayed(t, o, &Trace{Requests: []Request{{Input: 2500, Output: 6}}})
	var said []string
	for _, e := range r.Story.Events {
		what, _, _ := strings.Cut(e.What, " of ")
		if strings.HasPrefix(e.What, "a step") {
			_, what, _ = strings.Cut(e.What, " computes ")
		}
		said = append(said, what)
	}
	want := []string{"queued: 0 requests wait there, 0 run", "leaves the queue, after 0s; 0", "1000 tokens of the prompt; 0 of other prompts and 0 running requests are in it",
		"1000 tokens of the prompt; 0 of other prompts and 0 running requests are in it", "500 tokens of the prompt; 0 of other prompts and 0 running requests are in it",
		"the first token", "5 steps", "the last token"}
	if !reflect.DeepEqual(said, want) {
		t.Errorf("%q", said)
	}
}
