package scale

import (
	"math"
	"sort"
	"time"

	"github.com/tandem-serving/tandem/epp/latency"
)

// Load is what requests ask of a pool.
type Load struct {
	Rate    float64 // requests in a second
	Burst   float64 // variance of the requests in an interval, as a multiple of their mean: 1 for independent arrivals
	Prompts []Prompts
	Prompt  float64 // mean tokens of a prompt, with those that are cached
	Answer  float64 // mean tokens of an answer
	// Tokens are those of answers that are generated in a second. It counts if it is more than the rate and the answers say: long answers that
	// have not ended are known by it.
	Tokens float64
	// Chosen says that the decider compares costs, so that the split follows the sizes.
	Chosen bool
}

// Prompts are those of about one length.
type Prompts struct {
	Share  float64 // of the requests, 0..1
	Tokens float64 // of one prompt that are computed; the others are cached
	Remote float64 // share of these prompts that prefill replicas computed
}

// Objective is what requests are to get.
type Objective struct {
	TTFT, TPOT time.Duration // to the first token, and for each further one
	Share      float64       // of the requests that are to get it, more than 0 and less than 1
}

// Engines are the replicas of both roles, as far as they are known. A replica with several data-parallel ranks counts as that many.
type Engines struct {
	Prefill, Decode latency.Rates
	KVTokens        float64 // that fit into the KV cache of one decode replica; 0: not known, so it is taken to suffice
	// Costs of one engine of each role, in any unit: they weigh roles against each other where the split can be chosen.
	PrefillCost, DecodeCost float64
	NoPrefill               bool // there are no prefill replicas, and there may be none
}

// Needed is how many replicas a load needs, without limits.
type Needed struct {
	Prefill, Decode int
	// Split is which prompts are taken to go to prefill where the decider chooses: those of Prompts from this index on.
	Split int
}

// mostReplicas bounds how many replicas of a role are looked for.
const mostReplicas = 1024

// fullest is the share of the KV cache that answers may fill in the wanted share of the time. Above it, engines preempt answers, or let prompts wait.
const fullest = 1

// Need returns the smallest numbers of replicas that give a load what is wanted. before is the split of the last call, which is kept unless
// another one is cheaper by a tenth. A wanted time that an idle replica does not reach either is replaced by one that it does.
func Need(l *Load, o Objective, e *Engines, before int) Needed {
	n := needs{l, o, e}
	if !l.Chosen || e.NoPrefill {
		return n.of(n.seen(), len(l.Prompts))
	}
	best, lowest := Needed{}, math.Inf(1)
	for split := range len(l.Prompts) + 1 {
		if split < len(l.Prompts) && l.Prompts[split].Share == 0 {
			continue // the same as the next one
		}
		one := n.of(n.from(split), split)
		cost := e.PrefillCost*float64(one.Prefill) + e.DecodeCost*float64(one.Decode)
		if split == before {
			cost *= 0.9
		}
		if cost < lowest {
			best, lowest = one, cost
		}
	}
	return best
}

// Bears returns how many requests in a second so many replicas give what is wanted, if requests are like those of a load and come independently
// of each other; at most mostBorne. Where the decider chooses, it is the split of the prompts with which they are the most.
func Bears(l *Load, o Objective, e *Engines, prefill, decode int) float64 {
	alike := *l
	alike.Burst, alike.Tokens = 1, 0
	n := needs{&alike, o, e}
	if !l.Chosen || e.NoPrefill {
		return n.most(n.seen(), prefill, decode, 0)
	}
	most := 0.0
	for split := range len(l.Prompts) + 1 {
		if split < len(l.Prompts) && l.Prompts[split].Share == 0 {
			continue // the same as the next one
		}
		most = max(most, n.most(n.from(split), prefill, decode, most))
	}
	return most
}

// Bounds of the rates that Bears tells apart, and how exactly, as a share of the rate.
const (
	mostBorne  = 1e6
	leastBorne = 1e-6
	borneStep  = 0.005
)

// most returns how many requests in a second so many replicas bear, given the share of each kind of prompts that goes to prefill, or 0 if not more than
// a rate that is known.
func (n *needs) most(remote []float64, prefill, decode int, known float64) float64 {
	bears := func(rate float64) bool {
		n.Rate = rate
		if decode < 1 || !n.decodes(decode, remote) {
			return false
		}
		if n.rate(remote) == 0 {
			return true
		}
		return prefill > 0 && inTime(prefill, []sent{{n, remote, n.at(decode, remote).answers, n.mayBeLate(decode, remote)}})
	}
	low, high := known, max(1, 2*known)
	if known > 0 && !bears(known*(1+borneStep)) {
		return 0
	}
	for high < mostBorne && bears(high) {
		low, high = high, 2*high
	}
	for high > leastBorne && high-low > borneStep*high {
		if middle := (low + high) / 2; bears(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

type needs struct {
	*Load
	Objective
	*Engines
}

// seen returns the share of each kind of prompts that goes to prefill as it was seen.
func (n *needs) seen() []float64 {
	remote := make([]float64, len(n.Prompts))
	if !n.NoPrefill {
		for i := range remote {
			remote[i] = n.Prompts[i].Remote
		}
	}
	return remote
}

// from returns it if all prompts from an index on go there.
func (n *needs) from(split int) []float64 {
	remote := make([]float64, len(n.Prompts))
	for i := split; i < len(remote); i++ {
		remote[i] = 1
	}
	return remote
}

func (n *needs) of(remote []float64, split int) Needed {
	need := Needed{Split: split, Decode: n.decode(remote)}
	if need.Decode > 0 && n.rate(remote) > 0 {
		all := []sent{{n, remote, n.at(need.Decode, remote).answers, n.mayBeLate(need.Decode, remote)}}
		need.Prefill = smallest(func(replicas int) bool { return inTime(replicas, all) })
	}
	return need
}

// decode returns how many decode replicas suffice, given the share of each kind of prompts that goes to prefill.
func (n *needs) decode(remote []float64) int {
	if n.Rate <= 0 && n.tokens() <= 0 {
		return 0
	}
	return smallest(func(replicas int) bool { return n.decodes(replicas, remote) })
}

// smallest looks for it from 1 on, because large numbers take longer to judge.
func smallest(enough func(replicas int) bool) int {
	most := 1
	for most < mostReplicas && !enough(most) {
		most *= 2
	}
	least := most/2 + 1 // half of most is not enough
	return least + sort.Search(most-least, func(i int) bool { return enough(least + i) })
}

// tokens returns how many tokens of answers are wanted in a second.
func (n *needs) tokens() float64 { return max(n.Tokens, n.Rate*n.Answer) }

// rate returns how many prompts go somewhere in a second, given the share of each kind.
func (n *needs) rate(share []float64) (sum float64) {
	for i, p := range n.Prompts {
		sum += p.Share * share[i]
	}
	return n.Rate * sum
}

// mostMoved bounds the share of the prompts for prefill that decode computes while prefill has too many.
const mostMoved = 0.1

// mayBeLate returns the share of the prompts for prefill that may be too late there. Where the decider compares costs, such a prompt goes to decode
// instead, and is too late only if decode has too many as well.
func (n *needs) mayBeLate(decode int, remote []float64) float64 {
	late := 1 - n.Share
	if !n.Chosen {
		return late
	}
	moved := make([]float64, len(remote))
	for i := range remote {
		moved[i] = remote[i] * (1 - mostMoved)
	}
	at := n.at(decode, moved)
	if math.IsInf(at.answers, 1) || !n.fits(&at) {
		return late
	}
	wait := n.local(moved, at.answers).wait(decode, n.Burst)
	there := 0.0
	for i, p := range n.Prompts {
		own, idle := n.Decode.Prompt(p.Tokens, at.answers)
		there += p.Share * remote[i] * wait.longer(n.patience(idle, own))
	}
	there *= n.Rate / n.rate(remote) // share of those for prefill
	return max(late, min(mostMoved, late/max(there, 1e-9)))
}

// local returns the prompts that decode computes.
func (n *needs) local(remote []float64, answers float64) (q *queue) {
	q = new(queue)
	for i, p := range n.Prompts {
		own, _ := n.Decode.Prompt(p.Tokens, answers)
		q.add(n.Rate*p.Share*(1-remote[i]), own)
	}
	return q
}

// sent is the prompts that decode replicas of one kind leave to prefill replicas of one kind.
type sent struct {
	*needs              // of the decode replicas
	remote    []float64 // share of each kind of prompts
	answers   float64   // that one decode replica generates
	mayBeLate float64   // share of the prompts
}

// inTime reports whether with so many prefill replicas no more prompts than may be are too late.
func inTime(replicas int, all []sent) bool {
	var q queue
	burst := 0.0 // the mean by the rates, as variances add up
	for _, s := range all {
		before := q.rate
		for i, p := range s.Prompts {
			own, _ := s.Prefill.Prompt(p.Tokens, 0)
			q.add(s.Rate*p.Share*s.remote[i], own)
		}
		burst += s.Burst * (q.rate - before)
	}
	wait := q.wait(replicas, burst/q.rate)
	late, may := 0.0, 0.0
	for _, s := range all {
		for i, p := range s.Prompts {
			if rate := s.Rate * p.Share * s.remote[i]; rate > 0 {
				own, idle := s.Prefill.Prompt(p.Tokens, 0)
				idle += s.Decode.Handoff(p.Tokens, s.answers)
				late, may = late+rate*wait.longer(s.patience(idle, own)), may+rate*s.mayBeLate
			}
		}
	}
	return late <= may
}

// patience returns how long a prompt may wait that takes so long on an idle replica, and so long of that by its own tokens. One that cannot be in
// time may take twice its time.
func (n *needs) patience(idle, own float64) float64 {
	if left := n.TTFT.Seconds() - idle; left > own {
		return left
	}
	return own
}

// steps is how decode replicas run.
type steps struct {
	answers, most float64 // of one replica: on average, and of the wanted share of the time at most
	computes      float64 // share of the time in which it computes prompts
	prompts       float64 // that it computes in a second
}

// at returns how so many decode replicas run; answers is infinite if they are not enough for the load.
func (n *needs) at(replicas int, remote []float64) (s steps) {
	each := 1 / float64(replicas)
	for i, p := range n.Prompts {
		own, _ := n.Decode.Prompt(p.Tokens, 0)
		local := n.Rate * p.Share * (1 - remote[i]) * each
		s.prompts, s.computes = s.prompts+local, s.computes+local*own
	}
	if s.computes >= 1 {
		s.answers, s.most = math.Inf(1), math.Inf(1)
		return s
	}
	// The time of a token is (empty + x·more)/(1−computes) with x answers, and x is the tokens in a second times that.
	perSecond := n.tokens() * each / (1 - s.computes)
	empty, more := n.Decode.Token(0, 0, s.prompts), n.Decode.Token(1, n.context(), s.prompts)
	more -= empty
	if perSecond*more >= 1 {
		s.answers, s.most = math.Inf(1), math.Inf(1)
		return s
	}
	s.answers = perSecond * empty / (1 - perSecond*more)
	// How many answers run in the pool varies as arrivals do; the picker spreads them evenly.
	all := s.answers / each
	s.most = (all + quantile(n.Share)*math.Sqrt(all*max(1, n.Burst))) * each
	return s
}

// context returns the mean tokens before the token of an answer that is generated.
func (n *needs) context() float64 { return n.Prompt + n.Answer/2 }

// decodes reports whether so many decode replicas suffice.
func (n *needs) decodes(replicas int, remote []float64) bool {
	s := n.at(replicas, remote)
	return !math.IsInf(s.answers, 1) && n.fits(&s) && n.computes(replicas, remote, &s)
}

// fits reports whether the KV cache suffices for the answers, and their tokens are in time.
func (n *needs) fits(s *steps) bool {
	if n.KVTokens > 0 && s.most > 1 && s.most*n.context() > fullest*n.KVTokens {
		return false
	}
	alone := n.Decode.Token(1, n.context(), 0)
	return n.Decode.Token(s.most, s.most*n.context(), s.prompts)/(1-s.computes) <= max(n.TPOT.Seconds(), 1.5*alone)
}

// computes reports whether so many decode replicas compute the prompts in time that do not go to prefill.
func (n *needs) computes(replicas int, remote []float64, s *steps) bool {
	wait := n.local(remote, s.answers).wait(replicas, n.Burst)
	late, all := 0.0, 0.0
	for i, p := range n.Prompts {
		if weight := p.Share * (1 - remote[i]); weight > 0 {
			own, idle := n.Decode.Prompt(p.Tokens, s.answers)
			late, all = late+weight*wait.longer(n.patience(idle, own)), all+weight
		}
	}
	return late <= (1-n.Share)*all
}

// queue is a stream of work for servers, each of which does one piece at a time.
type queue struct{ rate, work, squares float64 }

// add adds pieces, of which so many come in a second, and each takes so many seconds.
func (q *queue) add(rate, seconds float64) {
	q.rate += rate
	q.work += rate * seconds
	q.squares += rate * seconds * seconds
}

// waits is the distribution of waits: a share of the pieces waits at all, exponentially distributed with this mean, in seconds.
type waits struct{ share, mean float64 }

// wait returns how long pieces wait for one of some servers.
func (q *queue) wait(servers int, burst float64) waits {
	idle := 1 - q.work/float64(servers)
	if idle <= 0 {
		return waits{1, math.Inf(1)}
	}
	if q.work == 0 {
		return waits{}
	}
	blocked := 1.0 // Erlang B, by its recursion
	for i := 1; i <= servers; i++ {
		blocked = q.work * blocked / (float64(i) + q.work*blocked)
	}
	mean := q.work / q.rate
	varies := q.squares/q.rate/(mean*mean) - 1
	return waits{blocked / (1 - (1-idle)*(1-blocked)), mean / float64(servers) / idle * (max(1, burst) + varies) / 2}
}

// longer returns the share of the pieces that wait longer than so many seconds.
func (w waits) longer(seconds float64) float64 {
	if w.share == 0 {
		return 0
	}
	return w.share * math.Exp(-max(0, seconds)/w.mean)
}

// quantile returns that of the standard normal distribution.
func quantile(share float64) float64 { return math.Sqrt2 * math.Erfinv(2*share-1) }
