package plugin

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/pd"
)

// sent are headers by lower-case name.
type sent map[string]string

func (s sent) Get(name string) string { return s[name] }

// wants is a request whose client wants these times, in ms; "" is any.
func wants(rng *rand.Rand, ttft, tpot string) *epp.Round {
	r := round(rng)
	headers := sent{}
	r.Request.Headers = headers
	if ttft != "" {
		headers[epp.HeaderTTFT] = ttft
	}
	if tpot != "" {
		headers[epp.HeaderTPOT] = tpot
	}
	return r
}

// predicts gives a candidate predictions, in ms, for a request.
func predicts(r *epp.Round, c epp.Candidate, ttft, tpot float64) epp.Candidate {
	load := *c.Load
	c.Load = &load
	c.Compute(latency.TTFTHeadroom, r.Request.WantedTTFT().Seconds()-ttft/1000)
	c.Compute(latency.TPOTHeadroom, r.Request.WantedTPOT().Seconds()-tpot/1000)
	return c
}

func TestSLOHeadroomTier(t *testing.T) {
	for _, tc := range []struct {
		name, ttft, tpot string
		parameters       string
		pods             [][2]float64 // predictions; none: {}
		kept             []string
	}{
		{"those that fit", "200", "50", "epsilonExploreNeg: 0", [][2]float64{{100, 20}, {300, 20}, {100, 60}, {200, 50}}, []string{"a", "d"}},
		{"none fits", "50", "50", "epsilonExploreNeg: 0", [][2]float64{{100, 20}, {300, 20}}, []string{"a", "b"}},
		{"nothing is wanted", "", "", "epsilonExploreNeg: 0", [][2]float64{{100, 20}, {300, 20}}, []string{"a", "b"}},
		{"only the first token", "200", "", "epsilonExploreNeg: 0", [][2]float64{{100, 900}, {300, 20}}, []string{"a"}},
		{"only further tokens", "", "50", "epsilonExploreNeg: 0", [][2]float64{{9000, 20}, {1, 51}}, []string{"a"}},
		{"the others, for once", "200", "50", "epsilonExploreNeg: 1", [][2]float64{{100, 20}, {300, 20}}, []string{"b"}},
		{"one without prediction", "200", "50", "epsilonExploreNeg: 0", [][2]float64{{100, 20}, {}}, []string{"a"}},
		{"none with predictions", "200", "50", "epsilonExploreNeg: 0", [][2]float64{{}, {}}, []string{"a", "b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, r := build[epp.Filter](t, "slo-headroom-tier-filter", tc.parameters), wants(source(1), tc.ttft, tc.tpot)
			var pods []epp.Candidate
			for i, p := range tc.pods {
				c := loaded(string(rune('a'+i)), 0, 1)
				if p != ([2]float64{}) {
					c = predicts(r, c, p[0], p[1])
				}
				pods = append(pods, c)
			}
			var kept []string
			for _, c := range f.Filter(r, pods) {
				kept = append(kept, c.Name)
			}
			if !slices.Equal(kept, tc.kept) {
				t.Errorf("kept %v, want %v", kept, tc.kept)
			}
		})
	}
}

func TestLatencyScorer(t *testing.T) {
	for _, tc := range []struct {
		name, ttft, tpot string
		parameters       string
		pods             [][3]float64 // predictions, and requests in flight; no predictions: {0, 0, n}
		scores           []float64
	}{
		{"least: the one that fits just so", "200", "50", "", [][3]float64{{100, 20, 1}, {180, 40, 1}, {300, 20, 1}}, []float64{0, 1, 0}},
		{"most: the one furthest below", "200", "50", "headroomSelectionStrategy: most", [][3]float64{{100, 20, 1}, {180, 40, 1}, {300, 20, 1}}, []float64{1, 0, 0}},
		{"weighed", "200", "50", "headroomSelectionStrategy: most", [][3]float64{{100, 40, 1}, {180, 20, 1}}, []float64{0.8, 0.2}},
		{"equal times have no weight", "200", "50", "headroomSelectionStrategy: most", [][3]float64{{100, 40, 1}, {100, 20, 1}}, []float64{0, 1}},
		{"nothing is wanted: the fastest", "", "", "", [][3]float64{{100, 20, 1}, {200, 40, 1}, {150, 30, 1}}, []float64{1, 0, 0.5}},
		{"none fits: idle ones first", "50", "50", "", [][3]float64{{100, 20, 1}, {400, 20, 0}}, []float64{0, 1}},
		{"none fits: late tokens before a late first one", "50", "10", "", [][3]float64{{100, 5, 1}, {40, 20, 1}, {100, 20, 1}}, []float64{0, 1, 0}},
		{"all alike", "", "", "", [][3]float64{{100, 20, 1}, {100, 20, 1}}, []float64{1, 1}},
		{"one without prediction", "", "", "", [][3]float64{{100, 20, 1}, {0, 0, 1}}, []float64{1, 0}},
		{"no predictions: queues", "", "", "{compositeKVWeight: 0, compositePrefixWeight: 0}", [][3]float64{{0, 0, 0}, {0, 0, 4}}, []float64{1, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, r := build[epp.Scorer](t, "latency-scorer", tc.parameters), wants(source(1), tc.ttft, tc.tpot)
			var pods []epp.Candidate
			for i, p := range tc.pods {
				c := loaded(string(rune('a'+i)), 0, 1, since(0, int(p[2])))
				if p[0] > 0 {
					c = predicts(r, c, p[0], p[1])
				} else {
					c.Load.Signals.Set(epp.Waiting, p[2])
				}
				pods = append(pods, c)
			}
			scores := make([]float64, len(pods))
			s.Score(r, pods, scores)
			for i := range scores {
				if d := scores[i] - tc.scores[i]; d > 1e-9 || d < -1e-9 {
					t.Errorf("scores %v, want %v", scores, tc.scores)
					break
				}
			}
		})
	}
}

func TestLatencySLOAdmitter(t *testing.T) {
	busy := func(name string, role string, r *epp.Round, ttft, tpot float64, edit ...func(*epp.Candidate)) epp.Candidate {
		c := loaded(name, 0, 5, append([]func(*epp.Candidate){kv(0.5)}, edit...)...)
		c.Endpoint = c.With("", map[string]string{pd.RoleLabel: role})
		if ttft > 0 {
			c = predicts(r, c, ttft, tpot)
		}
		return c
	}
	r := func(ttft, tpot string, priority int) *epp.Round {
		r := wants(source(1), ttft, tpot)
		r.Request.Priority = priority
		return r
	}
	sheddable := r("200", "50", -1)
	for _, tc := range []struct {
		name   string
		round  *epp.Round
		pods   func(r *epp.Round) []epp.Candidate
		admits bool
	}{
		{"one fits", sheddable, func(r *epp.Round) []epp.Candidate {
			return []epp.Candidate{busy("a", "decode", r, 300, 20), busy("b", "decode", r, 100, 20)}
		}, true},
		{"none fits", sheddable, func(r *epp.Round) []epp.Candidate {
			return []epp.Candidate{busy("a", "decode", r, 300, 20), busy("b", "decode", r, 100, 60)}
		}, false},
		{"priority 0", r("200", "50", 0), func(r *epp.Round) []epp.Candidate { return []epp.Candidate{busy("a", "decode", r, 300, 20)} }, true},
		{"nothing is wanted", r("", "", -1), func(r *epp.Round) []epp.Candidate { return []epp.Candidate{busy("a", "decode", r, 300, 20)} }, true},
		{"only further tokens are wanted", r("", "50", -1), func(r *epp.Round) []epp.Candidate { return []epp.Candidate{busy("a", "decode", r, 300, 20)} }, true},
		{"nothing is predicted", sheddable, func(r *epp.Round) []epp.Candidate { return []epp.Candidate{busy("a", "decode", r, 0, 0)} }, true},
		{"one is idle", sheddable, func(r *epp.Round) []epp.Candidate {
			return []epp.Candidate{busy("a", "decode", r, 300, 20, func(c *epp.Candidate) { c.Load.Signals.Set(epp.Running, 0) })}
		}, true},
		{"one is cold", sheddable, func(r *epp.Round) []epp.Candidate { return []epp.Candidate{busy("a", "decode", r, 300, 20, kv(0.01))} }, true},
		{"a cold one is not known any more", sheddable, func(r *epp.Round) []epp.Candidate {
			return []epp.Candidate{busy("a", "decode", r, 300, 20, kv(0.01), func(c *epp.Candidate) { c.Trust = 0 })}
		}, false},
		{"prefill computes the prompt in time", sheddable, func(r *epp.Round) []epp.Candidate {
			return []epp.Candidate{busy("a", "decode", r, 300, 20), busy("b", "prefill", r, 100, 90)}
		}, true},
		{"prefill does, but no decode is fast enough", sheddable, func(r *epp.Round) []epp.Candidate {
			return []epp.Candidate{busy("a", "decode", r, 300, 60), busy("b", "prefill", r, 100, 20)}
		}, false},
		{"prefill is too slow", sheddable, func(r *epp.Round) []epp.Candidate {
			return []epp.Candidate{busy("a", "decode", r, 300, 20), busy("b", "prefill", r, 300, 20)}
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if a := build[epp.Admitter](t, "latency-slo-admitter", ""); a.Admits(tc.round, tc.pods(tc.round)) != tc.admits {
				t.Errorf("admitted: %v, want %v", !tc.admits, tc.admits)
			}
		})
	}
}

// TestPredictedLatencyBearsAnyLoad: whatever pages say, predictions are times, and every candidate has them.
func TestPredictedLatencyBearsAnyLoad(t *testing.T) {
	p, rng := build[epp.Producer](t, "predicted-latency-producer", ""), source(5)
	for range 200 {
		c := somePods(rng, rng.IntN(40))
		p.Produce(wants(rng, "200", "50"), c)
		for i := range c {
			for _, s := range []epp.Signal{latency.TTFT50, latency.TPOT50} {
				half, known := c[i].Value(s)
				ninety, also := c[i].Value(s + 1)
				if !known || !also || !(half > 0) || !(ninety >= half) {
					t.Fatalf("predictions %v and %v (%v, %v) for %+v, %+v", half, ninety, known, also, c[i], *c[i].Load)
				}
			}
		}
	}
}

// TestPredictedLatencyHeadroom: headrooms are distances of the configured quantile from what the client wants.
func TestPredictedLatencyHeadroom(t *testing.T) {
	for _, tc := range []struct {
		parameters string
		half       bool
		buffer     float64
	}{{"", true, 1}, {"quantile: 0.9", false, 1}, {"sloBufferFactor: 0.5", true, 0.5}} {
		p, r := build[epp.Producer](t, "predicted-latency-producer", tc.parameters), wants(source(1), "200", "50")
		c := []epp.Candidate{predicts(r, loaded("a", 1, 5), 1, 1)}
		p.Produce(r, c)
		by := func(s epp.Signal) float64 { v, _ := c[0].Value(s); return v }
		first, further := latency.TTFT90, latency.TPOT90
		if tc.half {
			first, further = latency.TTFT50, latency.TPOT50
		}
		if got, want := by(latency.TTFTHeadroom), 0.2-by(first); got != want {
			t.Errorf("%s: headroom to the first token %v, want %v", tc.parameters, got, want)
		}
		if got, want := by(latency.TPOTHeadroom), 0.05*tc.buffer-by(further); got != want {
			t.Errorf("%s: headroom of further tokens %v, want %v", tc.parameters, got, want)
		}
	}
}

// BenchmarkPredictedLatency predicts for 100 candidates whose times are known.
func BenchmarkPredictedLatency(b *testing.B) {
	p, rng := build[interface {
		epp.Producer
		epp.Observer
		epp.PickObserver
	}](b, "predicted-latency-producer", ""), source(1)
	c := make([]epp.Candidate, 100)
	row := epp.DecodeRow("decode")
	for i := range c {
		c[i] = loaded("a", i%5, i%60, kv(float64(i%10)/10), flying(i%7, 500*i))
		c[i].Endpoint = somePods(rng, i+1)[i].Endpoint
		c[i].Slot = i
		d := &epp.Decision{Verdict: pd.Local, Tokens: 1030, Picks: []epp.StagePick{{Row: &row, Endpoints: []*epp.Endpoint{c[i].Endpoint}, Seen: &epp.Seen{Load: *c[i].Load}}}}
		phases := &pd.Phases{}
		phases.Set(pd.PhaseFirst, 80*time.Millisecond)
		phases.Set(pd.PhaseDecode, time.Second)
		p.Picked(nil, nil, d)
		p.Observe(&epp.Outcome{Decision: d, Phases: phases, Result: &pd.AnswerSummary{End: pd.EndDone, Completion: 50}})
	}
	r := wants(rng, "200", "50")
	r.Now = time.Now()
	b.ReportAllocs()
	for b.Loop() {
		p.Produce(r, c)
	}
}
