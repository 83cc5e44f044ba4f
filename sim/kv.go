package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/tandem-serving/tandem/transfer"
)

// linkSize is how many bytes of a token's KV chain it to the token before: one SHA-256 digest.
const linkSize = sha256.Size

// link is the head of one token's KV: a digest of the KV of the token before, as it is in memory, and of the token.
// Whatever is wrong in memory is therefore carried into everything that is computed from it, as in a real model.
type link [linkSize]byte

// digest is the running digest of the KV bytes that a sequence attends to. Tokens are drawn from it.
type digest [sha256.Size]byte

// kvMemory is the memory of the block pool, readable by other engines through the transport.
// Only the engine's loop writes to it or calls its methods.
type kvMemory struct {
	mem       []byte
	free      func() error // frees mem, once no peer can read it
	region    transfer.Region
	slot      int // bytes held per token
	blockSize int // tokens per block
	seed      link
	scratch   []byte // one block, reused
	stretcher stretcher
}

// allocator is a transport that can read only memory of its own making: the real library's must not lie on the Go heap.
type allocator interface {
	Alloc(bytes int) (mem []byte, free func() error, err error)
}

// newKVMemory takes memory that the transport can read, if it is one that cares. It is for register next, and free in any
// case.
func newKVMemory(m *Model, blocks, blockSize int, t transfer.Transport) (*kvMemory, error) {
	k := &kvMemory{
		free:      func() error { return nil },
		slot:      m.StoredBytesPerToken,
		blockSize: blockSize,
		seed:      sha256.Sum256([]byte("tandem kv " + m.Name)),
		scratch:   make([]byte, blockSize*m.StoredBytesPerToken),
	}
	bytes := blocks * k.blockBytes()
	own, ok := t.(allocator)
	if !ok {
		k.mem = make([]byte, bytes)
		return k, nil
	}
	var err error
	if k.mem, k.free, err = own.Alloc(bytes); err != nil {
		return nil, fmt.Errorf("taking memory for %d bytes of KV: %w", bytes, err)
	}
	return k, nil
}

// register lets other engines read the memory.
func (k *kvMemory) register(t transfer.Transport) (err error) {
	if k.region, err = t.Register(k.mem); err != nil {
		return fmt.Errorf("registering %d bytes of KV: %w", len(k.mem), err)
	}
	return nil
}

func (k *kvMemory) blockBytes() int { return k.slot * k.blockSize }

// token returns the KV of one token of a sequence, for reading.
func (k *kvMemory) token(blocks []*block, position int) []byte {
	at := blocks[position/k.blockSize].id*k.blockBytes() + position%k.blockSize*k.slot
	return k.mem[at : at+k.slot]
}

// compute writes the KV of tokens, which begin at position from, into the blocks of their sequence.
func (k *kvMemory) compute(blocks []*block, tokens []int, from int) error {
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
		at := blocks[from/k.blockSize].id*k.blockBytes() + offset*k.slot
		if err := k.region.Write(uint64(at), k.scratch[:n*k.slot]); err != nil {
			return fmt.Errorf("writing KV: %w", err)
		}
		tokens, from = tokens[n:], from+n
	}
	return nil
}

// store writes one whole block that came from another engine.
func (k *kvMemory) store(b *block, data []byte) error {
	if err := k.region.Write(uint64(b.id*k.blockBytes()), data); err != nil {
		return fmt.Errorf("storing a block: %w", err)
	}
	return nil
}

// fold takes the KV of positions [from, to) into a digest, from the bytes that are in memory.
func (k *kvMemory) fold(d digest, blocks []*block, from, to int) digest {
	h := sha256.New()
	for p := from; p < to; p++ {
		h.Reset()
		h.Write(d[:])
		h.Write(k.token(blocks, p))
		h.Sum(d[:0])
	}
	return d
}

// verifyKV tells whether data, the slots from position from on, is the KV of tokens. No real engine could tell: the
// simulator recomputes the chain, away from the engine's loop.
func verifyKV(seed link, slotSize int, tokens []int, from int, data []byte) bool {
	previous := seed
	var s stretcher
	slot := make([]byte, slotSize)
	for p, token := range tokens {
		previous = nextLink(previous, token)
		if p < from {
			continue
		}
		s.fill(slot, previous)
		at := (p - from) * slotSize
		if !bytes.Equal(slot, data[at:at+slotSize]) {
			return false
		}
	}
	return true
}

func nextLink(previous link, token int) link {
	var b [linkSize + 4]byte
	copy(b[:], previous[:])
	binary.LittleEndian.PutUint32(b[linkSize:], uint32(token))
	return sha256.Sum256(b[:])
}

// stretcher fills slots. Its zero value is ready; it keeps the state of its generator so that a slot costs no memory.
type stretcher struct{ stream rand.ChaCha8 }

// fill writes the link and stretches it over the rest of the slot.
func (s *stretcher) fill(slot []byte, l link) {
	n := copy(slot, l[:])
	if n == len(slot) {
		return
	}
	s.stream.Seed(l)
	_, _ = s.stream.Read(slot[n:]) // never fails
}
