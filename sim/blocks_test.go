package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestPoolOrder(t *testing.T) {
	p := newPool(5)
	a, ok := p.take(4)
	if !ok || !slices.Equal(blockIDs(a), []int{1, 2, 3, 4}) {
		t.Fatalf("took %v: want every block but the null block", blockIDs(a))
	}
	if _, ok := p.take(1); ok {
		t.Error("took a block from an empty pool")
	}
	p.release(a)
	b, _ := p.take(2)
	if !slices.Equal(blockIDs(b), []int{4, 3}) {
		t.Errorf("reused %v first, want the end of the sequence", blockIDs(b))
	}
}

func TestPoolCache(t *testing.T) {
	p := newPool(4)
	hashes := appendHashes(nil, prompt(1, 96), 32, "")
	blocks, _ := p.take(3)
	for i, b := range blocks {
		p.cache(b, hashes[i])
	}
	p.release(blocks)
	if got := p.find(hashes); !slices.Equal(got, blocks) {
		t.Error("free blocks are not found")
	}
	if p.used() != 0 {
		t.Errorf("%d blocks used", p.used())
	}
	taken, _ := p.take(1) // evicts the last block of the chain
	if got := p.find(hashes); !slices.Equal(got, blocks[:2]) || taken[0] != blocks[2] {
		t.Errorf("found %v after an eviction", blockIDs(got))
	}
	p.share(blocks[:2])
	if p.nfree != 0 || p.used() != 3 {
		t.Errorf("%d free, %d used after sharing", p.nfree, p.used())
	}
	p.forget()
	if len(p.find(hashes)) != 0 {
		t.Error("found forgotten blocks")
	}
}

func TestHashesAreChained(t *testing.T) {
	a, b := prompt(1, 96), prompt(1, 96)
	b[0]++
	ha, hb := appendHashes(nil, a, 32, ""), appendHashes(nil, b, 32, "")
	for i := range ha {
		if ha[i] == hb[i] {
			t.Errorf("block %d does not depend on the first token", i)
		}
	}
	if salted := appendHashes(nil, a, 32, "s"); salted[2] == ha[2] {
		t.Error("the salt has no influence")
	}
	if grown := appendHashes(ha[:1:1], a, 32, ""); !slices.Equal(grown, ha) {
		t.Error("a chain that was extended differs")
	}
	if n := len(appendHashes(nil, a[:95], 32, "")); n != 2 {
		t.Errorf("%d hashes for 95 tokens: only full blocks have one", n)
	}
}

// TestPoolLosesNothing: over any sequence of calls every block is either free or held, and the counts say so.
func TestPoolLosesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := newPool(33)
	hashes := appendHashes(nil, prompt(1, 32*8), 32, "")
	var held [][]*block
	for range 20000 {
		switch r.IntN(4) {
		case 0:
			if b, ok := p.take(1 + r.IntN(8)); ok {
				for i := range b {
					p.cache(b[i], hashes[i])
				}
				held = append(held, b)
			}
		case 1:
			found := p.find(hashes[:r.IntN(len(hashes))])
			p.share(found)
			held = append(held, found)
		default:
			if len(held) > 0 {
				i := r.IntN(len(held))
				p.release(held[i])
				held = slices.Delete(held, i, i+1)
			}
		}
		distinct := make(map[*block]bool)
		for _, h := range held {
			for _, b := range h {
				distinct[b] = true
			}
		}
		if p.used() != len(distinct) {
			t.Fatalf("%d blocks used, %d held", p.used(), len(distinct))
		}
	}
}
