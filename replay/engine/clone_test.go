package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestClone clones an engine at some moment, under random requests that share beginnings, are preempted, come from other engines and keep their blocks.
// From then on the same happens in both, and what happens in the copy changes nothing in the engine.
func TestClone(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 9))
		c := small()
		c.KVTokens, c.ArrivalSteps, c.HostTokens, c.HostLoad = 2500, 2, 3000, time.Microsecond
		d := newDriver(t, c, flat)
		var held []*Request
		now := time.Duration(0)
		for i := range 60 {
			now += time.Duration(random.ExpFloat64() * float64(40*time.Millisecond))
			d.until(now, false)
			r := &Request{Prompt: 1 + random.IntN(900), Output: 1 + random.IntN(40), Parts: parts(uint64(random.IntN(5)), 9), Of: fmt.Sprint(i)}
			if r.Parts = r.Parts[:r.Prompt/100]; i%7 == 3 {
				r.Remote = true
			} else if i%7 == 5 {
				r.Hold, r.Output = true, 1
				held = append(held, r)
			}
			d.engine.Add(now, r)
			if len(d.sent) > 1 { // one is on its way
				d.engine.Arrived(now, d.sent[0])
				d.sent = d.sent[1:]
			}
		}
		copied := &driver{t: t, first: map[*Request]time.Duration{}, done: map[*Request]time.Duration{}}
		var of func(*Request) *Request
		copied.engine, of = d.engine.Clone(copied)
		rest := func(x *driver, sent, held []*Request) (log string) {
			x.log = nil
			for at := now; at < now+time.Minute; at += 50 * time.Millisecond {
				x.until(at, false)
				for _, r := range slices.Concat(sent, x.sent) {
					x.engine.Arrived(at, r)
				}
				sent, x.sent = nil, nil
				for _, r := range held {
					if r.generated > 0 {
						x.engine.Release(at, r)
					}
				}
				held = slices.DeleteFunc(held, func(r *Request) bool { return r.generated > 0 })
			}
			return fmt.Sprint(strings.Join(x.log, "\n"), "\n", x.engine.cache.free(), len(x.engine.cache.parts))
		}
		copies := func(list []*Request) (all []*Request) {
			for _, r := range list {
				all = append(all, of(r))
			}
			return all
		}
		sent, kept := slices.Clone(d.sent), slices.DeleteFunc(slices.Clone(held), func(r *Request) bool { return r.own == 0 && len(r.parts) == 0 && r.generated > 0 })
		theirs := rest(copied, copies(sent), copies(kept))
		d.sent = nil
		if ours := rest(d, sent, kept); ours != theirs {
			t.Fatalf("seed %d: in the engine\n%s\nin the copy\n%s", seed, ours, theirs)
		}
		if len(d.log) < 5 {
			t.Errorf("seed %d: little happens after the copy: %v", seed, d.log)
		}
	}
}
