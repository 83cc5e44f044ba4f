package scale

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp/latency"
)

// kind is the engines of one variant of a role, as plans go by them. A replica with several data-parallel ranks is as many engines.
type kind struct {
	ttft, tpot  time.Duration // that it is sized to give; of prefill tpot does not count, and a ttft of 0 is that of the decode engine
	rates       latency.Rates
	kvTokens    float64 // that fit into the KV cache of a decode engine; 0: not known
	cost        float64 // of one engine
	least, most int     // engines
}

// costOf returns what so many engines cost, if at least as many are kept as there must be. More than there may be are dear, so that they are planned
// only where nothing else is left.
func (k *kind) costOf(engines int) float64 {
	return k.cost * (float64(max(k.least, engines)) + tooMany*float64(max(0, engines-k.most)))
}

// tooMany is by how much dearer an engine is planned that there may not be.
const tooMany = 1000

// class is the requests for which one kind of each role is the cheapest that gives what they want.
type class struct {
	decode, prefill int // indices of kinds
	Load
}

// planner computes how many engines of each kind some requests need.
type planner struct {
	share           float64 // of the requests that are to get what they want
	decode, prefill []kind  // the cheapest first; no prefill kinds: decode engines compute all prompts
	classes         []class
}

// plan says how many engines of each kind there should be.
type plan struct {
	decode, prefill []int // needed, without limits
	// splits are which prompts are taken to go to prefill where the decider chooses, for each kind of decode engines: those of Prompts from this
	// index on.
	splits []int
	// decodeBy and prefillBy are which kind serves the classes of each kind: that kind or a dearer one.
	decodeBy, prefillBy []int
	cost                float64
}

// initial returns a plan by which each kind serves its own classes.
func (n *planner) initial() plan {
	own := func(kinds []kind) []int {
		by := make([]int, len(kinds))
		for i := range by {
			by[i] = i
		}
		return by
	}
	return plan{splits: make([]int, len(n.decode)), decodeBy: own(n.decode), prefillBy: own(n.prefill)}
}

// part is a share of the requests of a class.
type part struct {
	class int // index
	share float64
}

// scaled returns a share of some parts.
func scaled(parts []part, share float64) []part {
	all := slices.Clone(parts)
	for i := range all {
		all[i].share *= share
	}
	return all
}

// needs returns what parts of classes need of decode engines of a kind. Prompts are those of all parts, one after the other.
func (n *planner) needs(k int, parts []part) *needs {
	kind, l := &n.decode[k], new(Load)
	chosen := 0.0
	for _, p := range parts {
		c := &n.classes[p.class]
		rate := c.Rate * p.share
		l.Rate += rate
		l.Burst += rate * c.Burst
		l.Prompt += rate * c.Prompt
		l.Answer += rate * c.Answer
		l.Tokens += c.Tokens * p.share
		if c.Chosen {
			chosen += rate
		}
	}
	for _, p := range parts {
		c := &n.classes[p.class]
		for _, prompts := range c.Prompts {
			prompts.Share *= c.Rate * p.share / max(l.Rate, math.SmallestNonzeroFloat64)
			l.Prompts = append(l.Prompts, prompts)
		}
	}
	if l.Rate > 0 {
		l.Burst, l.Prompt, l.Answer = l.Burst/l.Rate, l.Prompt/l.Rate, l.Answer/l.Rate
	}
	l.Chosen = chosen > l.Rate/2
	return &needs{l, Objective{kind.ttft, kind.tpot, n.share}, &Engines{Decode: kind.rates, KVTokens: kind.kvTokens, NoPrefill: len(n.prefill) == 0}}
}

// remote returns the share of each of these prompts that goes to prefill: those from a split on where the decider chooses, or else as it was seen.
func (n *planner) remote(parts []part, of *needs, split int) []float64 {
	remote := of.seen()
	if !of.Chosen || of.NoPrefill {
		return remote
	}
	at := 0
	for _, p := range parts {
		for i := range n.classes[p.class].Prompts {
			remote[at] = 0
			if i >= split {
				remote[at] = 1
			}
			at++
		}
	}
	return remote
}

// borne returns the share of a load that is borne; bears says whether a share is. It is exact to a thousandth.
func borne(bears func(share float64) bool) float64 {
	low, high := 0.0, 1.0
	for range 10 {
		if middle := (low + high) / 2; bears(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// size fills in how many engines a plan takes, and what they cost. What more than the most engines of a kind would be needed for goes to the
// next dearer kind, as requests do.
func (n *planner) size(p *plan) {
	p.decode, p.prefill, p.cost = make([]int, len(n.decode)), make([]int, len(n.prefill)), 0
	prompts := make([][]sent, len(n.prefill)) // that go to each kind
	var left []part                           // that cheaper kinds cannot bear
	for k := range n.decode {
		kind, parts := &n.decode[k], left
		left = nil
		for i := range n.classes {
			if p.decodeBy[n.classes[i].decode] == k {
				parts = append(parts, part{i, 1})
			}
		}
		of := n.needs(k, parts)
		remote := n.remote(parts, of, p.splits[k])
		engines := of.decode(remote)
		p.decode[k] = engines
		if engines > kind.most && k < len(n.decode)-1 {
			share := borne(func(share float64) bool {
				l := *of.Load
				l.Rate, l.Tokens = l.Rate*share, l.Tokens*share
				return (&needs{&l, of.Objective, of.Engines}).decodes(kind.most, remote)
			})
			parts, left = scaled(parts, share), scaled(parts, 1-share)
			of, engines = n.needs(k, parts), kind.most
		}
		p.cost += kind.costOf(engines)
		if engines > 0 && of.rate(remote) > 0 {
			n.send(p, prompts, parts, of, remote, engines)
		}
	}
	n.sizePrefill(p, prompts)
}

// send adds the prompts that decode engines leave to prefill engines to those of each kind.
func (n *planner) send(p *plan, prompts [][]sent, parts []part, of *needs, remote []float64, engines int) {
	answers, late := of.at(engines, remote).answers, of.mayBeLate(engines, remote)
	for j := range n.prefill {
		own, any, at := make([]float64, len(remote)), false, 0
		for _, one := range parts {
			c := &n.classes[one.class]
			for range c.Prompts {
				if p.prefillBy[c.prefill] == j {
					own[at], any = remote[at], any || remote[at] > 0
				}
				at++
			}
		}
		if any {
			prompts[j] = append(prompts[j], sent{of, own, answers, late})
		}
	}
}

// sizePrefill fills in the prefill engines of a plan, for the prompts that go to each kind.
func (n *planner) sizePrefill(p *plan, prompts [][]sent) {
	for j := range n.prefill {
		kind, all := &n.prefill[j], make([]sent, 0, len(prompts[j]))
		rate := 0.0
		for _, s := range prompts[j] {
			engines, objective := *s.Engines, s.Objective
			engines.Prefill = kind.rates
			if kind.ttft > 0 {
				objective.TTFT = kind.ttft
			}
			rate += s.rate(s.remote)
			all = append(all, sent{&needs{s.Load, objective, &engines}, s.remote, s.answers, s.mayBeLate})
		}
		engines := 0
		if rate > 0 {
			engines = smallest(func(engines int) bool { return inTime(engines, all) })
		}
		p.prefill[j] = engines
		if engines > kind.most && j < len(n.prefill)-1 {
			share := borne(func(share float64) bool { return inTime(kind.most, lessOf(all, share)) })
			prompts[j+1] = append(prompts[j+1], lessOf(prompts[j], 1-share)...)
			engines = kind.most
		}
		p.cost += kind.costOf(engines)
	}
}

// lessOf returns a share of prompts.
func lessOf(all []sent, share float64) []sent {
	less := slices.Clone(all)
	for i := range less {
		less[i].remote = slices.Clone(all[i].remote)
		for k := range less[i].remote {
			less[i].remote[k] *= share
		}
	}
	return less
}

// keeps is what a plan may cost at most, as a share of what one that goes on as before does, so that it is better.
const keeps = 0.9

// split returns the cheapest plan by the splits of the prompts, all else being as in another one: its splits, one that is the same for all kinds of decode
// engines, or one of a single kind that differs from that.
func (n *planner) split(from plan) plan {
	best := from
	n.size(&best)
	longest := n.longest()
	if longest < 0 {
		return best
	}
	lowest := best.cost * keeps
	try := func(splits []int) {
		one := from
		one.splits = splits
		if n.size(&one); one.cost < lowest {
			best, lowest = one, one.cost
		}
	}
	for split := range longest + 1 {
		if n.tells(split) {
			try(slices.Repeat([]int{split}, len(n.decode)))
		}
	}
	if len(n.decode) == 1 {
		return best
	}
	for k := range n.decode {
		for split := range longest + 1 {
			if n.tells(split) && split != best.splits[k] {
				splits := slices.Clone(best.splits)
				splits[k] = split
				try(splits)
			}
		}
	}
	return best
}

// longest returns how many prompts a class has, as far as its decider chooses where they are computed; -1 if none does.
func (n *planner) longest() int {
	longest := -1
	for i := range n.classes {
		if c := &n.classes[i]; c.Chosen && len(n.prefill) > 0 {
			longest = max(longest, len(c.Prompts))
		}
	}
	return longest
}

// tells reports whether a split differs from the next one.
func (n *planner) tells(split int) bool {
	differs, last := false, true
	for i := range n.classes {
		if prompts := n.classes[i].Prompts; split < len(prompts) {
			last = false
			differs = differs || prompts[split].Share > 0
		}
	}
	return differs || last
}

// best returns the cheapest plan in which each class is served as in the one before it, and one that serves the classes of a kind by another kind and
// is cheaper by a tenth; ok is false if there is none.
func (n *planner) best(before plan) (same, other plan, ok bool) {
	same = n.split(before)
	lowest := same.cost * keeps
	for _, role := range []struct {
		by  []int
		set func(p *plan, by []int)
	}{
		{same.decodeBy, func(p *plan, by []int) { p.decodeBy = by }},
		{same.prefillBy, func(p *plan, by []int) { p.prefillBy = by }},
	} {
		for i := range role.by {
			for k := i; k < len(role.by); k++ {
				if k == role.by[i] {
					continue
				}
				one := same
				by := slices.Clone(role.by)
				by[i] = k
				role.set(&one, by)
				if one = n.split(one); one.cost < lowest {
					other, lowest, ok = one, one.cost, true
				}
			}
		}
	}
	return same, other, ok
}
