package kvindex

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

const (
	testSeed = Seed(0x5eed)
	block    = 4
)

// prompt is n blocks of tokens, of which those before the block fork are the same for all kinds.
func prompt(kind uint32, fork, n int) []uint32 {
	tokens := make([]uint32, n*block)
	for i := range tokens {
		tokens[i] = uint32(i)
		if i >= fork*block {
			tokens[i] += 1 << 20 * (kind + 1)
		}
	}
	return tokens
}

// names are what a test engine calls the blocks of a prompt: another hash than the index's, which also stands for all before.
func names(tokens []uint32) []uint64 {
	return Seed(99).Append(nil, 1, 0, block, tokens)
}

func root() Key { return testSeed.Root(block, nil) }

func chain(tokens []uint32) []Key { return testSeed.Append(nil, root(), 0, block, tokens) }

// store stores the blocks of a prompt from first up to end, as an engine tells it.
func store(h *Holder, tokens []uint32, first, end int) error {
	return storeIn(h, GPU, tokens, first, end)
}

func storeIn(h *Holder, t Tier, tokens []uint32, first, end int) error {
	all := names(tokens)
	s := Stored{Tier: t, Names: all[first:end], First: first == 0, Root: root(), Tokens: tokens[first*block : end*block]}
	if first > 0 {
		s.Parent = all[first-1]
	}
	return h.Store(&s)
}

func depths(x *Index, tokens []uint32, hs ...*Holder) (of []int) {
	var d Depths
	x.Measure(chain(tokens), &d)
	for _, h := range hs {
		of = append(of, d.Of(h))
	}
	return of
}

func TestMeasure(t *testing.T) {
	one, other := prompt(0, 3, 8), prompt(1, 3, 8)
	system, short := one[:3*block], one[:5*block]
	for name, test := range map[string]struct {
		when func(a, b *Holder) error
		of   []uint32
		want []int
	}{
		"nothing is stored": {func(a, b *Holder) error { return nil }, one, []int{0, 0}},
		"a prefix, and another prompt from there on": {func(a, b *Holder) error {
			_ = store(a, one, 0, 8)
			return store(b, other, 0, 8)
		}, one, []int{8, 3}},
		"the prompt ends before what is held": {func(a, b *Holder) error { return store(a, one, 0, 8) }, system, []int{3, 0}},
		"each holds another length": {func(a, b *Holder) error {
			_ = store(a, one, 0, 7)
			return store(b, short, 0, 5)
		}, one, []int{7, 5}},
		"the rest of a prompt comes in another message": {func(a, b *Holder) error {
			_ = store(a, one, 0, 2)
			return store(a, one, 2, 8)
		}, one, []int{8, 0}},
		"blocks behind a hole do not count": {func(a, b *Holder) error {
			_ = store(a, one, 0, 8)
			_ = store(b, one, 0, 8)
			a.Remove(GPU, names(one)[4])
			return nil
		}, one, []int{4, 8}},
		"blocks behind a filled hole count again": {func(a, b *Holder) error {
			_ = store(a, one, 0, 8)
			a.Remove(GPU, names(one)[4])
			return store(a, one, 4, 5)
		}, one, []int{8, 0}},
		"a hole in the common part hides all that branches behind it": {func(a, b *Holder) error {
			_ = store(a, one, 0, 8)
			_ = store(a, other, 0, 8)
			a.Remove(GPU, names(one)[0])
			return nil
		}, other, []int{0, 0}},
		"what all have dropped comes back": {func(a, b *Holder) error {
			_ = store(a, one, 0, 8)
			for _, n := range names(one)[:3] {
				a.Remove(GPU, n)
			}
			return store(a, one, 0, 3)
		}, one, []int{8, 0}},
		"a branch outlives the run that it branches off": {func(a, b *Holder) error {
			_ = store(a, one, 0, 8)
			_ = store(a, other, 0, 8)
			for _, n := range names(one) {
				a.Remove(GPU, n)
			}
			return store(a, other, 0, 3)
		}, other, []int{8, 0}},
		"stored twice, removed once": {func(a, b *Holder) error {
			_ = store(a, one, 0, 8)
			_ = store(a, one, 0, 8)
			a.Remove(GPU, names(one)[7])
			return nil
		}, one, []int{7, 0}},
		"cleared": {func(a, b *Holder) error {
			_ = store(a, one, 0, 8)
			_ = store(b, one, 0, 8)
			a.Clear()
			return store(a, one, 0, 2)
		}, one, []int{2, 8}},
		"left": {func(a, b *Holder) error {
			_ = store(a, one, 0, 8)
			a.Leave()
			if err := store(a, one, 0, 8); err != ErrLeft {
				return fmt.Errorf("store returns %v", err)
			}
			return nil
		}, one, []int{0, 0}},
		"claimed": {func(a, b *Holder) error {
			_ = store(b, one, 0, 2)
			a.Claim(chain(one[:6*block]))
			a.Claim(chain(one[:4*block]))
			return nil
		}, one, []int{6, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			x := New(testSeed, 1000)
			a, b := x.Join(), x.Join()
			if err := test.when(a, b); err != nil {
				t.Fatal(err)
			}
			if got := depths(x, test.of, a, b); !slices.Equal(got, test.want) {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

// TestRemoveMany: more blocks than are removed at a time, some of which the holder does not have, or has in another tier, or are named twice.
func TestRemoveMany(t *testing.T) {
	const blocks, more = 3*removals + 7, 40
	tokens := prompt(0, 0, blocks)
	all := names(tokens)
	x := New(testSeed, 1<<20)
	h, other := x.Join(), x.Join()
	for _, holder := range []*Holder{h, other} {
		if err := store(holder, tokens, 0, blocks); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Keep(CPU, all[removals], h); err != nil {
		t.Fatal(err)
	}
	gone := slices.Concat(all[more:], all[more:2*more], []uint64{1, 2, 3})
	if n := h.Remove(GPU, gone...); n != blocks-more {
		t.Errorf("%d blocks are removed, want %d", n, blocks-more)
	}
	if n := h.Remove(GPU, gone...); n != 0 {
		t.Errorf("%d blocks are removed again", n)
	}
	if n := h.Remove(Disk, all...); n != 0 {
		t.Errorf("%d blocks are removed from a tier that has none", n)
	}
	if h.In(GPU) != more || h.In(CPU) != 1 || h.Len() != more+1 || x.Blocks() != blocks+more+1 {
		t.Errorf("%d blocks, of which %d are in the accelerator's memory and %d in the host's; %d in all", h.Len(), h.In(GPU), h.In(CPU), x.Blocks())
	}
	if got, want := depths(x, tokens, h, other), []int{more, blocks}; !slices.Equal(got, want) {
		t.Errorf("%d leading blocks, want %d", got, want)
	}
	if n := h.Remove(GPU); n != 0 {
		t.Errorf("%d of no blocks are removed", n)
	}
}

func TestStoreRefuses(t *testing.T) {
	x := New(testSeed, 6)
	h := x.Join()
	if err := store(h, prompt(0, 0, 8), 3, 5); err != ErrParent {
		t.Errorf("an unknown parent: %v", err)
	}
	if err := store(h, prompt(0, 0, 8), 0, 8); err != ErrFull {
		t.Errorf("more blocks than the limit: %v", err)
	}
	for _, s := range []Stored{{}, {Names: []uint64{1}}, {Names: []uint64{1, 2}, Tokens: make([]uint32, 5)}, {Tokens: make([]uint32, 5)},
		{Names: []uint64{1}, Tokens: make([]uint32, 4), Extras: make([]uint64, 2)}} {
		if err := h.Store(&s); err != ErrForm {
			t.Errorf("%v: %v", s, err)
		}
	}
	if h.Len() != 0 || x.Blocks() != 0 {
		t.Errorf("%d and %d blocks are stored", h.Len(), x.Blocks())
	}
}

// A name that comes again for other tokens is that of the new block only, and a second name of a block is ignored.
func TestStoreNamesAgain(t *testing.T) {
	x := New(testSeed, 1000)
	h := x.Join()
	a, b := prompt(0, 0, 2), prompt(1, 0, 2)
	put := func(tokens []uint32, names ...uint64) {
		t.Helper()
		if err := h.Store(&Stored{Names: names, First: true, Root: root(), Tokens: tokens}); err != nil {
			t.Fatal(err)
		}
	}
	put(a, 1, 2)
	put(b, 1, 2)
	if got := depths(x, a, h)[0]; got != 0 {
		t.Errorf("%d blocks of the first prompt", got)
	}
	put(b, 3, 4)
	h.Remove(GPU, 3)
	if got := depths(x, b, h)[0]; got != 2 || h.Len() != 2 {
		t.Errorf("%d blocks of the second prompt, %d in all", got, h.Len())
	}
	h.Remove(GPU, 1)
	if got := depths(x, b, h)[0]; got != 0 || h.Len() != 1 {
		t.Errorf("%d blocks after the removal, %d in all", got, h.Len())
	}
}

func TestKeys(t *testing.T) {
	tokens := prompt(0, 0, 4)
	all := map[Key]string{}
	note := func(what string, keys ...Key) {
		for i, k := range keys {
			if before, ok := all[k]; ok {
				t.Errorf("block %d of %s has the key of %s", i, what, before)
			}
			all[k] = fmt.Sprintf("block %d of %s", i, what)
		}
	}
	s := testSeed
	note("the prompt", chain(tokens)...)
	note("another seed", (s+1).Append(nil, (s+1).Root(block, nil), 0, block, tokens)...)
	note("an adapter", s.Append(nil, s.Root(block, []byte("poet")), 0, block, tokens)...)
	note("a salt", s.Append(nil, root(), s.Text(0, []byte("pepper")), block, tokens)...)
	note("longer blocks", s.Append(nil, s.Root(2*block, nil), 0, 2*block, tokens)...)
	note("other tokens", chain(prompt(1, 0, 4))...)
	if got := s.Append(nil, root(), 0, block, tokens[:2*block+1]); len(got) != 2 {
		t.Errorf("%d keys of two blocks and a token", len(got))
	}
}

// TestKeysAreSpread: whatever bit of a block's tokens, of the key before it or of the extra changes, each bit of the key changes half the time, and
// neither equal tokens, nor exchanged ones, nor those that count up make keys that are equal.
func TestKeysAreSpread(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 4, 15, 16, 17, 32, 40} {
		all := map[Key]bool{}
		note := func(key Key) {
			if all[key] {
				t.Errorf("%d tokens: two blocks have the key %#x", n, key)
			}
			all[key] = true
		}
		tokens := make([]uint32, n)
		for i := range uint32(50_000) {
			for j := range tokens {
				tokens[j] = i // the same at all places
			}
			note(testSeed.Next(1, tokens, 0))
			if i == 0 || n == 1 {
				continue
			}
			tokens[int(i)%n] = 0 // another one at one place
			note(testSeed.Next(1, tokens, 0))
		}
		for i := range tokens {
			tokens[i] = random.Uint32N(150_000)
		}
		for _, width := range []int{1, 2, 4, 8} { // of what is exchanged
			for i := 0; i+width <= n; i += width {
				for j := 0; j < i; j += width {
					other := slices.Clone(tokens)
					copy(other[i:i+width], tokens[j:])
					copy(other[j:j+width], tokens[i:])
					note(testSeed.Next(1, other, 0))
				}
			}
		}
		var flips [64]int // by bit of the key
		changes := 0
		for range 40 {
			for i := range tokens {
				tokens[i] = random.Uint32()
			}
			before, extra := random.Uint64(), random.Uint64()
			key := testSeed.Next(before, tokens, extra)
			changed := func(other Key) {
				changes++
				for d := key ^ other; d != 0; d &= d - 1 {
					flips[bits.TrailingZeros64(d)]++
				}
			}
			for i := range 32 * n {
				tokens[i/32] ^= 1 << (i % 32)
				changed(testSeed.Next(before, tokens, extra))
				tokens[i/32] ^= 1 << (i % 32)
			}
			for i := range 64 {
				changed(testSeed.Next(before^1<<i, tokens, extra))
				changed(testSeed.Next(before, tokens, extra^1<<i))
			}
		}
		for i, f := range flips {
			if share := float64(f) / float64(changes); share < 0.46 || share > 0.54 {
				t.Errorf("%d tokens: bit %d changes in %.3f of %d changes", n, i, share, changes)
			}
		}
	}
}

// TestKeysOfParts: keys are the same whether a prompt is hashed at once or block by block.
func TestKeysOfParts(t *testing.T) {
	for _, n := range []int{1, 4, 16, 20, 48} {
		tokens := randomTokens(6*n - 1)
		root := testSeed.Root(n, nil)
		var want []Key
		key, salt := root, Key(77)
		for i := range 5 {
			key = testSeed.Next(key, tokens[i*n:(i+1)*n], salt)
			want, salt = append(want, key), 0
		}
		if got := testSeed.Append([]Key{9}, root, 77, n, tokens); !slices.Equal(got, append([]Key{9}, want...)) {
			t.Errorf("blocks of %d tokens: %#x, want %#x", n, got[1:], want)
		}
	}
}

// What is done to an index is done to plain sets too: after each step holders have the same.
func TestAgainstModel(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		steps := make([]byte, 2000)
		for i := range steps {
			steps[i] = byte(random.Uint32())
		}
		compare(t, steps, false)
		compare(t, steps, true)
	}
}

func FuzzAgainstModel(f *testing.F) {
	f.Add([]byte{0, 0, 1, 9, 1, 0, 1, 3, 0, 0, 1, 9}, false)
	f.Add([]byte{0, 0, 1, 9, 1, 0, 1, 3, 3, 1, 1, 9}, true)
	f.Fuzz(func(t *testing.T, steps []byte, named bool) { compare(t, steps, named) })
}

// compare reads steps of four bytes: what to do, for which holder and tier, with which prompt, and how many blocks. named says that keys are
// names: then holders also tell of blocks in the middle of prompts alone.
func compare(t *testing.T, steps []byte, named bool) {
	const most = 40
	var prompts [16][]uint32
	var allNames [16][]uint64
	for i := range prompts {
		// They form a tree: each differs from the one it comes from after another number of blocks.
		from := prompts[i/2]
		fork := (i * 7) % 20
		prompts[i] = prompt(uint32(i), fork, most)
		copy(prompts[i][:fork*block], from)
		allNames[i] = names(prompts[i])
	}
	x := New(testSeed, 1<<20)
	if named {
		x = NewNamed(testSeed, 1<<20)
	}
	holders := []*Holder{x.Join(), x.Join(), x.Join(), x.Join()}
	has := make([]map[uint64]tierSet, len(holders)) // by name
	for i := range has {
		has[i] = map[uint64]tierSet{}
	}
	for ; len(steps) >= 4; steps = steps[4:] {
		who, which := int(steps[1])%len(holders), int(steps[2])%len(prompts)
		tokens, all := prompts[which], allNames[which]
		n := int(steps[3]) % most
		h, own := holders[who], has[who]
		tier := [...]Tier{GPU, GPU, CPU, Disk}[steps[1]/16%4]
		remove := func(names ...uint64) {
			had := 0
			for _, name := range names {
				if own[name]&tier.set() != 0 {
					had++
				}
				if own[name] &^= tier.set(); own[name] == 0 {
					delete(own, name)
				}
			}
			if n := h.Remove(tier, names...); n != had {
				t.Fatalf("Remove returns %d, want %d", n, had)
			}
		}
		switch steps[0] % 18 {
		case 0, 1, 2, 3, 4, 5: // a prefix of which it may have a beginning
			first := 0
			for own[all[first]] != 0 && first < n {
				first++
			}
			if steps[0]%2 == 0 {
				first = 0
			}
			err := error(nil)
			if s := (Stored{Tier: tier}); named {
				first = int(steps[0]) / 18 * n / 14 // whatever it has
				switch s.Names = all[first : n+1]; {
				case steps[0]%3 == 0:
					s.Loose, s.First = true, true
				case first == 0:
					s.First = true
				default:
					s.Parent = all[first-1]
				}
				err = h.Store(&s)
			} else {
				err = storeIn(h, tier, tokens, first, n+1)
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := first; i <= n; i++ {
				own[all[i]] |= tier.set()
			}
		case 6, 7, 8, 9: // the end of a prompt, as engines drop it
			for i := most - 1; i >= n; i-- {
				remove(all[i])
			}
		case 10, 11, 12: // one block
			remove(all[n])
		case 13: // from the beginning, all at once
			remove(all[:n]...)
		case 14:
			h.Clear()
			clear(own)
		case 15:
			h.Leave()
			holders[who] = x.Join()
			clear(own)
		case 16: // the beginning moves to another tier, told by names alone; or what another holder has is taken over
			as := who
			if steps[0] >= 128 {
				as = (who + 1) % len(holders)
			}
			for _, name := range all[:n] {
				known := named || own[name] != 0 || has[as][name] != 0
				if err := h.Keep(tier, name, holders[as]); (err == nil) != known {
					t.Fatalf("Keep of a block that is known: %v returns %v", known, err)
				}
				if known {
					own[name] |= tier.set()
				}
			}
		case 17:
			h.ClearTier(tier)
			for name := range own {
				if own[name] &^= tier.set(); own[name] == 0 {
					delete(own, name)
				}
			}
		}
		total := 0
		for i, h := range holders {
			total += len(has[i])
			if h.Len() != len(has[i]) {
				t.Fatalf("holder %d has %d blocks, want %d", i, h.Len(), len(has[i]))
			}
			var in [Tiers]int
			for _, tiers := range has[i] {
				for k := range Tiers {
					if tiers&k.set() != 0 {
						in[k]++
					}
				}
			}
			for k := range Tiers {
				if h.In(k) != in[k] {
					t.Fatalf("holder %d has %d blocks in tier %d, want %d", i, h.In(k), k, in[k])
				}
			}
		}
		if x.Blocks() != int64(total) {
			t.Fatalf("%d blocks, want %d", x.Blocks(), total)
		}
		check(t, x, holders, has, tokens, all)
	}
	for i := range prompts {
		check(t, x, holders, has, prompts[i], allNames[i])
	}
	for _, h := range holders {
		h.Leave()
	}
	for !x.Sweep() {
	}
	if named {
		for i := range x.places.parts {
			if n := x.places.parts[i].count; n > 0 {
				t.Fatalf("%d names have places after all have left", n)
			}
		}
	}
	if len(x.free) != len(x.runs)-1 || len(x.numbers) != int(x.top.Load()) {
		t.Fatalf("%d of %d runs and %d of %d numbers are free after all have left", len(x.free), len(x.runs)-1, len(x.numbers), x.top.Load())
	}
}

func check(t *testing.T, x *Index, holders []*Holder, has []map[uint64]tierSet, tokens []uint32, names []uint64) {
	t.Helper()
	var d Depths
	keys := chain(tokens)
	if x.Named() {
		keys = names
	}
	x.Measure(keys, &d)
	for i, h := range holders {
		for k := range Tiers {
			want := 0
			for want < len(names) && has[i][names[want]]&k.upTo() != 0 {
				want++
			}
			if got := d.UpTo(h, k); got != want {
				t.Fatalf("holder %d has %d blocks up to tier %d, want %d", i, got, k, want)
			}
		}
	}
}

// Where keys are names, blocks are found that were told without their tokens or the blocks before them, in whatever order.
func TestNamed(t *testing.T) {
	all := names(prompt(0, 6, 6))
	other := names(prompt(1, 3, 6)) // the same until block 3
	for name, test := range map[string]struct {
		told []Stored
		want int // leading blocks of the prompt
	}{
		"in order":                 {[]Stored{{Names: all[:3], First: true}, {Names: all[3:], Parent: all[2]}}, 6},
		"the end first":            {[]Stored{{Names: all[3:], Parent: all[2]}, {Names: all[:3], First: true}}, 6},
		"one by one, from the end": {[]Stored{{Names: []uint64{all[2]}, Parent: all[1]}, {Names: []uint64{all[1]}, Parent: all[0]}, {Names: all[:1], First: true}}, 3},
		"loose":                    {[]Stored{{Names: []uint64{all[3], all[0], all[2], all[1]}, First: true, Loose: true}}, 4},
		"with a gap":               {[]Stored{{Names: []uint64{all[0], all[1], all[3]}, First: true, Loose: true}}, 2},
		"the beginning is missing": {[]Stored{{Names: all[1:], Parent: all[0]}}, 0},
		"another prompt":           {[]Stored{{Names: other, First: true}}, 3},
		"again":                    {[]Stored{{Names: all[:4], First: true}, {Names: all[2:5], Parent: all[1]}}, 5},
		"on a disk":                {[]Stored{{Names: all[:2], First: true}, {Names: all[2:], Tier: Disk, First: true, Loose: true}}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			x := NewNamed(testSeed, 1000)
			before, h := x.Join(), x.Join()
			if err := before.Store(&Stored{Names: all[:5], First: true}); err != nil {
				t.Fatal(err)
			}
			for range 2 { // with another holder of the prompt, then with none
				for i := range test.told {
					if err := h.Store(&test.told[i]); err != nil {
						t.Fatal(err)
					}
				}
				var d Depths
				if x.Measure(all, &d); d.UpTo(h, Disk) != test.want {
					t.Errorf("%d blocks, want %d", d.UpTo(h, Disk), test.want)
				}
				before.Leave()
				h.Clear()
				for !x.Sweep() {
				}
			}
		})
	}
}

// Readers see what holders have whose blocks do not change, while other holders' come and go beside, before and behind them.
func TestMeasureWhileOthersChange(t *testing.T) {
	x := New(testSeed, 1<<20)
	steady, busy := x.Join(), x.Join()
	mine := prompt(0, 10, 30)
	if err := store(steady, mine, 0, 30); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var d Depths
			for keys := chain(mine); ; {
				select {
				case <-done:
					return
				default:
				}
				if x.Measure(keys, &d); d.Of(steady) != 30 {
					t.Errorf("%d blocks", d.Of(steady))
					return
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		tokens := prompt(uint32(random.IntN(8)), random.IntN(12), 80)
		if err := store(busy, tokens, 0, 1+random.IntN(80)); err != nil {
			t.Fatal(err)
		}
		for _, name := range names(tokens)[random.IntN(80):] {
			busy.Remove(GPU, name)
		}
		if i%100 == 0 {
			busy.Clear()
		}
		if i%7 == 0 {
			third := x.Join()
			third.Claim(chain(tokens))
			third.Leave()
		}
	}
	close(done)
	readers.Wait()
}

func TestMeasureAllocatesNothing(t *testing.T) {
	x := New(testSeed, 1<<20)
	h := x.Join()
	tokens := prompt(0, 0, 100)
	if err := store(h, tokens, 0, 100); err != nil {
		t.Fatal(err)
	}
	var d Depths
	keys := chain(tokens)
	if n := testing.AllocsPerRun(100, func() {
		keys = testSeed.Append(keys[:0], root(), 0, block, tokens)
		x.Measure(keys, &d)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBitmap(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var b bitmap
	want := map[uint32]bool{}
	for range 2000 {
		first := random.Uint32N(300)
		switch end := first + random.Uint32N(150); {
		case random.IntN(3) > 0 && !b.has(first):
			for off := first; off < end; off++ {
				if want[off] {
					end = off
				}
			}
			b.set(first, end)
			for off := first; off < end; off++ {
				want[off] = true
			}
		case want[first] && random.IntN(2) == 0:
			b.clear(first)
			delete(want, first)
		default:
			next := b.take(first)
			for off := first; want[off]; off++ {
				delete(want, off)
				first = off + 1
			}
			if next != first {
				t.Fatalf("take returns %d, want %d", next, first)
			}
		}
		var end uint32
		for off := range uint32(600) {
			if b.has(off) != want[off] {
				t.Fatalf("has(%d) = %v", off, !want[off])
			}
			if want[off] {
				end = off + 1
			}
		}
		if int(b.count) != len(want) || b.count > 0 && b.end() != end {
			t.Fatalf("%d offsets up to %d, want %d up to %d", b.count, b.end(), len(want), end)
		}
	}
}

func TestTable(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	var tab table
	want := map[uint64]place{}
	for i := range 200000 {
		name := random.Uint64N(3000) << (random.IntN(2) * 40)
		if random.IntN(5) < 3 {
			if s := tab.slot(name); s.place == 0 {
				tab.fill(s, name, place(i+1))
			} else {
				s.place = place(i + 1)
			}
			want[name] = place(i + 1)
		} else if got := tab.remove(name); got != want[name] {
			t.Fatalf("remove returns %d, want %d", got, want[name])
		} else {
			delete(want, name)
		}
		if other := random.Uint64N(3000); tab.get(other) != want[other] || tab.count != len(want) {
			t.Fatalf("%d at %d, want %d", tab.get(other), other, want[other])
		}
	}
}

// Keys do not depend on the machine.
func TestKeysDoNotChange(t *testing.T) {
	if got, want := testSeed.Append(nil, testSeed.Root(6, []byte("poet")), testSeed.Text(0, []byte("a long cache salt")), 6, prompt(0, 0, 3)),
		[]Key{0xa1233d2a6c8df07b, 0xa8b58b21964dbdb7}; !slices.Equal(got, want) {
		t.Errorf("%#x, want %#x", got, want)
	}
}
