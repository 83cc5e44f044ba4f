package plugin

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// loaded makes a candidate whose page was read just now; edit changes its load.
func loaded(name string, waiting, running int, edit ...func(*epp.Candidate)) epp.Candidate {
	c := labelled(nil)[0]
	c.Endpoint = c.With("", nil)
	c.Name = name
	c.Trust = 1
	c.Load = loadOf(float64(waiting), float64(running), 0)
	c.Load.At = time.Unix(1e9, 0)
	for _, e := range edit {
		e(&c)
	}
	return c
}

func kv(usage float64) func(*epp.Candidate) {
	return func(c *epp.Candidate) { c.Load.Signals.Set(epp.KVUsage, usage) }
}

// since has this picker's requests go from then to now since the page was read.
func since(then, now int) func(*epp.Candidate) {
	return func(c *epp.Candidate) { c.Load.Sent.Requests, c.InFlight.Requests = then, now }
}

// delayed has requests wait for their KV cache.
func delayed(n int) func(*epp.Candidate) {
	return func(c *epp.Candidate) { c.Load.Signals.Set(epp.Delayed, float64(n)) }
}

func aged(age time.Duration, trust float64) func(*epp.Candidate) {
	return func(c *epp.Candidate) { c.Load.At, c.Trust = c.Load.At.Add(-age), trust }
}

func unread(c *epp.Candidate) { c.Load, c.Trust = &epp.Load{}, 0 }

func flying(requests, tokens int) func(*epp.Candidate) {
	return func(c *epp.Candidate) { c.InFlight = epp.InFlight{Requests: requests, Tokens: tokens} }
}

// TestDetectors holds whom a detector keeps, and how full it finds the same candidates together.
func TestDetectors(t *testing.T) {
	const utilization, concurrency = "utilization-detector", "concurrency-detector"
	const ours = "{queueDepthThreshold: 8, queueDepthPerRunning: 0.25, headroom: 3, onAllFull: refuse}"
	for _, c := range []struct {
		name, typ, parameters string
		pods                  []epp.Candidate
		keeps                 string
		full                  float64
	}{
		{"no candidates", utilization, "", nil, "", 1},
		{"idle", utilization, "", []epp.Candidate{loaded("a", 0, 0), loaded("b", 0, 9)}, "ab", 0},
		{"queue", utilization, "", []epp.Candidate{loaded("a", 4, 9), loaded("b", 5, 9)}, "a", 0.9},
		{"KV cache", utilization, "", []epp.Candidate{loaded("a", 0, 9, kv(0.4)), loaded("b", 0, 9, kv(0.8))}, "a", 0.75},
		{"headroom", utilization, "headroom: 0.2", []epp.Candidate{loaded("a", 5, 9), loaded("b", 6, 9)}, "a", 1.1},
		{"all full: kept", utilization, "", []epp.Candidate{loaded("a", 5, 9), loaded("b", 15, 9)}, "ab", 2},
		{"all full: refused", utilization, "onAllFull: refuse", []epp.Candidate{loaded("a", 5, 9), loaded("b", 15, 9)}, "", 2},
		{"sent since the page", utilization, "headroom: 1", []epp.Candidate{loaded("a", 5, 9, since(11, 15)), loaded("b", 5, 9, since(11, 16))}, "a", 1.9},
		{"KV caches on their way", utilization, "", []epp.Candidate{loaded("a", 9, 9, delayed(5)), loaded("b", 9, 9, delayed(4))}, "a", 0.9},
		{"KV caches on their way, and nothing else", utilization, "onAllFull: refuse", []epp.Candidate{loaded("a", 9, 9, delayed(9), since(0, 500))}, "a", 0},
		{"a burst to an engine whose queue is short", utilization, "onAllFull: refuse", []epp.Candidate{loaded("a", 4, 9, since(0, 500))}, "a", 0.8},
		{"ended since the page", utilization, "", []epp.Candidate{loaded("a", 6, 9, since(15, 13)), loaded("b", 6, 9, since(15, 0))}, "ab", 0.4},
		{"a burst to an engine that has no queue", utilization, "onAllFull: refuse", []epp.Candidate{loaded("a", 0, 9, since(0, 500))}, "a", 0},
		{"late, but not for this picker", utilization, "", []epp.Candidate{loaded("a", 0, 9, aged(time.Second, 1)), loaded("b", 9, 9)}, "a", 0.9},
		{"stale", utilization, "", []epp.Candidate{loaded("a", 0, 9, aged(3*time.Second, 0.5)), loaded("b", 0, 9)}, "b", 0.5},
		{"fresh enough by its own bound", utilization, "metricsStalenessThreshold: 5s", []epp.Candidate{loaded("a", 0, 9, aged(3*time.Second, 0.5))}, "a", 0},
		{"never read", utilization, "", []epp.Candidate{loaded("a", 0, 0, unread), loaded("b", 0, 0)}, "b", 0.5},
		{"no endpoint can be read", utilization, "onAllFull: refuse", []epp.Candidate{loaded("a", 0, 0, unread), loaded("b", 0, 0, unread)}, "ab", 1},
		{"full when last read", utilization, "onAllFull: refuse", []epp.Candidate{loaded("a", 9, 9, aged(5*time.Second, 0.25))}, "", 1},
		{"full when last read, and empty now", utilization, "onAllFull: refuse", []epp.Candidate{loaded("a", 9, 9, aged(5*time.Second, 0.25), since(18, 0))}, "a", 1},
		{"full when last read, long ago", utilization, "onAllFull: refuse", []epp.Candidate{loaded("a", 9, 9, aged(time.Hour, 0))}, "a", 1},
		{"default: many sent since a page of long ago", utilization, ours, []epp.Candidate{loaded("a", 1, 9, aged(time.Minute, 0), since(10, 60))}, "a", 1},

		{"default: a small batch", utilization, ours, []epp.Candidate{loaded("a", 31, 8), loaded("b", 32, 8)}, "a", 3.9375},
		{"default: a large batch", utilization, ours, []epp.Candidate{loaded("a", 255, 256), loaded("b", 256, 256)}, "a", 3.9921875},
		{"default: a KV cache that is used up", utilization, ours, []epp.Candidate{loaded("a", 0, 8, kv(1))}, "a", 1.25},

		{"requests", concurrency, "", []epp.Candidate{loaded("a", 0, 0, flying(99, 1e9)), loaded("b", 0, 0, flying(100, 0))}, "a", 0.995},
		{"requests with headroom", concurrency, "{maxConcurrency: 10, headroom: 0.5}", []epp.Candidate{loaded("a", 0, 0, flying(14, 0)), loaded("b", 0, 0, flying(15, 0))}, "a", 1.45},
		{"headroom, rounded down", concurrency, "{maxConcurrency: 3, headroom: 0.5}", []epp.Candidate{loaded("a", 0, 0, flying(3, 0)), loaded("b", 0, 0, flying(4, 0))}, "a", 1.1667},
		{"tokens", concurrency, "concurrencyMode: tokens", []epp.Candidate{loaded("a", 0, 0, flying(1000, 250_000)), loaded("b", 0, 0, flying(1, 1_000_000))}, "a", 0.625},
		{"both", concurrency, "concurrencyMode: hybrid", []epp.Candidate{loaded("a", 0, 0, flying(50, 250_000)), loaded("b", 0, 0, flying(1, 1_000_000))}, "a", 0.75},
		{"all full", concurrency, "maxConcurrency: 1", []epp.Candidate{loaded("a", 0, 0, flying(1, 0))}, "", 1},
		{"all full: kept by mode", concurrency, "{maxConcurrency: 1, onAllFull: keep}", []epp.Candidate{loaded("a", 0, 0, flying(1, 0))}, "a", 1},
		{"no candidates", concurrency, "", nil, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, r := build[epp.Detector](t, c.typ, c.parameters), round(source(1))
			r.Request.API = pd.APIChat
			if full := d.Saturation(r.Now, c.pods); fmt.Sprintf("%.4f", full) != fmt.Sprintf("%.4f", c.full) {
				t.Errorf("saturation %v, want %v", full, c.full)
			}
			if got := names(d.Filter(r, c.pods)); got != c.keeps {
				t.Errorf("keeps %q, want %q", got, c.keeps)
			}
		})
	}
}

// TestDetectorsShedWork only: a list of models is to be had from a full pool too.
func TestDetectorsShedWork(t *testing.T) {
	pods := []epp.Candidate{loaded("a", 500, 9, flying(500, 0))}
	for typ, parameters := range map[string]string{"utilization-detector": "onAllFull: refuse", "concurrency-detector": ""} {
		d, r := build[epp.Detector](t, typ, parameters), round(source(1))
		for api, want := range map[pd.API]string{pd.APIOther: "a", pd.APICountTokens: "a", pd.APIChat: "", pd.APIEmbeddings: ""} {
			r.Request.API = api
			if got := names(d.Filter(r, pods)); got != want {
				t.Errorf("%s keeps %q for %v, want %q", typ, got, api, want)
			}
		}
	}
}

// TestStepBoundsOneRequest: no request adds more to the saturation than the detector says, and some request adds that much.
func TestStepBoundsOneRequest(t *testing.T) {
	for _, c := range []struct{ typ, parameters string }{
		{"utilization-detector", "{queueDepthThreshold: 8}"},
		{"utilization-detector", "{queueDepthThreshold: 8, queueDepthPerRunning: 0.25}"},
		{"concurrency-detector", "{maxConcurrency: 10}"},
	} {
		t.Run(c.typ+c.parameters, func(t *testing.T) {
			d, most, largest := build[epp.StepDetector](t, c.typ, c.parameters), 0.0, 0.0
			for _, waiting := range []int{0, 7, 8, 40} {
				for sent := range 20 {
					pods := func(n int) []epp.Candidate {
						return []epp.Candidate{loaded("idle", 0, 0), loaded("a", waiting, 16, since(0, n))}
					}
					step := d.Step(pods(sent))
					adds := d.Saturation(time.Unix(1e9, 0), pods(sent+1)) - d.Saturation(time.Unix(1e9, 0), pods(sent))
					if adds > step+1e-9 {
						t.Errorf("with %d waiting and %d sent, a request adds %v, and the step is %v", waiting, sent, adds, step)
					}
					most, largest = max(most, adds), max(largest, step)
				}
			}
			if most < largest-1e-9 {
				t.Errorf("a request adds up to %v, and the step is up to %v", most, largest)
			}
		})
	}
}
