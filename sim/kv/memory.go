package kv

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/transfer"
)

// link begins the KV of one token. It is a digest of the KV of the token before, as it is in memory, and of the token, so
// whatever is wrong in memory reaches everything that is computed from it, as in a real model.
type link [model.MinStoredBytesPerToken]byte

// Digest is the running digest of the KV bytes that a sequence attends to. The engine draws tokens from it.
type Digest [sha256.Size]byte

// Memory holds the KV of the blocks of a pool. Other engines read it through a transport. The engine's loop calls all of its
// methods but Verify and Free.
type Memory struct {
	bytes     []byte
	free      func() error
	region    transfer.Region
	slot      int // bytes stored per token
	blockSize int // tokens per block
	seed      link
	scratch   []byte // one block, reused
	stretcher stretcher
}

// Allocator is a transport that can read only memory that it allocated itself. The NIXL library is one: the memory must not lie
// on the Go heap.
type Allocator interface {
	// Alloc returns zeroed memory. The caller calls free after the transport is closed.
	Alloc(bytes int) (mem []byte, free func() error, err error)
}

// NewMemory allocates the memory of blocks of blockSize tokens; from the transport, if that is an Allocator. The caller calls
// Register next, and Free in any case.
func NewMemory(m *model.Model, blocks, blockSize int, t transfer.Transport) (*Memory, error) {
	k := &Memory{
		free:      func() error { return nil },
		slot:      m.StoredBytesPerToken,
		blockSize: blockSize,
		seed:      sha256.Sum256([]byte("tandem kv " + m.Name)),
		scratch:   make([]byte, blockSize*m.StoredBytesPerToken),
	}
	size := blocks * k.BlockBytes()
	own, ok := t.(Allocator)
	if !ok {
		k.bytes = make([]byte, size)
		return k, nil
	}
	var err error
	if k.bytes, k.free, err = own.Alloc(size); err != nil {
		return nil, fmt.Errorf("allocating memory for %d bytes of KV: %w", size, err)
	}
	return k, nil
}

// Register lets other engines read the memory through a transport.
func (k *Memory) Register(t transfer.Transport) (err error) {
	if k.region, err = t.Register(k.bytes); err != nil {
		return fmt.Errorf("registering %d bytes of KV: %w", len(k.bytes), err)
	}
	return nil
}

// Free frees the memory. The transport must be closed before, because a peer could still read.
func (k *Memory) Free() error { return k.free() }

// BlockBytes returns the size of a block in bytes.
func (k *Memory) BlockBytes() int { return k.slot * k.blockSize }

// token returns the KV of one token of a sequence, for reading.
func (k *Memory) token(blocks []*Block, position int) []byte {
	at := blocks[position/k.blockSize].id*k.BlockBytes() + position%k.blockSize*k.slot
	return k.bytes[at : at+k.slot]
}

// Compute writes the KV of tokens, which begin at position from, into the blocks of their sequence.
func (k *Memory) Compute(blocks []*Block, tokens []int, from int) error {
	previous := k.seed
	if from > 0 {
		previous = link(k.token(blocks, from-1))
	}
	for len(tokens) > 0 {
		offset := from % k.blockSize
		n := min(len(tokens), k.blockSize-offset)
		for i, token := range tokens[:n] {
			previous = nextLink(previous, token)
			k.stretcher.fill(k.scratch[i*k.slot:(i+1)*k.slot], previous)
		}
		at := blocks[from/k.blockSize].id*k.BlockBytes() + offset*k.slot
		if err := k.region.Write(uint64(at), k.scratch[:n*k.slot]); err != nil {
			return fmt.Errorf("writing KV: %w", err)
		}
		tokens, from = tokens[n:], from+n
	}
	return nil
}

// Store writes one whole block that came from another engine, or from the memory of the host.
func (k *Memory) Store(b *Block, data []byte) error {
	if err := k.region.Write(uint64(b.id*k.BlockBytes()), data); err != nil {
		return fmt.Errorf("storing a block: %w", err)
	}
	return nil
}

// Block returns the bytes of a block, for reading.
func (k *Memory) Block(b *Block) []byte {
	return k.bytes[b.id*k.BlockBytes() : (b.id+1)*k.BlockBytes()]
}

// Fold adds the KV of positions [from, to) to a digest. It reads the bytes in memory.
func (k *Memory) Fold(d Digest, blocks []*Block, from, to int) Digest {
	h := sha256.New()
	for p := from; p < to; p++ {
		h.Reset()
		h.Write(d[:])
		h.Write(k.token(blocks, p))
		h.Sum(d[:0])
	}
	return d
}

// Verify reports whether data, which begins at position from, is the KV of tokens. A real engine cannot tell; this one computes
// the chain again. Verify reads no block, so it may run outside of the engine's loop.
func (k *Memory) Verify(tokens []int, from int, data []byte) bool {
	previous := k.seed
	var s stretcher
	slot := make([]byte, k.slot)
	for p, token := range tokens {
		previous = nextLink(previous, token)
		if p < from {
			continue
		}
		s.fill(slot, previous)
		at := (p - from) * k.slot
		if !bytes.Equal(slot, data[at:at+k.slot]) {
			return false
		}
	}
	return true
}

func nextLink(previous link, token int) link {
	var b [len(link{}) + 4]byte
	copy(b[:], previous[:])
	binary.LittleEndian.PutUint32(b[len(link{}):], uint32(token))
	return sha256.Sum256(b[:])
}

// stretcher fills the memory of a token. Its zero value is ready. It keeps its generator, so that fill allocates nothing.
type stretcher struct{ stream rand.ChaCha8 }

// fill writes the link, and pseudo-random bytes that depend on it into the rest of the slot.
func (s *stretcher) fill(slot []byte, l link) {
	n := copy(slot, l[:])
	if n == len(slot) {
		return
	}
	s.stream.Seed(l)
	_, _ = s.stream.Read(slot[n:]) // never fails
}
