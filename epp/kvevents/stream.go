package kvevents

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/epp/kvindex"
)

// Reason is why blocks of an event were not noted.
type Reason uint8

// The reasons.
const (
	Malformed Reason = iota // it is of no known kind, or not as it should be
	Elsewhere               // the blocks are not in the memory of the accelerator
	Layers                  // they are of layers of which prompts need only some blocks, or of a further group
	Orphan                  // the block before them is not known
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
	Lost      atomic.Int64 // messages that were missed and not replayed
	Restarts  atomic.Int64 // of engines, as the numbers of messages show
	Replays   atomic.Int64 // that were asked for, and ReplayErrors of them that failed

	ReplayErrors atomic.Int64
}

// Root is how blocks of one length begin.
type Root struct {
	BlockTokens int
	Key         kvindex.Key
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
	root := Root{blockTokens, seed.Root(blockTokens, adapter)}
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

// Stream applies what one engine, or one rank of it, tells to its holder.
type Stream struct {
	Holder *kvindex.Holder
	Roots  *Roots
	Counts *Counts
	// Heard is called after each message was applied; nil = it is not.
	Heard func(Batch)
	// Restarted is called when another process publishes than before; nil = it is not.
	Restarted func()

	decoder Decoder
	group   int // of layers that count, -1 = not known
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
	if s.Heard != nil {
		s.Heard(b)
	}
	return b, err
}

func (s *Stream) event(e *Event) {
	switch e.Kind {
	case Cleared: // only the accelerator's memory: others keep theirs
		s.Holder.Clear()
		s.Counts.Cleared.Add(1)
	case Removed:
		if s.skip(e) {
			return
		}
		for _, name := range e.Names {
			if s.Holder.Remove(name) {
				s.Counts.Removed.Add(1)
			}
		}
	case Stored:
		if !s.skip(e) && len(e.Names) > 0 {
			s.stored(e)
		}
	}
}

// skip reports whether an event is about other blocks than those that prompts are looked up in.
func (s *Stream) skip(e *Event) bool {
	if e.Remote || len(e.Medium) > 0 && !bytes.EqualFold(e.Medium, []byte("GPU")) {
		s.Counts.Skipped[Elsewhere].Add(1)
		return true
	}
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

func (s *Stream) stored(e *Event) {
	each := len(e.Tokens) / len(e.Names)
	if each == 0 || e.BlockTokens != 0 && e.BlockTokens != each || e.HasAdapterID && len(e.Adapter) == 0 {
		s.Counts.Skipped[Malformed].Add(1)
		return
	}
	blocks := kvindex.Stored{Names: e.Names, First: !e.HasParent, Parent: e.Parent, Tokens: e.Tokens}
	if blocks.First {
		blocks.Root = s.Roots.note(s.decoder.Seed, each, e.Adapter)
	}
	if len(e.Extras) > 0 {
		blocks.Extras = e.Extras
	}
	switch err := s.Holder.Store(&blocks); {
	case err == nil:
		s.Counts.Stored.Add(int64(len(e.Names)))
	case errors.Is(err, kvindex.ErrParent):
		s.Counts.Skipped[Orphan].Add(1)
		s.Counts.Orphans.Add(int64(len(e.Names)))
	case errors.Is(err, kvindex.ErrFull):
		s.Counts.Skipped[Full].Add(1)
	default:
		s.Counts.Skipped[Malformed].Add(1)
	}
}
