package core

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/model"
)

// Sequence is one prompt and its answer. Only the engine's loop and its protocol read and write it, except its id and its mailbox.
type Sequence struct {
	ID       string // the engine's request id
	Index    int    // of the answer among those of its Generation
	Sampling Sampling
	Salt     string
	// Leg is the protocol's own.
	Leg any

	Tokens []int // prompt, then what was generated
	Prompt int   // tokens of the prompt
	Blocks []*kv.Block
	KV     Stage

	Computed int  // tokens whose KV is in Blocks
	Hit      int  // tokens of the prompt that the prefix cache had, or the host's memory
	Loaded   int  // of these, tokens from the host's memory that the next step waits for
	Done     bool // finished, failed or aborted

	Usage PromptUsage
	Times Times

	hashes []kv.Hash
	folded int // tokens that attention covers
	digest kv.Digest
	text   textStop
	out    *mailbox
}

// Stage says how far the load of a sequence's KV from another engine is.
type Stage int

// The stages.
const (
	Local    Stage = iota // nothing to load: the engine computes the KV
	Wanted                // waits for blocks
	Arriving              // holds blocks, and a transfer writes to them
	Here                  // holds blocks with their KV, waits for a place in a step or runs
)

// Times are moments in the life of a sequence, zero if they are still to come.
type Times struct{ Queued, Started, First, Last time.Time }

// draw draws the next token from the KV digest. Temperature, top_p and the like have no influence: an answer is a function of
// KV, position, seed and choice.
func (s *Sequence) draw(vocabulary, eosEvery int) int {
	const lanes = 4
	for round := uint64(0); ; round++ {
		var b [len(kv.Digest{}) + 8*lanes]byte
		copy(b[:], s.digest[:])
		for i, v := range [lanes]uint64{uint64(len(s.Tokens)), s.Sampling.Seed, s.Sampling.Choice, round} {
			binary.LittleEndian.PutUint64(b[len(kv.Digest{})+8*i:], v)
		}
		sum := sha256.Sum256(b[:])
		end := eosEvery > 0 && binary.LittleEndian.Uint64(sum[8:])%uint64(eosEvery) == 0
		if n := len(s.Sampling.Allowed); !end && n > 0 {
			return s.Sampling.Allowed[binary.LittleEndian.Uint64(sum[:])%uint64(n)]
		}
		if !end {
			return model.FirstByte + int(binary.LittleEndian.Uint64(sum[:])%uint64(vocabulary-model.FirstByte))
		}
		if s.Generated() >= s.Sampling.MinTokens {
			return model.EOS
		}
	}
}

// Generated returns the number of generated tokens.
func (s *Sequence) Generated() int { return len(s.Tokens) - s.Prompt }

// accept appends a drawn token and returns what the client gets.
func (s *Sequence) accept(token, maxModelLen int) Output {
	s.Tokens = append(s.Tokens, token)
	out := Output{Index: s.Index, Token: token, Usage: s.Usage}
	enough := s.Generated() >= s.Sampling.MinTokens
	switch {
	case token == model.EOS && !s.Sampling.IgnoreEOS && enough:
		out.Finish = "stop"
	case enough && slices.Contains(s.Sampling.StopTokens, token):
		out.Finish, out.StopReason = "stop", token
	case s.Generated() >= s.Sampling.MaxTokens || len(s.Tokens) >= maxModelLen:
		out.Finish = "length"
	}
	text, stop := s.text.push(token, out.Finish != "", enough, &s.Sampling)
	out.Text = text
	if stop != "" {
		out.Finish, out.StopReason = "stop", stop
	}
	return out
}
