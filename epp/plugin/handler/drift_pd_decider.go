package handler

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/plugin/param"
	"github.com/tandem-serving/tandem/pd"
)

// DriftPDDecider chooses between local and remote prefill by the rule that llm-d's simulator BLIS studies as EDPP, a drift-plus-penalty rule of
// Lyapunov optimization. It is here to be compared with: see cost-pd-decider. Two deficits grow with each answer whose first token, or whose
// further tokens, take longer than wanted, and shrink with each that takes less. Of a request, both ways have a sum of four terms, in units of
// the wanted times, and the lower one is taken: the work that the endpoint has to do, of prompts and of answers, times that of the prompt; the
// deficits times the expected times; and for remote prefill the transfer. Times are those of predicted-latency-producer, where the study has
// coefficients that are measured before, and answers are taken to be half done, and as long as the latest ones.
type DriftPDDecider struct {
	// TTFTMs is the wanted time to first token, in milliseconds. Default 2000.
	TTFTMs float64 `yaml:"ttftMs"`
	// TPOTMs is the wanted time for each further token, in milliseconds. Default 50.
	TPOTMs float64 `yaml:"tpotMs"`
	// TransferWeight is the weight of the time that the transfer takes, as a share of ttftMs. Default 1.
	TransferWeight float64 `yaml:"transferWeight"`
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
}

// NewDriftPDDecider returns the parameters with their defaults.
func NewDriftPDDecider() epp.Plugin {
	return &DriftPDDecider{TTFTMs: 2000, TPOTMs: 50, TransferWeight: 1}
}

// Problems implements epp.Plugin.
func (p *DriftPDDecider) Problems(report epp.Report) {
	goals{p.TTFTMs, p.TPOTMs}.problems(report)
	if !(p.TransferWeight >= 0 && p.TransferWeight <= 1e6) {
		report("transferWeight", "must be from 0 to 1000000, got %v", p.TransferWeight)
	}
}

// References implements epp.Referrer.
func (p *DriftPDDecider) References() map[string]string {
	return param.References("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
}

// Build implements epp.Plugin.
func (p *DriftPDDecider) Build(b *epp.Builder) (any, error) {
	matcher, err := param.Matcher(b, p.PrefixMatchInfoProducerName)
	if err != nil {
		return nil, err
	}
	return &byDrift{TTFTMs: p.TTFTMs, TPOTMs: p.TPOTMs, TransferWeight: p.TransferWeight, matcher: matcher, model: latency.Of(b)}, nil
}

// byDrift is the epp.Comparer that goes by drift plus penalty. Explanations show its exported fields.
type byDrift struct {
	TTFTMs         float64 `json:"ttftMs"`
	TPOTMs         float64 `json:"tpotMs"`
	TransferWeight float64 `json:"transferWeight"`
	matcher        epp.Matcher
	model          *latency.Model
	late, slow     deficit // of first tokens, and of further ones
	length         mean    // of answers, in tokens
}

// deficit is a virtual queue: how much longer than wanted the latest answers took, in units of what is wanted.
type deficit struct{ bits atomic.Uint64 }

// mostDeficit bounds a deficit, so that it is paid back by some hundred answers once they are as fast as wanted.
const mostDeficit = 100

func (d *deficit) value() float64 { return math.Float64frombits(d.bits.Load()) }

// add notes how long an answer took, as a share of what is wanted. It is for one goroutine at a time.
func (d *deficit) add(took float64) {
	d.bits.Store(math.Float64bits(max(0, min(d.value()+took-1, mostDeficit))))
}

// mean is that of the latest values. The zero value is 0.
type mean struct{ bits atomic.Uint64 }

// latest is how many values count in a mean, about.
const latest = 100

func (m *mean) value() float64 { return math.Float64frombits(m.bits.Load()) }

// add adds a value. It is for one goroutine at a time.
func (m *mean) add(v float64) {
	if old := m.value(); old > 0 {
		v = old + (v-old)/latest
	}
	m.bits.Store(math.Float64bits(v))
}

// Reads implements epp.CacheReader.
func (d *byDrift) Reads() epp.Matcher { return d.matcher }

// Compares implements epp.Comparer.
func (d *byDrift) Compares() {}

// Decide implements epp.Decider.
func (d *byDrift) Decide(a *epp.Alternatives) epp.Ruling {
	r := epp.Ruling{Verdict: pd.Local, Reason: pd.LowerCost}
	if len(a.Local) == 0 {
		return r
	}
	decode := &a.Local[0]
	prompt := d.model.Prompt(decode, a.Tokens, a.Cached, a.Loads)
	with, without := d.model.Token(decode, a.Tokens, a.Tokens-a.Cached).Time, d.model.Token(decode, a.Tokens, 0).Time
	local := d.sum(&prompt, d.answers(decode, without), prompt.Time, with)
	r.Costs = []epp.Cost{{Verdict: pd.Local, Endpoint: decode.Endpoint, Time: prompt.Time}}
	if len(a.Remote) == 0 {
		r.Verdict = pd.Remote // what is configured for pools without prefill counts
		return r
	}
	prefill := &a.Remote[0]
	found := a.Found(d.matcher)
	prompt = d.model.Prompt(prefill, a.Tokens, min(a.Tokens, found.Of(prefill)), found.LoadsOf(prefill))
	handoff := d.model.Handoff(prefill, decode, a.Moved()).Time
	remote := d.sum(&prompt, 0, prompt.Time+handoff, without) + d.TransferWeight*d.ofTTFT(handoff)
	r.Costs = append(r.Costs, epp.Cost{Verdict: pd.Remote, Endpoint: prefill.Endpoint, Time: prompt.Time + handoff})
	if remote < local {
		r.Verdict = pd.Remote
	}
	return r
}

// answers returns how long an endpoint takes for the rest of the answers that it generates, of whose tokens each takes so long.
func (d *byDrift) answers(decode *epp.Candidate, further time.Duration) time.Duration {
	if running, _ := decode.Running(); running == 0 {
		return 0
	}
	return time.Duration(d.length.value() / 2 * float64(further))
}

// sum returns the terms of one way but for the transfer, given the estimate of its endpoint, what answers that has to generate, and the times
// of first and further tokens.
func (d *byDrift) sum(prompt *latency.Estimate, answers, first, further time.Duration) float64 {
	waiting := max(0, prompt.Time-prompt.Own) + answers
	return d.ofTTFT(waiting)*d.ofTTFT(prompt.Own) + d.late.value()*d.ofTTFT(first) + d.slow.value()*float64(further)/(d.TPOTMs*float64(time.Millisecond))
}

func (d *byDrift) ofTTFT(t time.Duration) float64 {
	return float64(t) / (d.TTFTMs * float64(time.Millisecond))
}

// Observe implements epp.Observer.
func (d *byDrift) Observe(o *epp.Outcome) {
	if o.Decision == nil || o.Phases == nil || o.Result == nil || o.Result.End != pd.EndDone {
		return
	}
	if first, ok := o.Phases.Get(pd.PhaseFirst); ok {
		for _, before := range []pd.Phase{pd.PhasePrefill, pd.PhaseHandoff} {
			took, _ := o.Phases.Get(before)
			first += took
		}
		overlap, _ := o.Phases.Get(pd.PhaseOverlap)
		d.late.add(d.ofTTFT(max(0, first-overlap)))
	}
	if took, ok := o.Phases.Get(pd.PhaseDecode); ok && o.Result.Completion > 1 {
		d.length.add(float64(o.Result.Completion))
		d.slow.add(float64(took) / float64(o.Result.Completion-1) / (d.TPOTMs * float64(time.Millisecond)))
	}
}
