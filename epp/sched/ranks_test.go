package sched_test

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// loads makes the loads of ranks that have so many requests each.
func loads(requests ...float64) *epp.Ranks {
	var ranks epp.Ranks
	for i, n := range requests {
		ranks = append(ranks, epp.RankLoad{Rank: i, Waiting: n})
	}
	return &ranks
}

// rankPool is a pool whose prefill and decode engines have ranks with these loads.
func rankPool(prefill, decode *epp.Ranks) *pool {
	p := sglangPool("P D")
	p.Snapshot().Loads[0].Ranks, p.Snapshot().Loads[1].Ranks = prefill, decode
	return p
}

// beginning makes a request whose prompt begins with a block of this hash.
func beginning(hash uint64) *epp.Request {
	r := splitRequest(100)
	r.Prompt.Blocks[0] = hash
	return r
}

func TestRanks(t *testing.T) {
	for _, c := range []struct {
		name            string
		prefill, decode *epp.Ranks
		want            map[string]bool // plans' ranks of prefill and decode that may be chosen
	}{
		{"engines of one rank", nil, nil, map[string]bool{" -": true}},
		{"ranks of prefill", loads(1, 0), nil, map[string]bool{"1 -": true}},
		{"ranks of decode", nil, loads(0, 1), map[string]bool{" 0": true}},
		{"ranks of both", loads(0, 3), loads(3, 0), map[string]bool{"0 1": true}},
		{"equal ranks", loads(2, 2), nil, map[string]bool{"0 -": true, "1 -": true}},
		{"one rank much busier than the others", loads(30, 1, 1, 1), nil, map[string]bool{"1 -": true, "2 -": true, "3 -": true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := scheduler(t, rankPool(c.prefill, c.decode), sglangConfig())
			for hash := range uint64(200) {
				d := mustPick(t, s, beginning(hash*0x9e3779b97f4a7c15))
				plan := d.Plan()
				got := ""
				for _, r := range plan.PrefillRanks {
					got += r.String()
				}
				if got += " " + plan.DecodeRank.String(); !c.want[got] {
					t.Fatalf("picked the ranks %q, want one of %v", got, c.want)
				}
				d.Reservation.End()
			}
		})
	}
}

// TestRanksByPrefix: prompts that begin alike go to the same ranks, and others to all ranks.
func TestRanksByPrefix(t *testing.T) {
	s := scheduler(t, rankPool(loads(0, 0, 0, 0, 0, 0, 0, 0), nil), sglangConfig())
	pickRank := func(r *epp.Request) pd.Rank {
		d := mustPick(t, s, r)
		defer d.Reservation.End()
		return d.Plan().PrefillRanks[0]
	}
	random, seen := rand.New(rand.NewPCG(1, 2)), map[pd.Rank]bool{}
	for range 200 {
		hash := random.Uint64()
		rank := pickRank(beginning(hash))
		seen[rank] = true
		if again := pickRank(beginning(hash)); again != rank {
			t.Fatalf("the same prompt went to the ranks %v and %v", rank, again)
		}
	}
	if len(seen) != 8 {
		t.Errorf("200 prompts went to the ranks %v, want all of 8", seen)
	}
}

// TestNoDecodeRankForSeveralEndpoints: the gateway may turn to another endpoint, which has other ranks.
func TestNoDecodeRankForSeveralEndpoints(t *testing.T) {
	p := sglangPool("P D D")
	p.Snapshot().Loads[1].Ranks, p.Snapshot().Loads[2].Ranks = loads(0, 1), loads(0, 1)
	config := sglangConfig()
	config.Profiles[0].Picker = highest(2)
	d := mustPick(t, scheduler(t, p, config), splitRequest(100))
	defer d.Reservation.End()
	if plan := d.Plan(); len(d.First()) != 2 || plan.DecodeRank != 0 {
		t.Errorf("the plan for %v is %v", names(d.First()), plan)
	}
}
