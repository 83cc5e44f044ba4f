package sched

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// ranksOf names the data-parallel ranks that are to serve the request, for endpoints whose engines tell the loads of their ranks;
// nil if none does. If the ranks of a pod are endpoints of their own, the choice of the endpoint was that of the rank, whatever their
// pages tell.
func (k *pick) ranksOf(chosen []epp.Candidate) (ranks []pd.Rank) {
	for i := range chosen {
		loads := chosen[i].Load.Ranks
		if loads == nil || k.sharesPod(chosen[i].Endpoint) {
			continue
		}
		if ranks == nil {
			ranks = make([]pd.Rank, len(chosen))
		}
		ranks[i] = k.rankOf(*loads)
	}
	return ranks
}

// sharesPod reports whether another endpoint is of the same pod.
func (k *pick) sharesPod(e *epp.Endpoint) bool {
	for i := range k.all {
		if other := k.all[i].Endpoint; other.Pod == e.Pod && other.Namespace == e.Namespace && e.Pod != "" && !other.Is(e) {
			return true
		}
	}
	return false
}

// slack is by how many requests a rank may exceed the mean of all ranks of its engine before it gets no more.
const slack = 2

// rankOf chooses among the ranks of one engine. Each has a prefix cache of its own, so prompts that begin alike have the same two
// ranks to go to, and the less loaded one takes the request. If that is loaded much more than the others are, the least loaded of
// all takes it: many prompts may begin alike.
func (k *pick) rankOf(ranks epp.Ranks) pd.Rank {
	n := uint64(len(ranks))
	seed := k.round.Rand.Uint64()
	if blocks := k.round.Request.Prompt.Blocks; len(blocks) > 0 {
		seed = blocks[0]
	}
	first := seed % n
	second := (first + 1 + seed/n%(n-1)) % n
	best, least, sum := &ranks[first], &ranks[0], 0.0
	if lighter(&ranks[second], best) {
		best = &ranks[second]
	}
	for i := range ranks {
		if lighter(&ranks[i], least) {
			least = &ranks[i]
		}
		sum += requests(&ranks[i])
	}
	if requests(best) > sum/float64(n)+slack {
		best = least
	}
	return pd.RankOf(best.Rank)
}

// requests returns how many requests a rank has.
func requests(r *epp.RankLoad) float64 { return r.Waiting + r.Running }

// lighter reports whether a has less to do than b.
func lighter(a, b *epp.RankLoad) bool { return requests(a) < requests(b) }
