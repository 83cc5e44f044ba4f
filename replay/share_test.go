package replay

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestReplicasBalanceAsOne: two and three pickers that tell each other what they send do as well as one, within 5 %: in how even the load of
// engines is, in how much of the prompts is found in prefix caches, and in the time to the first token. Pickers that tell each other nothing
// do much worse.
func TestReplicasBalanceAsOne(t *testing.T) {
	const seeds, bar = 4, 1.05
	trace := talks(300, 5)
	for _, pool := range []string{"8B", "4P+4D"} {
		mean := func(replicas int, sync time.Duration) (b balance) {
			for seed := range seeds {
				o := options(t, 2048, pool)
				o.Replicas, o.Sync, o.Seed = replicas, sync, uint64(seed+1)
				one := balanceOf(replayed(t, o, trace))
				b.found += one.found / seeds
				b.ttft += one.ttft / seeds
				b.worst += one.worst / seeds
			}
			t.Logf("%s, %d pickers that tell each other every %v (0s: nothing): %.1f %% of prompts found, mean TTFT %.3f s, the busiest engine has %.3f times the mean",
				pool, replicas, sync, 100*b.found, b.ttft, b.worst)
			return b
		}
		single := mean(1, 0)
		for _, replicas := range []int{2, 3} {
			silent, shared := mean(replicas, 0), mean(replicas, 10*time.Millisecond)
			if shared.found*bar < single.found || shared.ttft > bar*single.ttft || shared.worst > bar*single.worst {
				t.Errorf("%s: %d pickers have %+v, one has %+v", pool, replicas, shared, single)
			}
			if silent.found*bar > single.found || silent.ttft < bar*single.ttft {
				t.Errorf("%s: %d pickers that tell each other nothing have %+v, one has %+v: the trace shows no difference", pool, replicas, silent, single)
			}
		}
	}
}

// balance is how a pool was used.
type balance struct {
	found float64 // share of the prompts' tokens that were in prefix caches
	ttft  float64 // mean (s)
	worst float64 // requests of the decode engine that had most, in proportion to the mean
}

func balanceOf(r *Result) (b balance) {
	input, requests := 0, map[string]int{}
	for i := range r.Records {
		one := &r.Records[i]
		b.found += float64(one.Cached)
		input += one.Input
		b.ttft += one.TTFT.Seconds() / float64(len(r.Records))
		requests[one.Decode]++
	}
	b.found /= float64(input)
	for _, n := range requests {
		b.worst = max(b.worst, float64(n*len(requests))/float64(len(r.Records)))
	}
	return b
}

// talks is a trace of conversations, each turn of which has all turns before as the beginning of its prompt.
func talks(sessions, turns int) *Trace {
	draw := rand.New(rand.NewPCG(3, 4))
	trace := &Trace{BlockTokens: 512}
	next := int64(1)
	for range sessions {
		due := time.Duration(draw.Float64() * float64(60*time.Second))
		blocks := []int64{}
		for range 4 + draw.IntN(8) {
			blocks = append(blocks, next)
			next++
		}
		for range turns {
			trace.Requests = append(trace.Requests, Request{Due: due, Input: 512*len(blocks) + 100, Output: 50 + draw.IntN(200), Blocks: slices.Clone(blocks)})
			for range 1 + draw.IntN(3) {
				blocks = append(blocks, next)
				next++
			}
			due += time.Duration((4 + 8*draw.Float64()) * float64(time.Second))
		}
	}
	slices.SortStableFunc(trace.Requests, func(a, b Request) int { return int(a.Due - b.Due) })
	return trace
}
