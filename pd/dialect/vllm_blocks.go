package dialect

import (
	"fmt"
	"math"
	"sync"
)

// blockSizes learns from hand-offs how many tokens a KV cache block of each prefill engine has, and tells those that cannot be whole: with
// too few blocks vLLM's decode engine exits. It is for sidecars that are not told the size; metrics pages of engines are not asked, because
// they have the size that an engine was given, and not the one that it chose for its model. The zero value knows nothing. It is safe for
// concurrent use.
type blockSizes struct {
	mu      sync.Mutex // guards the rest, with the engines
	engines map[string]*blockSize
}

// blockSize is what is known of the blocks of one engine: a block has between least and most tokens.
type blockSize struct {
	least, most int
	fit         int // hand-offs that agree with this
	unfit       int // hand-offs that contradict it
}

const (
	// manyFit is how many hand-offs in a row must agree on a block size before one that does not counts as damaged.
	manyFit = 32
	// manyUnfit is how many hand-offs must contradict it, and unfitShare one in how many of all, before it is learned anew: the engine has
	// been started with another size under the same id, or it names blocks that its prompts do not need.
	manyUnfit, unfitShare = 8, 16
	// maxBlockSizes bounds how many engines are known; ids are chosen by engines, or by what answers in their place.
	maxBlockSizes = 1024
)

// check returns an error if a hand-off of so many tokens and blocks contradicts what the engine's hand-offs have had before.
func (s *blockSizes) check(engine string, tokens, blocks int) error {
	if tokens <= 0 || blocks <= 0 {
		return nil
	}
	// blocks is tokens / size, rounded up.
	least, most := (tokens+blocks-1)/blocks, math.MaxInt
	if blocks > 1 {
		most = (tokens - 1) / (blocks - 1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.engines[engine]
	if b == nil {
		if s.engines == nil || len(s.engines) >= maxBlockSizes {
			s.engines = map[string]*blockSize{}
		}
		b = &blockSize{most: math.MaxInt}
		s.engines[engine] = b
	}
	if l, m := max(b.least, least), min(b.most, most); l <= m {
		b.least, b.most, b.fit = l, m, b.fit+1
		return nil
	}
	if b.unfit++; b.fit < manyFit || b.unfit > max(manyUnfit, b.fit/unfitShare) {
		*b = blockSize{most: math.MaxInt}
		return nil
	}
	return fmt.Errorf("hand-off has %d blocks for %d tokens, and a block of this engine has %d to %d tokens by its earlier hand-offs", blocks, tokens, b.least, b.most)
}
