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
	// JointPick: the decider also chooses the pair, of the endpoints that the filters leave. Default true. With false decode and prefill are
	// those that the scorers prefer.
	JointPick bool `yaml:"jointPick"`
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
}

// NewCostPDDecider returns the parameters with their defaults.
func NewCostPDDecider() epp.Plugin { return &CostPDDecider{TTFTMs: 2000, TPOTMs: 50, JointPick: true} }

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
	return &byCost{TTFTMs: p.TTFTMs, TPOTMs: p.TPOTMs, matcher: matcher, model: latency.Of(b), joint: p.JointPick}, nil
}

// byCost is the epp.Comparer that goes by costs. Explanations show its exported fields.
type byCost struct {
	TTFTMs  float64 `json:"ttftMs"`
	TPOTMs  float64 `json:"tpotMs"`
	matcher epp.Matcher
	model   *latency.Model
	joint   bool
}

// Pairs implements epp.Pairer.
func (d *byCost) Pairs() bool { return d.joint }

// Reads implements epp.CacheReader.
func (d *byCost) Reads() epp.Matcher { return d.matcher }

// Compares implements epp.Comparer.
func (d *byCost) Compares() {}

// Decide implements epp.Decider. It takes the decode endpoint that the scorers prefer or, if it may choose, one that has no more to do, and the
// prefill endpoint that costs least with it.
func (d *byCost) Decide(a *epp.Alternatives) epp.Ruling {
	r := epp.Ruling{Verdict: pd.Local, Reason: pd.LowerCost}
	if len(a.Local) == 0 {
		return r
	}
	ttft, tpot := goal(a.Request.WantedTTFT(), d.TTFTMs), goal(a.Request.WantedTPOT(), d.TPOTMs)
	decodes, prefills := a.Local, a.Remote
	if !a.Pairs {
		decodes, prefills = decodes[:1], prefills[:min(1, len(prefills))]
	}
	found := a.Found(d.matcher)
	prompts := d.prompts(a, prefills, found, ttft, tpot)
	var local, remote ruled
	for i := range decodes {
		decode := &decodes[i]
		if i > 0 && !noBusier(decode, &decodes[0]) {
			continue
		}
		x := answer{Candidate: decode, cached: a.Cached, loads: a.Loads}
		if i > 0 {
			x.cached, x.loads = min(a.Tokens, found.Of(decode)), found.LoadsOf(decode)
		}
		x.harm = d.crowding(a, &x, ttft, tpot) + d.pushedOut(a, &x)
		x.handoff = d.model.Receiver(a.Now, decode, a.Tokens, x.cached, x.loads)
		local.lower(d.local(a, &x, ttft, tpot), i, 0)
		for j := range prefills {
			if prefill := &prefills[j]; decode.Reads(prefill) {
				remote.lower(x.remote(prefill, &prompts[j]), i, j)
			}
		}
	}
	r.Local, r.Costs = local.decode, []epp.Cost{local.cost}
	switch {
	case remote.any:
		r.Costs = append(r.Costs, remote.cost)
		if remote.cost.Total() < local.cost.Total() {
			r.Verdict, r.Local, r.Remote = pd.Remote, remote.decode, remote.prefill
		}
	case local.cost.Total() >= ttft:
		// No prefill endpoint is available, or all are full. Unless decode can do it in time, the scheduler goes by what is configured
		// for that.
		r.Verdict = pd.Remote
	}
	return r
}

// ruled is the best of the alternatives with one verdict.
type ruled struct {
	any             bool
	cost            epp.Cost
	decode, prefill int // indices of its endpoints
}

// lower takes an alternative that costs less.
func (r *ruled) lower(c epp.Cost, decode, prefill int) {
	if !r.any || c.Total() < r.cost.Total() {
		*r = ruled{true, c, decode, prefill}
	}
}

// answer is a decode endpoint that may generate the answer.
type answer struct {
	*epp.Candidate
	cached  int
	loads   epp.Loads
	harm    time.Duration // wherever the prompt is computed
	handoff latency.Receiver
}

// noBusier reports whether a decode endpoint has no more to do than another in any respect: what an answer occupies until it ends delays
// requests to come, which no cost of this one shows. Of the KV cache a hundredth is no difference.
func noBusier(c, than *epp.Candidate) bool {
	used, _ := c.Value(epp.KVUsage)
	theirs, _ := than.Value(epp.KVUsage)
	if used > theirs+0.01 {
		return false
	}
	waiting, _ := c.Value(epp.Waiting)
	theirs, _ = than.Value(epp.Waiting)
	if waiting > theirs {
		return false
	}
	running, _ := c.Running()
	theirs, _ = than.Running()
	return running <= theirs
}

// crowding returns what it costs the answers of a decode endpoint that it generates one more.
func (d *byCost) crowding(a *epp.Alternatives, x *answer, ttft, tpot time.Duration) time.Duration {
	now, more := d.model.Steps(x.Candidate, a.Tokens)
	answers, _ := x.Running()
	return time.Duration(float64(ttft) * ((answers+1)*excess(more, tpot) - answers*excess(now, tpot)))
}

// again is how often a part of a prompt is computed anew, by requests to come, that must make way for one that another endpoint has cached.
// In replays of workloads with shared beginnings, 0 lost a fifth of the goodput above the capacity, because every decode endpoint came to
// hold every beginning; with 4 nothing was lost there, but as much on a mixture of experts, which computes prompts fast and holds as few. From 64 on
// nothing is.
const again = 64

// pushedOut returns what it costs that a decode endpoint stores tokens that the scorers' choice has cached: in its cache they take the place of
// others.
func (d *byCost) pushedOut(a *epp.Alternatives, x *answer) time.Duration {
	if x.cached >= a.Cached {
		return 0
	}
	return again * (d.model.Prompt(x.Candidate, a.Tokens, x.cached, x.loads).Own - d.model.Prompt(x.Candidate, a.Tokens, a.Cached, x.loads).Own)
}

// local returns what it costs that the decode endpoint computes the prompt: its answers pause meanwhile, and the requests that wait there
// wait longer.
func (d *byCost) local(a *epp.Alternatives, x *answer, ttft, tpot time.Duration) epp.Cost {
	own := max(1, a.Tokens-x.cached) // engines compute the last token of a prompt even if all of it is cached
	answers, _ := x.Running()
	late := d.pause(x.Candidate, a.Tokens, own, answers+1, ttft, tpot)
	longer := behind * d.model.Queue(x.Candidate) * float64(d.model.Prompt(x.Candidate, a.Tokens, x.cached, x.loads).Own)
	return epp.Cost{Verdict: pd.Local, Endpoint: x.Endpoint, Time: d.model.Predict(a.Now, x.Candidate, a.Tokens, x.cached, x.loads).TTFT.P50,
		Harm: x.harm + time.Duration(late+longer)}
}

// pause returns what it costs, in nanoseconds, that so many answers of an endpoint pause while it computes own tokens. With tokens it generates one more answer, to
// a prompt of so many.
func (d *byCost) pause(c *epp.Candidate, tokens, own int, answers float64, ttft, tpot time.Duration) float64 {
	with, without := d.model.Token(c, tokens, own).Time, d.model.Token(c, tokens, 0).Time
	return float64(ttft) * answers * (excess(with, tpot) - excess(without, tpot))
}

// prompts returns what it costs that prefill endpoints compute the prompt: the requests there wait longer, and the answers pause of one that generates
// any.
func (d *byCost) prompts(a *epp.Alternatives, prefills []epp.Candidate, found epp.Matches, ttft, tpot time.Duration) (all [pd.MaxTargets]epp.Cost) {
	for i := range prefills {
		c := &prefills[i]
		cached, loads := min(a.Tokens, found.Of(c)), found.LoadsOf(c)
		all[i] = epp.Cost{Time: d.model.Predict(a.Now, c, a.Tokens, cached, loads).TTFT.P50,
			Harm: time.Duration(latency.Computing(c.Load, c.InFlight) * float64(d.model.Prompt(c, a.Tokens, cached, loads).Own))}
		if c.Role.Has(pd.RoleDecode) {
			answers, _ := c.Running()
			all[i].Harm += time.Duration(d.pause(c, 0, max(1, a.Tokens-cached), answers, ttft, tpot))
		}
	}
	return all
}

// remote returns what it costs that a prefill endpoint computes the prompt, where that has its cost, and hands it over.
func (x *answer) remote(prefill *epp.Candidate, prompt *epp.Cost) epp.Cost {
	return epp.Cost{Verdict: pd.Remote, Endpoint: prefill.Endpoint, Time: prompt.Time + x.handoff.From(prefill.Endpoint).P50, Harm: x.harm + prompt.Harm}
}

// behind is how many requests a prompt on a decode endpoint delays for each one that waits there: all that come until nothing waits any
// more, which takes long where answers are long and the endpoint is nearly full. In replays of nine workloads 16 to 64 were equally good
// for most, 64 for those with the shortest prompts, and 256 sent too many to prefill.
const behind = 64

// steepness is how sharply harm begins where tokens take as long as clients want: at half of that it is 0.4 % of the wanted time to first
// token for each answer, at 0.8 17 %, at 1.1 180 %.
const steepness = 8

// hopeless is from how many times as long as wanted on tokens are so late that the client will not have what it wants. Then it minds a delay as if its
// answer had as many tokens left as come in the wanted time to first token. With the steep line everywhere, engines that cannot reach the goal
// send nearly every prompt to prefill, whose queue grows: of code completions on an engine with twice the wanted time of tokens, first tokens took
// 11.2 s at the median, and 6.7 s with 1.25; the regret of the nine workloads of the replay report does not change.
const hopeless = 1.25

// excess returns how much the client of an answer minds that tokens take so long: at what it wants, 1. Beyond that they are two lines, lest
// one more prompt costs nothing where all are late.
func excess(takes, wanted time.Duration) float64 {
	switch x := float64(takes) / float64(wanted); {
	case x > hopeless:
		return 1 + steepness*(hopeless-1) + x - hopeless
	case x > 1:
		return 1 + steepness*(x-1)
	default:
		return math.Pow(x, steepness)
	}
}

// goal returns what a client wants, or else the usual time, in milliseconds.
func goal(wanted time.Duration, usual float64) time.Duration {
	return cmp.Or(wanted, time.Duration(usual*float64(time.Millisecond)))
}
