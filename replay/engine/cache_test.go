package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFindGoesOn: what was found for a prompt before leads to the same parts as a new look-up, whatever has happened to the cache since.
func TestFindGoesOn(t *testing.T) {
	r, c := rand.New(rand.NewPCG(1, 2)), newCache(60, 1)
	var prompts [8][]uint64 // beginnings of 16 parts: each shares some with the one before
	for i := range prompts {
		for j := range 16 {
			id := uint64(100*i + j + 1)
			if i > 0 && j < 2*i {
				id = prompts[i-1][j]
			}
			prompts[i] = append(prompts[i], id)
		}
	}
	var found, held [8][]*part
	shorter := 0
	for range 20_000 {
		i := r.IntN(len(prompts))
		switch ids := prompts[i]; {
		case held[i] != nil:
			c.leave(held[i])
			held[i] = nil
		default:
			held[i] = c.find(ids, nil)
			c.use(held[i])
			for j := len(held[i]); j < len(ids) && c.free() > 0; j++ {
				c.take(1)
				p, _ := c.put(ids[j])
				held[i] = append(held[i], p)
			}
		}
		for i, ids := range prompts {
			before := len(found[i])
			if found[i] = c.find(ids, found[i]); !slices.Equal(found[i], c.find(ids, nil)) {
				t.Fatalf("prompt %d: %d parts are found, and %d by a new look-up", i, len(found[i]), len(c.find(ids, nil)))
			}
			if len(found[i]) < before {
				shorter++
			}
		}
	}
	if shorter < 100 {
		t.Errorf("only %d look-ups found less than before: nothing was removed in between", shorter)
	}
}
