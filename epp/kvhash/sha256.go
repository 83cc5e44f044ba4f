package kvhash

import (
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"hash"
	"slices"
)

// scratch is the memory in which blocks are encoded and hashed.
type scratch struct {
	buf   []byte // an encoded block
	hash  hash.Hash
	state encoding.BinaryAppender // of hash
	space [sha256.Size]byte       // a digest
	wrote [128]byte               // by state
}

// typical is the size that the encoding of a block has at most, in bytes, if no memory is to be allocated for it: 800 tokens.
const typical = 4096

func newScratch() *scratch {
	s := &scratch{buf: make([]byte, 0, typical), hash: sha256.New()}
	s.state, _ = s.hash.(encoding.BinaryAppender)
	return s
}

// stateHead is what the standard library writes before the eight words of SHA-256 when it marshals a hash, so that it can be resumed.
const stateHead = "sha\x03"

// marshals reports whether it does so.
var marshals = newScratch().marshals()

func (s *scratch) marshals() bool {
	if s.state == nil {
		return false
	}
	for _, n := range []int{0, 55, 56, 64, 119, 120, 300} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i)
		}
		s.hash.Reset()
		want := sha256.Sum256(b)
		if got := s.marshaled(b); !slices.Equal(got, want[:]) {
			return false
		}
	}
	return true
}

// sha256 returns the SHA-256 of b, until the next call. b may be overwritten behind its end.
//
// For the 120 bytes of a block of 16 tokens, a third of sha256.Sum256's time is not that of the rounds: it pads the message by further writes,
// and finishes a copy of its state. Here the message is padded in place, and the digest is what the state is then.
func (s *scratch) sha256(b []byte) []byte {
	if !marshals {
		s.space = sha256.Sum256(b)
		return s.space[:]
	}
	return s.marshaled(b)
}

// marshaled is sha256 by the state. It returns nil if the state is not written as stateHead says.
func (s *scratch) marshaled(b []byte) []byte {
	n := len(b)
	zeros := (sha256.BlockSize - 1 - 8 - n%sha256.BlockSize + sha256.BlockSize) % sha256.BlockSize
	b = append(append(b, 0x80), padding[:zeros]...)
	b = binary.BigEndian.AppendUint64(b, 8*uint64(n))
	s.hash.Reset()
	_, _ = s.hash.Write(b) // it returns no errors
	got, err := s.state.AppendBinary(s.wrote[:0])
	if err != nil || len(got) < len(stateHead)+sha256.Size || string(got[:len(stateHead)]) != stateHead {
		return nil
	}
	return append(s.space[:0], got[len(stateHead):len(stateHead)+sha256.Size]...)
}

var padding [sha256.BlockSize]byte
