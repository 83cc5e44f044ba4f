package kv

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/sim/model"
)

func TestPoolOrder(t *testing.T) {
	p := NewPool(5)
	a, ok := p.Take(4)
	if !ok || !slices.Equal(IDs(a), []int{1, 2, 3, 4}) {
		t.Fatalf("took %v: want every block but the null block", IDs(a))
	}
	if _, ok := p.Take(1); ok {
		t.Error("took a block from an empty pool")
	}
	p.Release(a)
	b, _ := p.Take(2)
	if !slices.Equal(IDs(b), []int{4, 3}) {
		t.Errorf("reused %v first, want the end of the sequence", IDs(b))
	}
}

func TestPoolCache(t *testing.T) {
	p := NewPool(4)
	hashes := AppendHashes(nil, tokens(96), 32, "")
	blocks, _ := p.Take(3)
	for i, b := range blocks {
		p.Cache(b, hashes[i])
	}
	p.Release(blocks)
	if got := p.Find(hashes); !slices.Equal(got, blocks) {
		t.Error("free blocks are not found")
	}
	if p.Used() != 0 {
		t.Errorf("%d blocks used", p.Used())
	}
	taken, _ := p.Take(1) // evicts the last block of the chain
	if got := p.Find(hashes); !slices.Equal(got, blocks[:2]) || taken[0] != blocks[2] {
		t.Errorf("found %v after an eviction", IDs(got))
	}
	p.Share(blocks[:2])
	if p.nfree != 0 || p.Used() != 3 {
		t.Errorf("%d free, %d used after sharing", p.nfree, p.Used())
	}
	p.Reset()
	if len(p.Find(hashes)) != 0 {
		t.Error("found blocks after the reset")
	}
}

func TestHashesAreChained(t *testing.T) {
	a, b := tokens(96), tokens(96)
	b[0]++
	ha, hb := AppendHashes(nil, a, 32, ""), AppendHashes(nil, b, 32, "")
	for i := range ha {
		if ha[i] == hb[i] {
			t.Errorf("block %d does not depend on the first token", i)
		}
	}
	if salted := AppendHashes(nil, a, 32, "s"); salted[2] == ha[2] {
		t.Error("the salt has no influence")
	}
	if grown := AppendHashes(ha[:1:1], a, 32, ""); !slices.Equal(grown, ha) {
		t.Error("a chain that was extended differs")
	}
	if n := len(AppendHashes(nil, a[:95], 32, "")); n != 2 {
		t.Errorf("%d hashes for 95 tokens: only full blocks have one", n)
	}
}

// tokens returns n different token ids.
func tokens(n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = model.FirstByte + i
	}
	return ids
}

// TestPoolLosesNothing: after any sequence of calls every block is either free or held, and Used returns how many are held.
func TestPoolLosesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := NewPool(33)
	hashes := AppendHashes(nil, tokens(32*8), 32, "")
	var held [][]*Block
	for range 20000 {
		switch r.IntN(4) {
		case 0:
			if b, ok := p.Take(1 + r.IntN(8)); ok {
				for i := range b {
					p.Cache(b[i], hashes[i])
				}
				held = append(held, b)
			}
		case 1:
			found := p.Find(hashes[:r.IntN(len(hashes))])
			p.Share(found)
			held = append(held, found)
		default:
			if len(held) > 0 {
				i := r.IntN(len(held))
				p.Release(held[i])
				held = slices.Delete(held, i, i+1)
			}
		}
		distinct := make(map[*Block]bool)
		for _, h := range held {
			for _, b := range h {
				distinct[b] = true
			}
		}
		if p.Used() != len(distinct) {
			t.Fatalf("%d blocks used, %d held", p.Used(), len(distinct))
		}
	}
}
