package kv

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash identifies a full block in the prefix cache: a digest of its tokens and of all tokens before them.
type Hash [sha256.Size]byte

// Block is one block of the pool.
type Block struct {
	id   int
	refs int // sequences and leases that hold it
	pins int // of these, leases

	hash   Hash
	cached bool // the prefix cache finds it by hash

	previous, next *Block // neighbours in the free list, nil while held
}

// Held reports whether a sequence or a lease holds the block.
func (b *Block) Held() bool { return b.refs > 0 }

// IDs returns the ids of blocks, as hand-offs name them.
func IDs(blocks []*Block) []int {
	ids := make([]int, len(blocks))
	for i, b := range blocks {
		ids[i] = b.id
	}
	return ids
}

// Pool hands out blocks. Free blocks keep their content, and stay in the prefix cache, until they are taken again,
// least recently used first. Block 0 is never handed out: it is the engine's null block, so ids begin at 1.
type Pool struct {
	blocks []Block
	free   Block // sentinel of the free list: next is taken first
	nfree  int
	pinned int
	byHash map[Hash]*Block

	// Uncached is called with the hash of each block that leaves the prefix cache, except by Reset. nil = it is not called.
	Uncached func(Hash)
}

// NewPool makes a pool of n blocks, with the null block.
func NewPool(n int) *Pool {
	p := &Pool{blocks: make([]Block, n), byHash: make(map[Hash]*Block)}
	p.free.previous, p.free.next = &p.free, &p.free
	for i := range p.blocks {
		p.blocks[i].id = i
		if i > 0 {
			p.pushFree(&p.blocks[i])
		}
	}
	return p
}

func (p *Pool) pushFree(b *Block) {
	last := p.free.previous
	b.previous, b.next = last, &p.free
	last.next, p.free.previous = b, b
	p.nfree++
}

func (p *Pool) unlink(b *Block) {
	b.previous.next, b.next.previous = b.next, b.previous
	b.previous, b.next = nil, nil
	p.nfree--
}

// Take holds n free blocks, whose content the caller overwrites. If there are fewer, it holds none and returns false.
func (p *Pool) Take(n int) ([]*Block, bool) {
	if n > p.nfree {
		return nil, false
	}
	taken := make([]*Block, n)
	for i := range taken {
		b := p.free.next
		p.unlink(b)
		p.Uncache(b)
		b.refs = 1
		taken[i] = b
	}
	return taken, true
}

// Fits reports whether n blocks can be taken after the found ones are shared.
func (p *Pool) Fits(n int, found []*Block) bool {
	free := p.nfree
	for _, b := range found {
		if b.refs == 0 {
			free--
		}
	}
	return n <= free
}

// Share holds blocks that Find returned.
func (p *Pool) Share(blocks []*Block) {
	for _, b := range blocks {
		if b.refs == 0 {
			p.unlink(b)
		}
		b.refs++
	}
}

// Release ends one hold of each block of a sequence. The end of a sequence becomes free first, and is reused first: other
// prompts more often have its beginning.
func (p *Pool) Release(blocks []*Block) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		if b.refs--; b.refs == 0 {
			p.pushFree(b)
		}
	}
}

// Pin counts blocks as held for a remote reader. It does not hold them.
func (p *Pool) Pin(blocks []*Block) {
	for _, b := range blocks {
		if b.pins++; b.pins == 1 {
			p.pinned++
		}
	}
}

// Unpin ends one Pin of each block.
func (p *Pool) Unpin(blocks []*Block) {
	for _, b := range blocks {
		if b.pins--; b.pins == 0 {
			p.pinned--
		}
	}
}

// Cache lets Find return a block for a hash, and reports whether that is new. If another block has that hash, it stays: both hold the
// same tokens.
func (p *Pool) Cache(b *Block, h Hash) bool {
	if b.cached {
		return false
	}
	if _, taken := p.byHash[h]; taken {
		return false
	}
	b.hash, b.cached = h, true
	p.byHash[h] = b
	return true
}

// Hashes calls each for the hashes of all cached blocks, in any order.
func (p *Pool) Hashes(each func(Hash)) {
	for h := range p.byHash {
		each(h)
	}
}

// Uncache removes a block from the prefix cache.
func (p *Pool) Uncache(b *Block) {
	if b.cached {
		delete(p.byHash, b.hash)
		b.cached = false
		if p.Uncached != nil {
			p.Uncached(b.hash)
		}
	}
}

// Find returns the cached blocks of the longest known beginning of a chain.
func (p *Pool) Find(hashes []Hash) []*Block {
	var found []*Block
	for _, h := range hashes {
		b, ok := p.byHash[h]
		if !ok {
			break
		}
		found = append(found, b)
	}
	return found
}

// Reset empties the prefix cache.
func (p *Pool) Reset() {
	clear(p.byHash)
	for i := range p.blocks {
		p.blocks[i].cached = false
	}
}

// Total returns the number of blocks that can be handed out.
func (p *Pool) Total() int { return len(p.blocks) - 1 }

// Used returns the number of blocks that sequences or leases hold.
func (p *Pool) Used() int { return p.Total() - p.nfree }

// Cached returns the number of blocks that nothing but the prefix cache has.
func (p *Pool) Cached() int {
	n := 0
	for b := p.free.next; b != &p.free; b = b.next {
		if b.cached {
			n++
		}
	}
	return n
}

// Pinned returns the number of blocks that leases hold.
func (p *Pool) Pinned() int { return p.pinned }

// BlocksFor returns how many blocks of blockSize tokens hold so many tokens.
func BlocksFor(tokens, blockSize int) int { return (tokens + blockSize - 1) / blockSize }

// AppendHashes extends a chain of block hashes over the full blocks of tokens. Chains of different salts have no hash in
// common.
func AppendHashes(hashes []Hash, tokens []int, blockSize int, salt string) []Hash {
	for n := len(hashes); (n+1)*blockSize <= len(tokens); n++ {
		h := sha256.New()
		if n == 0 {
			h.Write([]byte(salt))
		} else {
			h.Write(hashes[n-1][:])
		}
		buf := make([]byte, 0, 4*blockSize)
		for _, t := range tokens[n*blockSize : (n+1)*blockSize] {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(t))
		}
		h.Write(buf)
		hashes = append(hashes, Hash(h.Sum(nil)))
	}
	return hashes
}
