package handler

import (
	"cmp"
	"math"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/plugin/param"
	"github.com/tandem-serving/tandem/pd"
)

// CostPDDecider chooses between local and remote prefill by what each is expected to cost: the time to the first token, and the time by
// which tokens of other answers of the decode pod are delayed, as far as they then come near or beyond what clients want. It learns
// these times from how long requests took on each pod, so it needs Tandem's sidecar there; until then it goes by a usual GPU.
type CostPDDecider struct {
	// TTFTMs is the wanted time to first token, in milliseconds, of requests that do not name one by x-llm-d-slo-ttft-ms. Default 2000.
	TTFTMs float64 `yaml:"ttftMs"`
	// TPOTMs is the wanted time for each further token, in milliseconds, of requests that do not name one by x-llm-d-slo-tpot-ms.
	// Default 50.
	TPOTMs float64 `yaml:"tpotMs"`
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
}

// NewCostPDDecider returns the parameters with their defaults.
func NewCostPDDecider() epp.Plugin { return &CostPDDecider{TTFTMs: 2000, TPOTMs: 50} }

// longestGoal bounds wanted times.
const longestGoal = time.Hour

// Problems implements epp.Plugin.
func (p *CostPDDecider) Problems(report epp.Report) { goals{p.TTFTMs, p.TPOTMs}.problems(report) }

// goals are wanted times, in milliseconds: to the first token, and for each further one.
type goals struct{ ttft, tpot float64 }

func (g goals) problems(report epp.Report) {
	for _, goal := range []struct {
		field string
		ms    float64
	}{{"ttftMs", g.ttft}, {"tpotMs", g.tpot}} {
		if !(goal.ms > 0 && goal.ms <= float64(longestGoal/time.Millisecond)) {
			report(goal.field, "must be more than 0 and at most an hour in milliseconds, got %v", goal.ms)
		}
	}
}

// References implements epp.Referrer.
func (p *CostPDDecider) References() map[string]string {
	return param.References("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
}

// Build implements epp.Plugin.
func (p *CostPDDecider) Build(b *epp.Builder) (any, error) {
	matcher, err := param.Matcher(b, p.PrefixMatchInfoProducerName)
	if err != nil {
		return nil, err
	}
	return &byCost{TTFTMs: p.TTFTMs, TPOTMs: p.TPOTMs, matcher: matcher, model: latency.Of(b)}, nil
}

// byCost is the epp.Comparer that goes by costs. Explanations show its exported fields.
type byCost struct {
	TTFTMs  float64 `json:"ttftMs"`
	TPOTMs  float64 `json:"tpotMs"`
	matcher epp.Matcher
	model   *latency.Model
}

// Reads implements epp.CacheReader.
func (d *byCost) Reads() epp.Matcher { return d.matcher }

// Compares implements epp.Comparer.
func (d *byCost) Compares() {}

// Decide implements epp.Decider.
func (d *byCost) Decide(a *epp.Alternatives) epp.Ruling {
	if len(a.Local) == 0 {
		return epp.Ruling{Verdict: pd.Local, Reason: pd.LowerCost}
	}
	ttft := goal(a.Request.WantedTTFT(), d.TTFTMs)
	tpot := goal(a.Request.WantedTPOT(), d.TPOTMs)
	local := d.local(a, ttft, tpot)
	if len(a.Remote) == 0 {
		// No prefill endpoint is available, or all are full. Unless decode can do it in time, the scheduler goes by what is configured
		// for that.
		r := epp.Ruling{Verdict: pd.Remote, Reason: pd.LowerCost, Costs: []epp.Cost{local}}
		if local.Time+local.Harm < ttft {
			r.Verdict = pd.Local
		}
		return r
	}
	remote := d.remote(a)
	r := epp.Ruling{Verdict: pd.Local, Reason: pd.LowerCost, Costs: []epp.Cost{local, remote}}
	if remote.Time+remote.Harm < local.Time+local.Harm {
		r.Verdict = pd.Remote
	}
	return r
}

// local returns what it costs that the decode endpoint computes the prompt: its answers pause meanwhile, and the requests that wait there
// wait longer.
func (d *byCost) local(a *epp.Alternatives, ttft, tpot time.Duration) epp.Cost {
	decode := &a.Local[0]
	prompt := d.model.Prompt(decode, a.Tokens, a.Cached, a.Loads)
	own := max(1, a.Tokens-a.Cached) // engines compute the last token of a prompt even if all of it is cached
	with, without := d.model.Token(decode, a.Tokens, own).Time, d.model.Token(decode, a.Tokens, 0).Time
	answers, _ := decode.Running()
	late := float64(ttft) * (answers + 1) * (excess(with, tpot) - excess(without, tpot))
	longer := behind * d.model.Queue(decode) * float64(prompt.Own)
	return epp.Cost{Verdict: pd.Local, Endpoint: decode.Endpoint, Time: prompt.Time, Harm: time.Duration(late + longer)}
}

// remote returns what it costs that the best prefill endpoint computes it: the requests there wait longer.
func (d *byCost) remote(a *epp.Alternatives) epp.Cost {
	decode, prefill := &a.Local[0], &a.Remote[0]
	found := a.Found(d.matcher)
	prompt := d.model.Prompt(prefill, a.Tokens, min(a.Tokens, found.Of(prefill)), found.LoadsOf(prefill))
	handoff := d.model.Handoff(prefill, decode, a.Moved())
	return epp.Cost{Verdict: pd.Remote, Endpoint: prefill.Endpoint, Time: prompt.Time + handoff.Time,
		Harm: time.Duration(float64(prefill.InFlight.Requests) * float64(prompt.Own))}
}

// behind is how many requests a prompt on a decode endpoint delays for each one that waits there: all that come until nothing waits any
// more, which takes long where answers are long and the endpoint is nearly full. In replays of nine workloads 16 to 64 were equally good
// for most, 64 for those with the shortest prompts, and 256 sent too many to prefill.
const behind = 64

// steepness is how sharply harm begins where tokens take as long as clients want: at half of that it is 0.4 % of the wanted time to first
// token for each answer, at 0.8 17 %, at 1.1 180 %.
const steepness = 8

// excess returns how much the client of an answer minds that tokens take so long: at what it wants, 1. Beyond that it is a line, lest
// one more prompt costs nothing where all are late.
func excess(takes, wanted time.Duration) float64 {
	if x := float64(takes) / float64(wanted); x > 1 {
		return 1 + steepness*(x-1)
	} else {
		return math.Pow(x, steepness)
	}
}

// goal returns what a client wants, or else the usual time, in milliseconds.
func goal(wanted time.Duration, usual float64) time.Duration {
	return cmp.Or(wanted, time.Duration(usual*float64(time.Millisecond)))
}
