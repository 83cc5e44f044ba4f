package read

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"hash/maphash"
	"math/bits"
)

// Hashes are keyed with a secret. A client that could make its prompt collide with another client's would send requests to the wrong
// pods, and could learn from the time to first token what others asked. By default the secret is of the process, and hashes mean nothing
// outside it.

// Secret keys the hashes of prompts of several processes, so that they can be compared. A reader with one takes some 4 ns a byte longer.
type Secret [32]byte

var seed = maphash.MakeSeed()

// process has the keys of the process's secret.
var process = hasher{key0: maphash.String(seed, "state"), key1: maphash.String(seed, "input")}

// hasher hashes under one secret. It belongs to one Reader.
type hasher struct {
	key0, key1 uint64
	keyed      *keyed // nil: the process's secret
}

func newHasher(s *Secret) *hasher {
	if s == nil {
		return &process // has no state
	}
	k := newKeyed(s)
	return &hasher{key0: k.sum([]byte("state")), key1: k.sum([]byte("input")), keyed: k}
}

// mix folds b into a.
func (h *hasher) mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^h.key0, b^h.key1)
	return hi ^ lo
}

// bytes hashes bytes.
func (h *hasher) bytes(b []byte) uint64 {
	if h.keyed == nil {
		return maphash.Bytes(seed, b)
	}
	return h.keyed.sum(b)
}

// text hashes a text as if it were bytes.
func (h *hasher) text(s string) uint64 {
	if h.keyed == nil {
		return maphash.String(seed, s)
	}
	return h.keyed.sum([]byte(s))
}

// stream returns a hash of bytes that come in pieces.
func (h *hasher) stream() hash.Hash64 {
	if h.keyed == nil {
		s := new(maphash.Hash)
		s.SetSeed(seed)
		return s
	}
	return newKeyed(&h.keyed.secret)
}

// keyed is the beginning of SHA-256 over a secret and what is written.
type keyed struct {
	hash.Hash
	secret Secret
	result [sha256.Size]byte
}

func newKeyed(s *Secret) *keyed {
	k := &keyed{Hash: sha256.New(), secret: *s}
	k.Reset()
	return k
}

// Reset implements hash.Hash.
func (k *keyed) Reset() {
	k.Hash.Reset()
	k.Write(k.secret[:]) // never fails
}

// Sum64 implements hash.Hash64.
func (k *keyed) Sum64() uint64 { return binary.LittleEndian.Uint64(k.Sum(k.result[:0])) }

// sum hashes bytes.
func (k *keyed) sum(b []byte) uint64 {
	k.Reset()
	k.Write(b)
	return k.Sum64()
}
