package load

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/client"
	"github.com/tandem-serving/tandem/pd"
)

// result summarizes what was measured.
func (t *trial) result() *Result {
	s := t.settings
	r := &Result{Schema: Schema, Version: boot.ReadVersion().String(), Started: t.started.UTC(), Seconds: time.Since(t.started).Seconds(),
		Interrupted: t.interrupted, Load: s.describe(), ClientWait: t.waits.p99(), Notes: t.notes}
	if len(s.Judge.SLO) > 0 {
		r.Objective = s.Judge.SLO.milliseconds()
	}
	for _, p := range t.points {
		shown := PointResult{InputTokens: p.input, PickerCount: p.pickerCount()}
		for i, side := range t.sides {
			shown.Sides = append(shown.Sides, side.summarize(p.rounds[i], s.Judge.SLO))
			if !s.isOpen() {
				shown.Sides[i].Late = nil // a closed loop has no times to be late for
			}
		}
		if len(t.sides) == 2 {
			shown.Comparison = compare(&shown.Sides[0], &shown.Sides[1])
		}
		r.Points = append(r.Points, shown)
	}
	if len(s.Compare.Sweep) > 0 {
		r.Sweep = t.sweep(r.Points)
	}
	r.Notes = append(r.Notes, r.warnings()...)
	return r
}

// describe returns the load that was asked for.
func (s *settings) describe() LoadResult {
	bound := s.Load.bound()
	l := LoadResult{API: s.Target.API, Stream: s.Target.Stream, Open: s.isOpen(), Rounds: s.rounds(), Requests: bound.Requests,
		Duration: bound.Span.Seconds(), Warmup: s.Load.Warmup, Seed: s.Load.Seed}
	if s.isOpen() {
		l.Rate, l.Arrivals, l.InFlight = s.Load.Rate, s.Load.Arrivals, s.Load.InFlight
	} else {
		l.Concurrency = s.concurrency()
	}
	if s.Prompts.Trace != "" {
		l.Trace, l.TraceSpeed, l.TraceTokens = s.Prompts.Trace, s.Prompts.Speed, s.Prompts.Scale
		if l.Open {
			l.Arrivals = "trace"
		}
		return l
	}
	l.InputTokens, l.OutputTokens, l.SharedPrefix = s.Prompts.Input.String(), s.Prompts.Output.String(), s.Prompts.Share
	if len(s.Compare.Sweep) > 0 {
		l.InputTokens = ""
	}
	return l
}

// pickerCount returns the mean prompt in units of four bytes.
func (p *point) pickerCount() int {
	bytes, sent := 0, 0
	for _, rounds := range p.rounds {
		for _, r := range rounds {
			bytes += r.bytes
			for i := range r.samples {
				if r.samples[i].sent() {
					sent++
				}
			}
		}
	}
	return int(math.Round(float64(bytes) / 4 / float64(max(1, sent))))
}

// tally collects the values of samples.
type tally struct {
	requests, answered, failed, unsent, met int

	ttft, itl, tpot, e2e, late []float64 // ms
	input, cached, output      []float64 // tokens
	counted                    bool
	events                     int

	failures  []FailureCount
	decisions []DecisionCount
	phases    map[string][]float64
}

func newTally(samples []sample, slo objective, whole bool) *tally {
	t := &tally{counted: true, phases: map[string][]float64{}}
	for i := range samples {
		t.add(&samples[i], slo, whole)
	}
	return t
}

// add counts a sample. Of an interrupted round, requests that were cut off or not begun are as if they had not been asked for.
func (t *tally) add(s *sample, slo objective, whole bool) {
	cut := !s.sent() || s.answer.Failure != nil && s.answer.Failure.Reason == client.ReasonCancelled
	if cut && !whole {
		return
	}
	t.requests++
	if slo.meets(s) {
		t.met++
	}
	if !s.sent() {
		t.unsent++
		return
	}
	t.late = append(t.late, ms(max(0, s.lateness())))
	if d := s.answer.Decision; d != nil {
		t.decided(d)
	}
	if f := s.answer.Failure; f != nil {
		t.failed++
		t.fail(f)
		return
	}
	t.answered++
	t.measure(s)
}

// measure adds the times and tokens of an answer.
func (t *tally) measure(s *sample) {
	a := s.answer
	t.e2e = append(t.e2e, ms(s.e2e()))
	if !a.First.IsZero() {
		t.ttft = append(t.ttft, ms(s.ttft()))
	}
	if tpot, ok := s.tpot(); ok {
		t.tpot = append(t.tpot, ms(tpot))
	}
	for _, gap := range a.Gaps {
		t.itl = append(t.itl, ms(gap))
	}
	n, counted := a.Tokens()
	t.counted = t.counted && counted
	t.events += a.Events
	t.output = append(t.output, float64(n))
	if a.Prompt >= 0 {
		t.input = append(t.input, float64(a.Prompt))
	}
	if a.Cached >= 0 {
		t.cached = append(t.cached, float64(a.Cached))
	}
	for name, took := range phasesOf(a) {
		t.phases[name] = append(t.phases[name], took)
	}
}

// phasesOf returns the phases that Tandem reported, in ms; nil if it reported none.
func phasesOf(a *client.Answer) (all map[string]float64) {
	for ph := range pd.PhaseOverlap + 1 {
		if took, ok := a.Phases.Get(ph); ok {
			if all == nil {
				all = map[string]float64{}
			}
			all[ph.String()] = ms(took)
		}
	}
	return all
}

func (t *tally) fail(f *client.Failure) {
	i := slices.IndexFunc(t.failures, func(c FailureCount) bool { return c.Status == f.Status && c.Reason == f.Reason })
	if i < 0 {
		i = len(t.failures)
		t.failures = append(t.failures, FailureCount{Status: f.Status, Reason: f.Reason, Example: f.Message})
	}
	t.failures[i].Count++
}

func (t *tally) decided(d *pd.Result) {
	i := slices.IndexFunc(t.decisions, func(c DecisionCount) bool {
		return c.Decision == d.Verdict.String() && c.Reason == string(d.Reason)
	})
	if i < 0 {
		i = len(t.decisions)
		t.decisions = append(t.decisions, DecisionCount{Decision: d.Verdict.String(), Reason: string(d.Reason)})
	}
	t.decisions[i].Count++
}

// summarize returns what was measured of a side in its rounds.
func (s *side) summarize(rounds []*round, slo objective) SideResult {
	all := &tally{counted: true, phases: map[string][]float64{}}
	out := SideResult{Name: s.name, URL: s.url, Model: s.endpoint.Model(), Mode: s.mode, GPUs: s.gpus, Rounds: []RoundResult{}}
	for _, r := range rounds {
		for i := range r.samples {
			all.add(&r.samples[i], slo, r.whole)
		}
		out.Seconds += r.took.Seconds()
		if r.whole {
			out.Rounds = append(out.Rounds, r.result(slo, s.gpus))
		}
	}
	out.Requests, out.Answered, out.Failed, out.Unsent = all.requests, all.answered, all.failed, all.unsent
	out.TTFT, out.ITL, out.TPOT, out.E2E = distribution(all.ttft), distribution(all.itl), distribution(all.tpot), distribution(all.e2e)
	out.Late, out.Input, out.Cached, out.Output = distribution(all.late), distribution(all.input), distribution(all.cached), distribution(all.output)
	out.ttft, out.itl, out.e2e = all.ttft, all.itl, all.e2e
	out.TokensCounted = all.counted && all.answered > 0
	if all.events > 0 {
		out.EventTokens = sum(all.output) / float64(all.events)
	}
	slices.SortFunc(all.failures, func(a, b FailureCount) int { return cmp.Compare(b.Count, a.Count) })
	slices.SortFunc(all.decisions, func(a, b DecisionCount) int { return cmp.Compare(b.Count, a.Count) })
	out.Failures, out.Decisions = all.failures, all.decisions
	if len(all.phases) > 0 {
		out.Phases = map[string]*Distribution{}
		for name, values := range all.phases {
			out.Phases[name] = distribution(values)
		}
	}
	out.rates(all, slo)
	return out
}

// rates fills in throughput and goodput.
func (r *SideResult) rates(t *tally, slo objective) {
	if r.Seconds == 0 {
		return
	}
	r.RequestRate, r.InputRate, r.OutputRate = float64(t.answered)/r.Seconds, sum(t.input)/r.Seconds, sum(t.output)/r.Seconds
	if len(slo) > 0 {
		r.Objective = &ObjectiveResult{Met: t.met, Percent: 100 * float64(t.met) / float64(max(1, t.requests)), Goodput: float64(t.met) / r.Seconds}
	}
	if r.GPUs == 0 {
		return
	}
	each := 1 / float64(r.GPUs)
	r.PerGPU = &PerGPU{RequestRate: r.RequestRate * each, OutputRate: r.OutputRate * each}
	if r.Objective != nil {
		goodput := r.Objective.Goodput * each
		r.PerGPU.Goodput = &goodput
	}
}

func sum(values []float64) (s float64) {
	for _, v := range values {
		s += v
	}
	return s
}

func (r *round) result(slo objective, gpus int) RoundResult {
	figures := r.figures(slo, gpus)
	t := newTally(r.samples, slo, r.whole)
	return RoundResult{Number: r.number, Order: r.order, Answered: t.answered, Seconds: r.took.Seconds(), Figures: figures}
}

// figures returns the metrics of one round, without those that its requests cannot support.
func (r *round) figures(slo objective, gpus int) map[string]float64 {
	t := newTally(r.samples, slo, r.whole)
	all := map[string]float64{}
	for name, values := range map[string][]float64{"ttft": t.ttft, "itl": t.itl, "tpot": t.tpot, "e2e": t.e2e} {
		d := distribution(values)
		if d == nil {
			continue
		}
		for p, v := range map[string]*float64{"p50": d.P50, "p95": d.P95, "p99": d.P99} {
			if v != nil {
				all[fmt.Sprintf("%s_%s_ms", name, p)] = *v
			}
		}
	}
	if t.requests > 0 {
		all["failed_percent"] = 100 * float64(t.failed+t.unsent) / float64(t.requests)
	}
	seconds := r.took.Seconds()
	if seconds == 0 {
		return all
	}
	all["output_tokens_per_s"] = sum(t.output) / seconds
	if len(slo) > 0 {
		all["goodput_per_s"] = float64(t.met) / seconds
	}
	if gpus > 0 {
		for _, name := range []string{"output_tokens_per_s", "goodput_per_s"} {
			if v, ok := all[name]; ok {
				all[name+"_per_gpu"] = v / float64(gpus)
			}
		}
	}
	return all
}
