package scale

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
)

// usual returns engines that nothing is known of: prompts take 20 ms and 50 ms for each 1,000 tokens, tokens 15 ms and 0.5 ms for 16 answers.
func usual() *Engines {
	rates := latency.NewModel(epp.SystemClock).Rates(nil)
	return &Engines{Prefill: rates, Decode: rates, PrefillCost: 10, DecodeCost: 10}
}

var wanted = Objective{TTFT: 2 * time.Second, TPOT: 50 * time.Millisecond, Share: 0.99}

// split returns requests with prompts of 2,000 tokens and answers of 200, so many in a second, all of whose prompts go to prefill.
func split(rate float64) Load {
	return Load{Rate: rate, Burst: 1, Prompt: 2000, Answer: 200, Prompts: []Prompts{{Share: 1, Tokens: 2000, Remote: 1}}}
}

func TestNeed(t *testing.T) {
	base := Need(new(split(20)), wanted, usual(), 0)
	if base.Prefill < 2 || base.Decode < 1 {
		t.Fatalf("20 requests in a second need %+v", base)
	}
	for _, test := range []struct {
		name            string
		change          func(l *Load, o *Objective, e *Engines)
		prefill, decode int // -1: fewer than before, 0: as many, 1: more
	}{
		{"more requests", func(l *Load, _ *Objective, _ *Engines) { l.Rate *= 4 }, 1, 1},
		{"longer prompts", func(l *Load, _ *Objective, _ *Engines) { l.Prompts[0].Tokens *= 3 }, 1, 0},
		{"longer answers", func(l *Load, _ *Objective, _ *Engines) { l.Answer *= 10 }, 0, 1},
		{"answers that have not ended", func(l *Load, _ *Objective, _ *Engines) { l.Answer, l.Tokens = 0, 40000 }, 0, 1},
		{"tokens sooner", func(_ *Load, o *Objective, _ *Engines) { o.TPOT = 19 * time.Millisecond }, 0, 1},
		{"first tokens sooner", func(_ *Load, o *Objective, _ *Engines) { o.TTFT = 250 * time.Millisecond }, 1, 0},
		{"arrivals in bursts", func(l *Load, o *Objective, _ *Engines) { l.Burst = 200; o.TPOT = 25 * time.Millisecond }, 1, 1},
		{"a small KV cache", func(_ *Load, _ *Objective, e *Engines) { e.KVTokens = 50_000 }, 0, 1},
		{"prompts on decode", func(l *Load, _ *Objective, _ *Engines) { l.Prompts[0].Remote = 0 }, -1, 1},
		{"no load", func(l *Load, _ *Objective, _ *Engines) { l.Rate = 0 }, -1, -1},
		{"no prefill replicas", func(_ *Load, _ *Objective, e *Engines) { e.NoPrefill = true }, -1, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, o, e := split(20), wanted, usual()
			test.change(&l, &o, e)
			got := Need(&l, o, e, 0)
			for _, role := range []struct {
				name           string
				got, was, want int
			}{{"prefill", got.Prefill, base.Prefill, test.prefill}, {"decode", got.Decode, base.Decode, test.decode}} {
				if is := min(1, max(-1, role.got-role.was)); is != role.want {
					t.Errorf("%s: %d replicas, before %d; want a change of sign %d", role.name, role.got, role.was, role.want)
				}
			}
		})
	}
}

func TestNeedGrowsWithTheLoad(t *testing.T) {
	last := Needed{}
	for rate := 1.0; rate < 3000; rate *= 1.3 {
		got := Need(new(split(rate)), wanted, usual(), 0)
		if got.Prefill < last.Prefill || got.Decode < last.Decode {
			t.Fatalf("%.0f requests in a second need %+v, fewer %+v", rate, got, last)
		}
		last = got
	}
	if want := (Needed{Prefill: last.Prefill, Decode: last.Decode}); last.Prefill < 250 || last.Decode < 50 {
		t.Errorf("3,000 requests in a second need only %+v", want)
	}
}

// TestNeedOfAChosenSplit: a decider that compares costs sends prompts where there is time, so what it did while prefill was too small must
// not make decode grow in its place.
func TestNeedOfAChosenSplit(t *testing.T) {
	mixed := func(remote float64, chosen bool) *Load {
		return &Load{Rate: 40, Burst: 1, Prompt: 3000, Answer: 200, Chosen: chosen,
			Prompts: []Prompts{{Share: 0.5, Tokens: 100, Remote: remote}, {Share: 0.5, Tokens: 6000, Remote: remote}}}
	}
	seen := Need(mixed(0, false), wanted, usual(), 0)
	local, remote := Need(mixed(0, true), wanted, usual(), 0), Need(mixed(1, true), wanted, usual(), 0)
	if local != remote {
		t.Errorf("after local prompts %+v are needed, after remote ones %+v: want the same", local, remote)
	}
	if sum := local.Prefill + local.Decode; sum > seen.Prefill+seen.Decode {
		t.Errorf("the chosen split needs %+v, more than the one that was seen: %+v", local, seen)
	}
	e := usual()
	e.PrefillCost = 1
	if cheap := Need(mixed(1, true), wanted, e, len(mixed(1, true).Prompts)); cheap.Prefill == 0 {
		t.Errorf("with prefill at a tenth of the cost %+v are needed: want prompts to go there", cheap)
	}
}

func TestWaits(t *testing.T) {
	one := queue{}
	one.add(8, 0.1)
	two := queue{}
	two.add(10, 0.1)
	for _, test := range []struct {
		name         string
		queue        queue
		servers      int
		share, mean  float64 // by the textbook, for services that do not vary
		whatAtLength float64
	}{
		{"M/D/1 at 80 %", one, 1, 0.8, 0.25, 0.8 * math.Exp(-0.5/0.25)},
		{"two servers at 50 %", two, 2, 1.0 / 3, 0.05, math.Exp(-0.5/0.05) / 3},
		{"too little", one, 0, 1, math.Inf(1), 1},
		{"nothing to do", queue{}, 3, 0, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := test.queue.wait(test.servers, 1)
			if math.Abs(got.share-test.share) > 1e-9 || math.Abs(got.mean-test.mean) > 1e-9 && got.mean != test.mean {
				t.Errorf("got %+v, want share %v and mean %v", got, test.share, test.mean)
			}
			if late := got.longer(0.5); math.Abs(late-test.whatAtLength) > 1e-9 {
				t.Errorf("%v wait longer than 0.5 s, want %v", late, test.whatAtLength)
			}
		})
	}
}

// TestWaitsOfASimulatedQueue compares the approximation with a queue whose services vary as prompts do.
func TestWaitsOfASimulatedQueue(t *testing.T) {
	const rate, servers, pieces = 26.0, 4, 200_000
	random := rand.New(rand.NewPCG(1, 2))
	var q queue
	free := make([]float64, servers)
	now, late := 0.0, 0
	for range pieces {
		now += random.ExpFloat64() / rate
		service := 0.04
		if random.Float64() < 0.3 {
			service = 0.3
		}
		q.add(rate/pieces, service)
		next := slices.Index(free, slices.Min(free))
		begins := max(now, free[next])
		free[next] = begins + service
		if begins-now > 0.5 {
			late++
		}
	}
	wait := q.wait(servers, 1)
	if got, want := wait.longer(0.5), float64(late)/pieces; got < 0.8*want || got > 2*want {
		t.Errorf("%.4f are expected to wait longer than 0.5 s, %.4f did: want as many, or somewhat more", got, want)
	}
}

// TestSmallest: whatever the number, the smallest is found.
func TestSmallest(t *testing.T) {
	for want := 1; want <= mostReplicas; want++ {
		if got := smallest(func(n int) bool { return n >= want }); got != want {
			t.Fatalf("%d, want %d", got, want)
		}
	}
	if got := smallest(func(int) bool { return false }); got != mostReplicas {
		t.Errorf("%d where no number is enough, want the most", got)
	}
}

// TestBearsWhatIsEnough: what Need says to be enough for a rate bears it, and one replica less of either role does not.
func TestBearsWhatIsEnough(t *testing.T) {
	for _, chosen := range []bool{false, true} {
		for _, rate := range []float64{0.5, 7, 20, 300} {
			l := split(rate)
			l.Chosen = chosen
			need := Need(&l, wanted, usual(), 0)
			if got := Bears(&l, wanted, usual(), need.Prefill, need.Decode); got < rate*(1-borneStep) {
				t.Errorf("%+v are enough for %v requests in a second, and bear %v", need, rate, got)
			}
			if got := Bears(&l, wanted, usual(), need.Prefill, need.Decode-1); got >= rate {
				t.Errorf("%v requests in a second need %+v, and one decode replica less bears %v", rate, need, got)
			}
			if got := Bears(&l, wanted, usual(), need.Prefill-1, need.Decode); !chosen && got >= rate {
				t.Errorf("%v requests in a second need %+v, and one prefill replica less bears %v", rate, need, got)
			}
			if l.Rate != rate {
				t.Fatalf("the rate of the load is %v after the call, before %v", l.Rate, rate)
			}
		}
	}
	if l := split(1); Bears(&l, wanted, usual(), 1, 0) != 0 || Bears(&l, wanted, usual(), 0, 1) != 0 {
		t.Error("requests whose prompts go to prefill are borne without prefill, or without decode")
	}
}
