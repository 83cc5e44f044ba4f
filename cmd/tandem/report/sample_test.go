package report

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// sample returns a run as a stack might produce it: n requests of every class, the same for the same seed.
func sample(seed uint64, n int) *Data {
	d := unsampled(seed, n)
	d.Load, d.Comparison = sampleLoad(d), sampleComparison(seed)
	return d
}

// unsampled returns a sample without the load, which takes long to make for many requests.
func unsampled(seed uint64, n int) *Data {
	rnd := rand.New(rand.NewPCG(seed, seed))
	d := &Data{
		Title: "Tandem demo", Started: time.Date(2026, 11, 21, 14, 3, 0, 0, time.UTC),
		Stack: []string{"2 prefill engines (simulated)", "2 decode engines (simulated), each with a sidecar",
			"endpoint picker", "Envoy 1.40.0",
			"1 reference engine"},
		Why: sampleWhys(),
		Checks: []Check{
			{"same tokens as from the reference engine", true, fmt.Sprintf("%d of %[1]d answers are equal", n)},
			{"every request is answered as its class should be", true, fmt.Sprintf("%d of %[1]d", n)},
			{"KV bytes that were pulled", true, "75497472 bytes, what the decode engines counted as external tokens"},
			{"no block is stranded", true, "0 pinned, 0 used, 0 expired at the end"},
			{"phases are contiguous", true, "their sum is at most what the client measured, for every request"},
		},
	}
	at := 0.0
	for i := range n {
		at += rnd.ExpFloat64() * 140
		d.Requests = append(d.Requests, sampleRequest(rnd, i+1, at))
		d.KVMoved += d.Requests[i].KVBytes
	}
	return d
}

// sampleClass describes the requests of a class.
type sampleClass struct {
	name, api, decision, reason string
	stream                      bool
	prompt                      int
}

var sampleClasses = []sampleClass{
	{"short chat", "chat", "local", "below-threshold", false, 40},
	{"short chat, streamed", "chat", "local", "below-threshold", true, 48},
	{"long chat, streamed", "chat", "remote", "uncached", true, 1400},
	{"long completion", "completions", "remote", "uncached", false, 1100},
	{"conversation, first turn", "chat", "remote", "uncached", true, 900},
	{"conversation, later turns", "chat", "local", "below-threshold", true, 1300},
	{"forced", "chat", "remote", "forced", true, 60},
	{"bypassed", "completions", "local", "bypassed", true, 1200},
}

func sampleRequest(rnd *rand.Rand, number int, at float64) Request {
	c := sampleClasses[rnd.IntN(len(sampleClasses))]
	noisy := func(v float64) float64 { return v * (0.8 + 0.3*rnd.Float64() + 0.5*max(0, rnd.NormFloat64()-1)) }
	r := Request{Number: number, Class: c.name, API: c.api, Stream: c.stream, Decision: c.decision, Reason: c.reason,
		Prompt: c.prompt + rnd.IntN(c.prompt/2), Completion: 24, Start: at, KVBytes: 0}
	if c.name == "conversation, later turns" {
		r.Cached = r.Prompt - 60
		if rnd.IntN(5) == 0 { // the turn went to the other decode endpoint
			r.Decision, r.Reason, r.Cached = "remote", "uncached", 0
		}
	}
	compute := 0.09 * float64(r.Prompt-r.Cached)
	r.Phases = map[string]float64{"epp": noisy(0.7), "recv": noisy(0.3), "first": noisy(6), "decode": 0}
	if r.Decision == "remote" {
		r.Attempts, r.KVBytes = 1, int64(r.Prompt/16)*32768
		r.Phases["prefill"], r.Phases["handoff"], r.Phases["first"] = noisy(compute), noisy(0.5), noisy(10+compute/20)
	} else {
		r.Phases["first"] = noisy(6 + compute)
	}
	r.DecodePod = "decode-" + strconv.Itoa(number%2)
	if r.Decision == "remote" {
		r.PrefillPod = "prefill-" + strconv.Itoa(number/2%2)
	}
	first := 1.5
	for _, v := range r.Phases {
		first += v
	}
	for range r.Completion - 1 {
		gap := noisy(5.5)
		r.Phases["decode"] += gap
		if c.stream {
			r.ITL = append(r.ITL, gap)
		}
	}
	r.Total = first + r.Phases["decode"] + 0.4
	if c.stream {
		r.TTFT = first
	}
	return r
}

// sampleLoad counts every request at an endpoint while it runs.
func sampleLoad(d *Data) (all []LoadSample) {
	endpoints := []struct{ name, role string }{{"default/prefill-0", "prefill"}, {"default/prefill-1", "prefill"},
		{"default/decode-0", "decode"}, {"default/decode-1", "decode"}}
	for t := 0.0; t <= span(d)+200; t += 100 {
		for i, e := range endpoints {
			x := LoadSample{At: t, Endpoint: e.name, Role: e.role, KVUsage: 0.04}
			for _, r := range d.Requests {
				if r.Number%2 == i%2 && (e.role == "decode" || r.Decision == "remote") && r.Start < t+100 && r.Start+r.Total > t {
					x.InFlight++
				}
			}
			x.Running, x.Waiting = min(x.InFlight, 3), max(0, x.InFlight-3)
			x.KVUsage += 0.09 * float64(x.Running)
			all = append(all, x)
		}
	}
	return all
}

// signals returns the readings of a candidate whose metrics page was read.
func signals(waiting, running, usage float64) epp.Readings {
	return epp.Readings{{Name: "waiting", Value: &waiting}, {Name: "running", Value: &running}, {Name: "kv_usage", Value: &usage}}
}

func sampleWhys() []Why {
	explain := func(decision string, reason pd.Reason, tokens, cached int) *epp.Explanation {
		score := func(queue, prefix float64) []epp.ScoreTrace {
			return []epp.ScoreTrace{{Scorer: "queue-scorer", Weight: 2, Score: queue},
				{Scorer: "kv-cache-utilization-scorer", Weight: 2, Score: 0.98}, {Scorer: "active-request-scorer", Weight: 1, Score: 1},
				{Scorer: "prefix-cache-scorer", Weight: 3, Score: prefix}}
		}
		share := float64(cached) / float64(tokens)
		x := &epp.Explanation{Decision: decision, Reason: reason, Decider: epp.DeciderNumbers{Name: "prefix-based-pd-decider",
			Parameters: map[string]any{"nonCachedTokens": 256, "promptTokens": 0}, Tokens: tokens, Cached: cached,
			Uncached: tokens - cached}}
		decode := []epp.CandidateTrace{
			{Endpoint: "default/decode-1", Role: "decode", Chosen: 1, Why: "highest total", Total: 2*0.9 + 3*share,
				Scores:  score(0.9, share),
				Signals: signals(0, 2, 0.18), LoadAge: 0.04, Requests: 2, Tokens: 1820, Cached: cached},
			{Endpoint: "default/decode-0", Role: "decode", Why: "lower total", Total: 1, Scores: score(0.5, 0),
				Signals: signals(1, 3, 0.27), LoadAge: 0.04, Requests: 4, Tokens: 2210},
			{Endpoint: "default/prefill-0", Role: "prefill", Dropped: "decode-filter", Why: "dropped by decode-filter", LoadAge: -1},
		}
		x.Trace = &epp.Trace{Stages: []epp.StageTrace{{Stage: "decode", Profile: "decode", Candidates: decode}},
			Deciders: []epp.DeciderTrace{{Stage: epp.StagePrefill, Decider: x.Decider.Name}}}
		if decision == "remote" {
			prefill := slices.Clone(decode[:1])
			prefill[0].Endpoint, prefill[0].Role = "default/prefill-1", "prefill"
			x.Trace.Stages = append(x.Trace.Stages, epp.StageTrace{Stage: "prefill", Profile: "prefill", Candidates: prefill})
		}
		return x
	}
	return []Why{
		{"Why was request 2 local?", 2, explain("local", pd.BelowThreshold, 48, 0)},
		{"Why was request 3 remote?", 3, explain("remote", pd.Uncached, 1530, 0)},
		{"Why was request 17 local, although its prompt is long?", 17, explain("local", pd.BelowThreshold, 1560, 1472)},
	}
}
