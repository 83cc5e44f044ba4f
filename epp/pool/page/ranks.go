package page

import (
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/epp"
)

// maxRanks is the most data-parallel ranks of one engine whose loads are told apart.
const maxRanks = 256

// rankLoads collects the loads of an engine's data-parallel ranks. A rank whose number or load cannot be read, or that is missing among
// the others, makes all of them unknown: the picker would leave it out, or mean another one.
//
// Pages have a rank's number in the whole deployment. Requests name it in the order of those that one API server has: on a node whose
// first rank is 4 (--data-parallel-hybrid-lb), rank 5 is called 1. Where an API server has all ranks, the two are the same.
type rankLoads struct {
	all []rankLoad // by number
	bad bool
}

type rankLoad struct {
	epp.RankLoad
	told bool
}

func (l *rankLoads) reset() { l.all, l.bad = l.all[:0], false }

// take adds a series to the load of the rank that a label names.
func (l *rankLoads) take(of value, s series, name string) {
	if of != value(epp.Waiting) && of != value(epp.Running) && of != value(epp.KVUsage) {
		return
	}
	number, ok := label(s.labels, name)
	if !ok {
		return // an engine without ranks
	}
	rank, err := strconv.Atoi(string(number))
	if err != nil || rank < 0 || rank >= maxRanks || s.timed || !unitOf(of).Valid(s.value) {
		l.bad = true
		return
	}
	for len(l.all) <= rank {
		l.all = append(l.all, rankLoad{RankLoad: epp.RankLoad{Rank: len(l.all)}})
	}
	r := &l.all[rank]
	r.told = true
	switch of {
	case value(epp.Waiting):
		r.Waiting += s.value
	case value(epp.Running):
		r.Running += s.value
	default:
		r.KVUsage = s.value
	}
}

// loads returns the loads of several ranks, nil if there is one only. It returns before if nothing has changed.
func (l *rankLoads) loads(before *epp.Ranks) *epp.Ranks {
	first := slices.IndexFunc(l.all, func(r rankLoad) bool { return r.told })
	if l.bad || len(l.all)-first < 2 {
		return nil
	}
	told := l.all[max(first, 0):]
	for i := range told {
		if !told[i].told {
			return nil
		}
		told[i].Rank = i // see rankLoads
	}
	if before != nil && len(*before) == len(told) && !differ(told, *before) {
		return before
	}
	ranks := make(epp.Ranks, len(told))
	for i := range told {
		ranks[i] = told[i].RankLoad
	}
	return &ranks
}

// differ reports whether a rank has another load than before.
func differ(told []rankLoad, before epp.Ranks) bool {
	for i := range told {
		if told[i].RankLoad != before[i] {
			return true
		}
	}
	return false
}
