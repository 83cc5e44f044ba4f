package kvevents

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp/kvhash"
	"github.com/tandem-serving/tandem/epp/kvindex"
)

const (
	seed = kvindex.Seed(0x5eed)
	size = 4 // tokens in a block
)

// engine is a stream and what requests find of it.
type engine struct {
	*Stream
	index    *kvindex.Index
	replayed int // messages that follow has heard so
}

func newEngine() *engine {
	x := kvindex.New(seed, 1000)
	e := &engine{Stream: NewStream(x, x.Join(), new(Roots), new(Counts)), index: x}
	e.Shared = x.Join()
	return e
}

// tells applies a batch of events.
func (e *engine) tells(t *testing.T, events ...any) {
	t.Helper()
	if _, err := e.Apply(pack(nil, list{1.5, list(events), 0})); err != nil {
		t.Fatal(err)
	}
}

// tokens are those of n blocks.
func tokens(n int) (ids []uint32) {
	for i := range n * size {
		ids = append(ids, uint32(100+i))
	}
	return ids
}

// finds returns how many blocks a request for a model finds, of n.
func (e *engine) finds(model, salt string, n int) (most int) {
	var extra uint64
	if salt != "" {
		extra = seed.Text(0, []byte(salt))
	}
	for _, root := range e.Roots.Of(model) {
		var d kvindex.Depths
		e.index.Measure(seed.Append(nil, root.Key, extra, root.BlockTokens, tokens(n)), &d)
		most = max(most, d.Of(e.Holder))
	}
	return most
}

// stored is vLLM's event about n blocks, with other members behind.
func stored(n int, more ...any) any {
	var names []uint64
	for i := range n {
		names = append(names, uint64(1000+i))
	}
	return append(dict{"type", "BlockStored", "block_hashes", names, "parent_block_hash", nil, "token_ids", tokens(n), "block_size", size}, more...)
}

func removed(names ...uint64) dict {
	return dict{"type", "BlockRemoved", "block_hashes", names, "medium", "GPU"}
}

// offloaded is what vLLM tells of a block that it has copied elsewhere, unless its connector is told to describe blocks.
func offloaded(medium string, name uint64, more ...any) any {
	return append(dict{"type", "BlockStored", "block_hashes", list{name}, "parent_block_hash", nil, "token_ids", list{}, "block_size", 0,
		"lora_id", nil, "medium", medium, "lora_name", nil, "group_idx", 0}, more...)
}

// dropped is an event about blocks that have left a kind of memory.
func dropped(medium string, names ...uint64) any {
	return dict{"type", "BlockRemoved", "block_hashes", names, "medium", medium}
}

// TestTiers: blocks are found in the fastest memory that an engine has them in, and what leaves one kind of memory stays in others.
func TestTiers(t *testing.T) {
	cleared := dict{"type", "AllBlocksCleared"}
	for name, test := range map[string]struct {
		events []any
		want   [3]int // leading blocks: in the accelerator's memory, also from the host's, also from disks
		shared int
	}{
		"copied, then evicted":        {[]any{stored(3), offloaded("CPU", 1000), offloaded("CPU", 1001), removed(1000, 1001, 1002)}, [3]int{0, 2, 2}, 0},
		"the end is evicted":          {[]any{stored(3), offloaded("CPU", 1001), offloaded("CPU", 1002), removed(1001, 1002)}, [3]int{1, 3, 3}, 0},
		"in both":                     {[]any{stored(3), offloaded("CPU", 1000)}, [3]int{3, 3, 3}, 0},
		"a gap":                       {[]any{stored(3), offloaded("CPU", 1000), offloaded("CPU", 1002), removed(1000, 1001, 1002)}, [3]int{0, 1, 1}, 0},
		"on to a disk":                {[]any{stored(2), offloaded("CPU", 1000), offloaded("STORAGE", 1000), removed(1000, 1001), dropped("CPU", 1000)}, [3]int{0, 0, 1}, 0},
		"back again":                  {[]any{stored(2), offloaded("CPU", 1000), removed(1000), stored(1)}, [3]int{2, 2, 2}, 0},
		"gone from all":               {[]any{stored(2), offloaded("CPU", 1000), removed(1000), dropped("CPU", 1000)}, [3]int{0, 0, 0}, 0},
		"described, by vLLM":          {[]any{stored(3, "medium", "CPU")}, [3]int{0, 3, 3}, 0},
		"SGLang's":                    {[]any{stored(3), stored(3, "medium", "CPU_PINNED"), removed(1000, 1001, 1002), dropped("CPU_PINNED", 1002)}, [3]int{0, 2, 2}, 0},
		"described without its salt":  {[]any{stored(2, "extra_keys", list{list{"salt"}, nil}), stored(2, "medium", "CPU"), removed(1000, 1001)}, [3]int{0, 0, 0}, 0},
		"cleared":                     {[]any{stored(3), offloaded("CPU", 1000), cleared}, [3]int{0, 1, 1}, 0},
		"in a shared store":           {[]any{stored(3), offloaded("STORAGE", 1000, "locality", "REMOTE"), removed(1000, 1001, 1002)}, [3]int{0, 0, 0}, 1},
		"SGLang's, in a shared store": {[]any{stored(3, "medium", "EXTERNAL"), dropped("EXTERNAL", 1002)}, [3]int{0, 0, 0}, 2},
		"read back from one":          {[]any{stored(3, "medium", "EXTERNAL"), stored(2)}, [3]int{2, 2, 2}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine()
			e.tells(t, test.events...)
			var d kvindex.Depths
			e.index.Measure(seed.Append(nil, e.Roots.Of("m")[0].Key, 0, size, tokens(4)), &d)
			got := [3]int{d.UpTo(e.Holder, kvindex.GPU), d.UpTo(e.Holder, kvindex.CPU), d.UpTo(e.Holder, kvindex.Disk)}
			if shared := d.Of(e.Shared); got != test.want || shared != test.shared {
				t.Errorf("%v and %d blocks, want %v and %d", got, shared, test.want, test.shared)
			}
			for r := range reasons {
				if n := e.Counts.Skipped[r].Load(); n > 0 {
					t.Errorf("%d events are skipped as %v", n, r)
				}
			}
			if told := e.Counts.Shared.Load(); told != (test.shared > 0) {
				t.Errorf("the engine has told of a shared store: %v", told)
			}
		})
	}
}

func TestStream(t *testing.T) {
	type want struct {
		model, salt string
		blocks      int
	}
	for name, test := range map[string]struct {
		events []any
		want   []want
		reason Reason // of the one skipped event; reasons = none
	}{
		"stored":          {[]any{stored(3, "medium", "GPU")}, []want{{"m", "", 3}, {"m", "salt", 0}}, reasons},
		"stored, removed": {[]any{stored(3), removed(1002)}, []want{{"m", "", 2}}, reasons},
		"stored in two events": {[]any{stored(1), dict{"type", "BlockStored", "block_hashes", list{2000}, "parent_block_hash", 1000,
			"token_ids", tokens(2)[size:], "block_size", size}}, []want{{"m", "", 2}}, reasons},
		"removed before it is stored":             {[]any{removed(1002), stored(3)}, []want{{"m", "", 3}}, reasons},
		"all told again":                          {[]any{stored(3), stored(3), removed(1002)}, []want{{"m", "", 2}}, reasons},
		"cleared":                                 {[]any{stored(3), dict{"type", "AllBlocksCleared"}, stored(1)}, []want{{"m", "", 1}}, reasons},
		"an adapter":                              {[]any{stored(3, "lora_name", "poet")}, []want{{"poet", "", 3}, {"m", "", 0}}, reasons},
		"an adapter, also as extras":              {[]any{stored(1, "lora_name", "poet", "extra_keys", list{list{"poet"}})}, []want{{"poet", "", 1}}, reasons},
		"an adapter and a salt":                   {[]any{stored(1, "lora_name", "poet", "extra_keys", list{list{"poet", "salt"}})}, []want{{"poet", "salt", 1}, {"poet", "", 0}}, reasons},
		"vLLM's salt":                             {[]any{stored(2, "extra_keys", list{list{"salt"}, nil})}, []want{{"m", "salt", 2}, {"m", "", 0}}, reasons},
		"SGLang's salt":                           {[]any{stored(2, "cache_salt", "salt")}, []want{{"m", "salt", 2}, {"m", "", 0}}, reasons},
		"an image in the second":                  {[]any{stored(2, "extra_keys", list{nil, list{list{"image", 3}}})}, []want{{"m", "", 1}}, reasons},
		"in the memory of the host":               {[]any{stored(3, "medium", "CPU")}, []want{{"m", "", 0}}, reasons},
		"in unknown memory":                       {[]any{stored(3, "medium", "TAPE_OF_A_VERY_OLD_KIND")}, []want{{"m", "", 0}}, Elsewhere},
		"in lower case":                           {[]any{stored(3, "medium", "gpu")}, []want{{"m", "", 3}}, reasons},
		"in a shared store":                       {[]any{stored(3, "locality", "REMOTE")}, []want{{"m", "", 0}}, reasons},
		"left the host's memory":                  {[]any{stored(3), dict{"type", "BlockRemoved", "block_hashes", list{1000}, "medium", "CPU"}}, []want{{"m", "", 3}}, reasons},
		"offloaded, not described, and not known": {[]any{offloaded("CPU", 1000)}, nil, Orphan},
		"layers with a window":                    {[]any{stored(3, "kv_cache_spec_kind", "sliding_window")}, []want{{"m", "", 0}}, Layers},
		"a group of layers, and another": {[]any{stored(3, "group_idx", 1), dict{"type", "BlockRemoved", "block_hashes", list{1000}, "group_idx", 2}},
			[]want{{"m", "", 3}}, Layers},
		"a block after an unknown one": {[]any{dict{"type", "BlockStored", "block_hashes", list{1}, "parent_block_hash", 9,
			"token_ids", tokens(1), "block_size", size}}, []want{{"m", "", 0}}, Orphan},
		"tokens of blocks that are left out": {[]any{dict{"type", "BlockStored", "block_hashes", list{1}, "parent_block_hash", nil,
			"token_ids", tokens(3), "block_size", size}}, []want{{"m", "", 0}}, Malformed},
		"an adapter without a name": {[]any{stored(1, "lora_id", 3)}, []want{{"m", "", 0}}, Malformed},
		"more than the index holds": {[]any{stored(1001)}, []want{{"m", "", 0}}, Full},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine()
			e.tells(t, test.events...)
			for _, w := range test.want {
				if got := e.finds(w.model, w.salt, 5); got != w.blocks {
					t.Errorf("%d blocks for %q with salt %q, want %d", got, w.model, w.salt, w.blocks)
				}
			}
			for r := range reasons {
				want := int64(0)
				if r == test.reason {
					want = 1
				}
				if got := e.Counts.Skipped[r].Load(); got != want {
					t.Errorf("%d events are skipped as %v, want %d", got, r, want)
				}
			}
		})
	}
}

// Recorded streams of real engines leave in the index what a plain set of their names has.
func TestStreamRecordings(t *testing.T) {
	streams := map[string]*engine{}
	sets := map[string]map[uint64]bool{}
	for _, r := range recordings(t) {
		e, set := streams[r.Label], sets[r.Label]
		if e == nil {
			e, set = newEngine(), map[uint64]bool{}
			streams[r.Label], sets[r.Label] = e, set
		}
		var d Decoder
		if _, err := d.Decode(r.payload(t), func(ev *Event) {
			switch ev.Kind {
			case Stored:
				for _, n := range ev.Names {
					if !ev.HasParent || set[ev.Parent] {
						set[n] = true
					}
				}
			case Removed:
				for _, n := range ev.Names {
					delete(set, n)
				}
			case Cleared:
				clear(set)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Apply(r.payload(t)); err != nil {
			t.Fatal(err)
		}
		if e.Holder.Len() != len(set) {
			t.Fatalf("%s: %d blocks, want %d", r.Label, e.Holder.Len(), len(set))
		}
		for n := range set {
			if !e.Holder.Has(kvindex.GPU, n) {
				t.Fatalf("%s: block %x is missing", r.Label, n)
			}
		}
	}
}

// algorithmOf returns how the engine of a recording names blocks.
func algorithmOf(t *testing.T, label string) kvhash.Algorithm {
	file, how, _ := strings.Cut(label, " ")
	given := struct{ Algo, Seed string }{Algo: "sha256"}
	if strings.HasPrefix(file, "sglang") {
		given.Algo = "sglang"
	} else if strings.HasPrefix(how, "{") {
		if err := json.Unmarshal([]byte(how), &given); err != nil {
			t.Fatal(err)
		}
	}
	a, err := kvhash.Parse(given.Algo, given.Seed)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// newNamed is newEngine with an index whose keys are names.
func newNamed(a kvhash.Algorithm) *engine {
	x := kvindex.NewNamed(seed, 1000)
	e := &engine{Stream: NewStream(x, x.Join(), new(Roots), new(Counts)), index: x}
	e.Hasher, e.Shared = kvhash.New(a), x.Join()
	return e
}

// TestNamedRecordings: the names in recordings are those that are computed from the token ids, and blocks are found by them, though an event
// about them has nothing else, and they are told from the last one to the first.
func TestNamedRecordings(t *testing.T) {
	checked := map[kvhash.Algorithm]int{}
	streams, bare := map[string]*engine{}, map[string]*engine{}
	prompts := map[string]map[uint64][]uint32{} // tokens by the name of the last block
	for _, r := range recordings(t) {
		a := algorithmOf(t, r.Label)
		if streams[r.Label] == nil {
			streams[r.Label], bare[r.Label], prompts[r.Label] = newNamed(a), newNamed(a), map[uint64][]uint32{}
		}
		if _, err := streams[r.Label].Apply(r.payload(t)); err != nil {
			t.Fatal(err)
		}
		var d Decoder
		if _, err := d.Decode(r.payload(t), func(e *Event) {
			before := prompts[r.Label][e.Parent]
			if e.Kind != Stored || len(e.Extras) > 0 || e.HasParent && before == nil {
				return
			}
			for i, name := range slices.Backward(e.Names) {
				prompts[r.Label][name] = append(slices.Clip(before), e.Tokens[:(i+1)*e.BlockTokens]...)
				bare[r.Label].tells(t, offloaded("CPU", name))
			}
			named := e.Names[len(e.Names)-1]
			tokens := prompts[r.Label][named]
			p := kvhash.Prompt{Tokens: tokens, BlockTokens: e.BlockTokens, HashTokens: e.BlockTokens}
			keys := kvhash.New(a).Append(nil, &p)
			if len(keys) == 0 || keys[len(keys)-1] != named {
				t.Errorf("%s: the last of %d blocks is %x, want %x", r.Label, len(keys), keys, named)
			}
			var depths kvindex.Depths
			holder := bare[r.Label].Holder
			if bare[r.Label].index.Measure(keys, &depths); depths.UpTo(holder, kvindex.CPU) != len(keys) {
				t.Errorf("%s: %d blocks of %d are found", r.Label, depths.UpTo(holder, kvindex.CPU), len(keys))
			}
			checked[a] += len(e.Names)
		}); err != nil {
			t.Fatal(err)
		}
	}
	for label, e := range streams {
		if misnamed, orphans := e.Counts.Misnamed.Load(), e.Counts.Orphans.Load(); misnamed+orphans > 0 {
			t.Errorf("%s: %d blocks have other names than computed, %d no parent", label, misnamed, orphans)
		}
	}
	for _, a := range []string{"sha256", "sha256_cbor with hashSeed \"42\"", "sglang"} {
		n := 0
		for of, blocks := range checked {
			if of.String() == a {
				n = blocks
			}
		}
		if n < 10 {
			t.Errorf("%d blocks of %s are compared", n, a)
		}
	}
}

// TestNamesAreChecked: an engine that names blocks in another way is noticed at its first prompt; one that hashes more often than once for each
// block is understood.
func TestNamesAreChecked(t *testing.T) {
	plain, err := kvhash.Parse("sha256", "")
	if err != nil {
		t.Fatal(err)
	}
	named := func(hashTokens int, adapter string) []uint64 {
		return kvhash.New(plain).Append(nil, &kvhash.Prompt{Tokens: tokens(3), BlockTokens: size, HashTokens: hashTokens, Adapter: []byte(adapter)})
	}
	tells := func(names []uint64, more ...any) any {
		return append(dict{"type", "BlockStored", "block_hashes", names, "parent_block_hash", nil, "token_ids", tokens(3), "block_size", size}, more...)
	}
	adapter := []any{"lora_name", "poet", "lora_id", 1, "extra_keys", list{list{"poet"}, list{"poet"}, list{"poet"}}}
	for name, test := range map[string]struct {
		event           any
		named, misnamed int64
		hashTokens      int
	}{
		"as configured":        {tells(named(0, "")), 3, 0, size},
		"in another way":       {tells([]uint64{1, 2, 3}), 3, 3, size},
		"an adapter":           {tells(named(0, "poet"), adapter...), 3, 0, size},
		"an adapter's name":    {tells(named(0, ""), adapter...), 3, 3, size},
		"hashed more often":    {tells(named(2, "")), 3, 0, 2},
		"what is not computed": {tells([]uint64{1, 2, 3}, "extra_keys", list{list{"image"}, nil, nil}), 0, 0, size},
	} {
		t.Run(name, func(t *testing.T) {
			e, told := newNamed(plain), 0
			e.Misnamed = func(_ kvhash.Prompt, names []uint64) { told += len(names) }
			e.tells(t, test.event)
			if n, m := e.Counts.Named.Load(), e.Counts.Misnamed.Load(); n != test.named || m != test.misnamed || told != int(m) {
				t.Errorf("%d names were computed, %d are others, of which %d were told; want %d and %d", n, m, told, test.named, test.misnamed)
			}
			if got := e.Roots.Of("poet")[0].HashTokens; got != test.hashTokens {
				t.Errorf("hashed after %d tokens, want %d", got, test.hashTokens)
			}
		})
	}
}

func TestRootsAreBounded(t *testing.T) {
	var r Roots
	for i := range 3 * maxAdapters {
		r.note(seed, 16, []byte{byte(i), byte(i >> 8), 1})
	}
	for i := range 10 {
		r.note(seed, 16+i, nil)
	}
	if n := len(*r.of.Load()); n != maxAdapters {
		t.Errorf("%d adapters", n)
	}
	if n := len(r.Of("model")); n > maxLengths {
		t.Errorf("%d lengths", n)
	}
	if got, want := r.note(seed, 99, []byte("late")), seed.Root(99, []byte("late")); got != want {
		t.Errorf("a root that is not kept is %x, want %x", got, want)
	}
}
