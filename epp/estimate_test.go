package epp_test

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// pageOf returns a load whose page shows these numbers of requests.
func pageOf(waiting, running float64) epp.Load {
	return epp.Load{Signals: epp.Values{}.With(epp.Waiting, waiting).With(epp.Running, running)}
}

func TestEstimates(t *testing.T) {
	for _, c := range []struct {
		name             string
		waiting, running float64 // on the page
		batch            float64
		sent, now        int // of this picker: in flight when the page was read, and now
		wantWaiting      float64
		wantRunning      float64
	}{
		{"nothing since the page", 3, 8, 8, 11, 11, 3, 8},
		{"nothing in flight, load of others", 3, 8, 8, 0, 0, 3, 8},
		{"sent to an engine with a queue", 3, 8, 8, 11, 15, 7, 12},
		{"sent to an engine with room", 0, 2, 8, 2, 6, 0, 6},
		{"sent to an engine with room for some", 0, 6, 8, 6, 11, 3, 11},
		{"sent to an engine of which nothing is known", 0, 0, 0, 0, 5, 5, 5},
		{"ended since", 3, 8, 8, 11, 9, 1, 6},
		{"more ended than waited", 3, 8, 8, 11, 2, 0, 0},
		{"on the way to the engine when the page was read", 0, 0, 0, 4, 4, 4, 4},
		{"on the way, into a queue", 2, 1, 1, 5, 5, 4, 3},
		{"on the way, with room", 0, 1, 8, 5, 5, 0, 5},
		{"load of others hides what is on the way", 4, 8, 8, 5, 5, 4, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			load := pageOf(c.waiting, c.running)
			load.Batch, load.Sent.Requests = c.batch, c.sent
			one := epp.Candidate{Load: &load, InFlight: epp.InFlight{Requests: c.now}}
			if got, known := one.Waiting(); got != c.wantWaiting || !known {
				t.Errorf("%v wait (%v), want %v", got, known, c.wantWaiting)
			}
			if got, known := one.Running(); got != c.wantRunning || !known {
				t.Errorf("%v run (%v), want %v", got, known, c.wantRunning)
			}
		})
	}
}

func TestEstimatesOfUnknownLoad(t *testing.T) {
	one := epp.Candidate{Load: &epp.Load{}, InFlight: epp.InFlight{Requests: 5, Tokens: 100}}
	for name, estimate := range map[string]func() (float64, bool){"waiting": one.Waiting, "running": one.Running, "KV use": one.KVUsage} {
		if got, known := estimate(); known {
			t.Errorf("%s is %v, although the page has not been read", name, got)
		}
	}
}

func TestKVUsage(t *testing.T) {
	for _, c := range []struct {
		name      string
		blocks    int // of 16 tokens
		used      float64
		sent, now int // tokens of this picker: when the page was read, and now
		want      float64
	}{
		{"nothing since the page", 1000, 0.5, 800, 800, 0.5},
		{"a prompt since", 1000, 0.5, 800, 2400, 0.6},
		{"more than fits", 1000, 0.5, 0, 16000, 1},
		{"computed since: its KV is still there", 1000, 0.5, 800, 0, 0.5},
		{"size unknown", 0, 0.5, 0, 1600, 0.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			load := epp.Load{Signals: epp.Values{}.With(epp.KVUsage, c.used), Cache: epp.CacheInfo{BlockTokens: 16, Blocks: c.blocks}}
			load.Sent.Tokens = c.sent
			one := epp.Candidate{Load: &load, InFlight: epp.InFlight{Tokens: c.now}}
			if got, _ := one.KVUsage(); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// An engine that does not say for what its requests wait, such as a vLLM without vllm:num_requests_waiting_by_reason, has all of them in its
// queue.
func TestQueueOfUnknownReason(t *testing.T) {
	for _, c := range []struct {
		name             string
		waiting, delayed float64 // delayed -1: not told
		queues           bool
	}{
		{"none waits", 0, -1, false},
		{"not told", 4, -1, true},
		{"for capacity", 4, 0, true},
		{"some for their KV cache", 4, 3, true},
		{"all for their KV cache", 4, 4, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := pageOf(c.waiting, 2)
			if c.delayed >= 0 {
				l.Signals.Set(epp.Delayed, c.delayed)
			}
			if got := l.Queues(); got != c.queues {
				t.Errorf("%v, want %v", got, c.queues)
			}
		})
	}
}

// TestLearnBatch reads one page after the other.
func TestLearnBatch(t *testing.T) {
	type page struct{ waiting, delayed, running, want float64 }
	for _, c := range []struct {
		name  string
		pages []page
	}{
		{"the most that ran", []page{{0, 0, 3, 3}, {0, 0, 7, 7}, {0, 0, 2, 7}}},
		{"a queue that stays shows the limit", []page{{0, 0, 9, 9}, {4, 0, 6, 9}, {5, 0, 6, 6}, {0, 0, 2, 6}}},
		{"a queue that is gone with the next page does not", []page{{0, 0, 9, 9}, {1, 0, 2, 9}, {0, 0, 3, 9}, {1, 0, 2, 9}}},
		{"requests that wait for their KV cache are no queue", []page{{0, 0, 9, 9}, {4, 4, 2, 9}, {4, 4, 2, 9}}},
		{"more run later", []page{{4, 0, 6, 6}, {4, 0, 6, 6}, {0, 0, 8, 8}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before epp.Load
			for i, p := range c.pages {
				now := pageOf(p.waiting, p.running)
				now.Signals.Set(epp.Delayed, p.delayed)
				if now.LearnBatch(&before); now.Batch != p.want {
					t.Errorf("after page %d: %v, want %v", i+1, now.Batch, p.want)
				}
				before = now
			}
		})
	}
}
