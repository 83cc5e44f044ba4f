package kvevents

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/epp/kvhash"
	"github.com/tandem-serving/tandem/epp/kvindex"
)

// Reason is why blocks of an event were not noted.
type Reason uint8

// The reasons.
const (
	Malformed Reason = iota // it is of no known kind, or not as it should be
	Elsewhere               // the blocks are in a kind of memory that is not known
	Layers                  // they are of layers of which prompts need only some blocks, or of a further group
	Orphan                  // the block before them is not known, or they are named only and not known
	Full                    // the index is full
	reasons
)

// String returns the reason as metrics have it.
func (r Reason) String() string {
	return [reasons]string{"malformed", "elsewhere", "layers", "orphan", "full"}[r]
}

// Counts is what streams have read. It may be shared.
type Counts struct {
	Stored, Removed, Cleared atomic.Int64          // blocks, blocks, events
	Orphans                  atomic.Int64          // blocks of the events that were skipped as such
	Skipped                  [reasons]atomic.Int64 // events, by Reason

	Connected atomic.Int64 // connections that there are
	Earlier   atomic.Int64 // messages from before the stream was followed that were not replayed
	Lost      atomic.Int64 // later ones that were missed and not replayed
	Restarts  atomic.Int64 // of engines, as the numbers of messages show
	Replays   atomic.Int64 // that were asked for, and ReplayErrors of them that failed

	ReplayErrors atomic.Int64

	Shared atomic.Bool // blocks in a shared store were told of

	Named, Misnamed atomic.Int64 // blocks whose names were computed, and those that have other ones
}

// Root is how blocks of one length begin.
type Root struct {
	BlockTokens int
	Key         kvindex.Key // of no use where keys are names
	HashTokens  int         // where keys are names: after how many tokens the engine hashes, a divisor of BlockTokens
	Adapter     []byte      // none = the model itself
}

// Roots are the lengths of blocks that engines have, for each of their adapters. The zero value has none.
type Roots struct {
	mu sync.Mutex // held for changes
	of atomic.Pointer[map[string][]Root]
}

const (
	maxAdapters = 1024 // of which requests are looked up
	maxLengths  = 4    // for each of them
)

// Of returns the roots for requests for a model. If it is no adapter of which engines have told, it is the model itself.
func (r *Roots) Of(model string) []Root {
	of := r.of.Load()
	if of == nil {
		return nil
	}
	if roots, ok := (*of)[model]; ok && model != "" {
		return roots
	}
	return (*of)[""]
}

// note returns the key of a root, and keeps it.
func (r *Roots) note(seed kvindex.Seed, blockTokens int, adapter []byte) kvindex.Key {
	if of := r.of.Load(); of != nil {
		for _, root := range (*of)[string(adapter)] {
			if root.BlockTokens == blockTokens {
				return root.Key
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	root := Root{blockTokens, seed.Root(blockTokens, adapter), blockTokens, slices.Clone(adapter)}
	next := map[string][]Root{}
	if of := r.of.Load(); of != nil {
		for name, roots := range *of {
			next[name] = roots
		}
	}
	roots, known := next[string(adapter)]
	if len(roots) < maxLengths && (known || len(next) < maxAdapters) {
		next[string(adapter)] = append(roots[:len(roots):len(roots)], root)
		r.of.Store(&next)
	}
	return root.Key
}

// hashTokens returns after how many tokens blocks of a length are hashed.
func (r *Roots) hashTokens(blockTokens int) int {
	if of := r.of.Load(); of != nil {
		for _, roots := range *of {
			for _, root := range roots {
				if root.BlockTokens == blockTokens {
					return root.HashTokens
				}
			}
		}
	}
	return blockTokens
}

// hashed notes after how many tokens blocks of a length are hashed.
func (r *Roots) hashed(blockTokens, hashTokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := map[string][]Root{}
	for name, roots := range *r.of.Load() {
		next[name] = slices.Clone(roots)
		for i := range next[name] {
			if root := &next[name][i]; root.BlockTokens == blockTokens {
				root.HashTokens = hashTokens
			}
		}
	}
	r.of.Store(&next)
}

// Stream applies what one engine, or one rank of it, tells to its holder.
type Stream struct {
	Holder *kvindex.Holder
	// Shared is what is in the store that several engines share; nil = it does not count.
	Shared *kvindex.Holder
	Roots  *Roots
	Counts *Counts
	// Heard is called after each message was applied; nil = it is not.
	Heard func(Batch)
	// Restarted is called when another process publishes than before; nil = it is not.
	Restarted func()
	// Hasher computes the names of blocks. It must be there where keys are names, and is not used otherwise.
	Hasher *kvhash.Hasher
	// Misnamed is called with the first blocks of a prompt and their names, if Hasher gives them others; nil = it is not.
	Misnamed func(kvhash.Prompt, []uint64)

	named     []uint64 // memory
	prompts   int      // of which names could be computed
	decoder   Decoder
	group     int  // of layers that count, -1 = not known
	replaying bool // what is applied comes from a replay
}

// NewStream returns the stream of a holder of an index.
func NewStream(x *kvindex.Index, h *kvindex.Holder, roots *Roots, counts *Counts) *Stream {
	return &Stream{Holder: h, Roots: roots, Counts: counts, decoder: Decoder{Seed: x.Seed()}, group: -1}
}

// Apply applies a message. The error is ErrBatch.
func (s *Stream) Apply(payload []byte) (Batch, error) {
	b, err := s.decoder.Decode(payload, s.event)
	s.Counts.Skipped[Malformed].Add(int64(b.Skipped))
	if err != nil {
		s.Counts.Skipped[Malformed].Add(1)
	}
	if b.Replayed = s.replaying; s.Heard != nil {
		s.Heard(b)
	}
	return b, err
}

func (s *Stream) event(e *Event) {
	if e.Kind == Cleared { // only the accelerator's memory: others keep theirs
		s.Holder.ClearTier(kvindex.GPU)
		s.Counts.Cleared.Add(1)
		return
	}
	holder, tier := s.where(e)
	if holder == nil {
		s.Counts.Skipped[Elsewhere].Add(1)
		return
	}
	if s.skip(e) {
		return
	}
	if holder == s.Shared {
		s.Counts.Shared.Store(true)
	}
	switch {
	case e.Kind == Removed:
		s.Counts.Removed.Add(int64(holder.Remove(tier, e.Names...)))
	case len(e.Names) > 0 && len(e.Tokens) == 0 && (tier != kvindex.GPU || holder == s.Shared || s.Hasher != nil):
		s.kept(e, holder, tier)
	case len(e.Names) > 0:
		s.stored(e, holder, tier)
	}
}

// where returns the holder and the tier that an event is about, nil if they are not known.
func (s *Stream) where(e *Event) (*kvindex.Holder, kvindex.Tier) {
	tier, shared, known := Medium(e.Medium)
	switch {
	case shared || e.Remote:
		return s.Shared, kvindex.GPU
	case !known:
		return nil, 0
	}
	return s.Holder, tier
}

// Medium returns what a kind of memory is in the words of engines and their connectors, none = the accelerator's: a tier, or a store that several
// engines share.
func Medium(name []byte) (tier kvindex.Tier, shared, known bool) {
	var word [16]byte
	if len(name) > len(word) {
		return 0, false, false
	}
	medium := word[:copy(word[:], name)]
	for i, c := range medium {
		if c >= 'a' && c <= 'z' {
			medium[i] = c - ('a' - 'A')
		}
	}
	switch string(medium) {
	case "", "GPU", "HBM", "DEVICE":
		return kvindex.GPU, false, true
	case "CPU", "CPU_PINNED", "HOST", "HOST_PINNED", "DRAM": // SGLang has the second
		return kvindex.CPU, false, true
	case "STORAGE", "DISK", "FS", "FILE", "NVME", "SSD": // vLLM has the first, SGLang the second
		return kvindex.Disk, false, true
	case "EXTERNAL", "OBJ", "OBJECT", "SHARED", "REMOTE": // SGLang has the first
		return 0, true, true
	}
	return 0, false, false
}

// skip reports whether an event is about other blocks than those that prompts are looked up in.
func (s *Stream) skip(e *Event) bool {
	switch string(e.Attention) {
	case "", "full_attention", "mla_attention", "sink_full_attention":
	default:
		s.Counts.Skipped[Layers].Add(1)
		return true
	}
	if s.group < 0 && e.Kind == Stored {
		s.group = e.Group
	}
	if e.Group >= 0 && s.group >= 0 && e.Group != s.group {
		s.Counts.Skipped[Layers].Add(1)
		return true
	}
	return false
}

// kept notes blocks of which an event has nothing but the names. vLLM tells so of what it offloads, unless its connector is told to describe
// blocks. They need not follow one another.
func (s *Stream) kept(e *Event, holder *kvindex.Holder, tier kvindex.Tier) {
	var err error
	unknown := 0
	for _, name := range e.Names {
		if one := holder.Keep(tier, name, s.Holder); one != nil {
			err, unknown = one, unknown+1
		}
	}
	s.Counts.Stored.Add(int64(len(e.Names) - unknown))
	s.failed(err, unknown)
}

func (s *Stream) stored(e *Event, holder *kvindex.Holder, tier kvindex.Tier) {
	each := len(e.Tokens) / len(e.Names)
	if each == 0 || e.BlockTokens != 0 && e.BlockTokens != each || e.HasAdapterID && len(e.Adapter) == 0 {
		s.Counts.Skipped[Malformed].Add(1)
		return
	}
	blocks := kvindex.Stored{Tier: tier, Names: e.Names, First: !e.HasParent, Parent: e.Parent, Tokens: e.Tokens}
	if blocks.First {
		blocks.Root = s.Roots.note(s.decoder.Seed, each, e.Adapter)
	}
	if len(e.Extras) > 0 {
		blocks.Extras = e.Extras
	}
	if blocks.First && s.Hasher != nil && len(e.Extras) == 0 {
		s.check(e, each)
	}
	err := holder.Store(&blocks)
	if err == nil {
		s.Counts.Stored.Add(int64(len(e.Names)))
	}
	s.failed(err, len(e.Names))
}

const (
	// checkAll is how many prompts of an engine are checked, and checkEach that of further ones every so many are: hashing takes far longer than
	// noting blocks.
	checkAll  = 100
	checkEach = 64
)

// check compares the names of a prompt's first blocks, which depend on nothing but tokens and an adapter, with those that Hasher gives them.
func (s *Stream) check(e *Event, each int) {
	if s.prompts++; s.prompts > checkAll && s.prompts%checkEach != 0 {
		return
	}
	p := kvhash.Prompt{Tokens: e.Tokens, BlockTokens: each, HashTokens: s.Roots.hashTokens(each), Adapter: e.Adapter}
	s.named = s.Hasher.Append(s.named[:0], &p)
	if len(s.named) == 0 {
		return // they cannot be computed
	}
	s.Counts.Named.Add(int64(len(e.Names)))
	if slices.Equal(s.named, e.Names) {
		return
	}
	if hashTokens := s.Hasher.Fit(p, e.Names); hashTokens != 0 {
		s.Roots.hashed(each, hashTokens)
		return
	}
	s.Counts.Misnamed.Add(int64(len(e.Names)))
	if s.Misnamed != nil {
		s.Misnamed(p, e.Names)
	}
}

// failed counts an event that was not applied, or not to so many blocks.
func (s *Stream) failed(err error, blocks int) {
	switch {
	case err == nil:
	case errors.Is(err, kvindex.ErrParent), errors.Is(err, kvindex.ErrUnknown):
		s.Counts.Skipped[Orphan].Add(1)
		s.Counts.Orphans.Add(int64(blocks))
	case errors.Is(err, kvindex.ErrFull):
		s.Counts.Skipped[Full].Add(1)
	default:
		s.Counts.Skipped[Malformed].Add(1)
	}
}
