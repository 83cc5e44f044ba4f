package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/model"
)

// sequence is one prompt and its answer. Only the engine's loop reads and writes it, except its id and its mailbox.
type sequence struct {
	id       string // the engine's request id, which hand-offs name
	index    int    // of the answer among those of its Generation
	sampling Sampling
	params   TransferParams
	salt     string
	stale    bool

	tokens []int // prompt, then what was generated
	prompt int   // tokens of the prompt
	hashes []kv.Hash
	blocks []*kv.Block

	computed int // tokens whose KV is in blocks
	folded   int // tokens that attention covers
	digest   kv.Digest
	load     loadState
	hit      int  // tokens of the prompt whose KV was here before
	external int  // tokens of the prompt whose KV came from another engine
	done     bool // finished, failed or aborted

	usage PromptUsage
	text  textStop
	times sequenceTimes
	out   *mailbox
}

// loadState says how far the load of a sequence's KV from another engine is.
type loadState int

const (
	noLoad      loadState = iota // nothing to load, or the engine computes the KV instead
	loadWanted                   // waits for blocks
	loadRunning                  // holds blocks, and a transfer writes to them
	loadStuck                    // holds blocks for ever: the hand-off lacks members that the load needs to start
	loaded                       // holds blocks with their KV, waits for a place in a step
)

type sequenceTimes struct{ queued, started, first, last time.Time }

// draw draws the next token from the KV digest. Temperature, top_p and the like have no influence: an answer is a function of
// KV, position, seed and choice.
func (s *sequence) draw(vocabulary, eosEvery int) int {
	const lanes = 4
	for round := uint64(0); ; round++ {
		var b [len(kv.Digest{}) + 8*lanes]byte
		copy(b[:], s.digest[:])
		for i, v := range [lanes]uint64{uint64(len(s.tokens)), s.sampling.Seed, s.sampling.Choice, round} {
			binary.LittleEndian.PutUint64(b[len(kv.Digest{})+8*i:], v)
		}
		sum := sha256.Sum256(b[:])
		end := eosEvery > 0 && binary.LittleEndian.Uint64(sum[8:])%uint64(eosEvery) == 0
		if !end {
			return model.FirstByte + int(binary.LittleEndian.Uint64(sum[:])%uint64(vocabulary-model.FirstByte))
		}
		if s.generated() >= s.sampling.MinTokens {
			return model.EOS
		}
	}
}

func (s *sequence) generated() int { return len(s.tokens) - s.prompt }

// accept appends a drawn token and returns what the client gets.
func (s *sequence) accept(token, maxModelLen int) Output {
	s.tokens = append(s.tokens, token)
	out := Output{Index: s.index, Token: token, Usage: s.usage}
	enough := s.generated() >= s.sampling.MinTokens
	switch {
	case token == model.EOS && !s.sampling.IgnoreEOS && enough:
		out.Finish = "stop"
	case enough && slices.Contains(s.sampling.StopTokens, token):
		out.Finish, out.StopReason = "stop", token
	case s.generated() >= s.sampling.MaxTokens || len(s.tokens) >= maxModelLen:
		out.Finish = "length"
	}
	text, stop := s.text.push(token, out.Finish != "", enough, &s.sampling)
	out.Text = text
	if stop != "" {
		out.Finish, out.StopReason = "stop", stop
	}
	return out
}
