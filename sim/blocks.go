package sim

import (
	"crypto/sha256"
	"encoding/binary"
)

// blockHash names a full block in the prefix cache: a digest over its tokens and everything before them.
type blockHash [sha256.Size]byte

// block is one block of the pool.
type block struct {
	id   int
	refs int // sequences and leases that hold it
	pins int // of these, leases

	hash   blockHash
	cached bool // the prefix cache finds it by hash

	previous, next *block // neighbours in the free list, nil while held
}

// pool hands out blocks. Free blocks keep their content, and stay in the prefix cache, until they are taken again,
// least recently used first. Block 0 is never handed out: it is the engine's null block, so ids begin at 1.
type pool struct {
	blocks []block
	free   block // sentinel of the free list: next is taken first
	nfree  int
	pinned int
	byHash map[blockHash]*block
}

func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n), byHash: make(map[blockHash]*block)}
	p.free.previous, p.free.next = &p.free, &p.free
	for i := range p.blocks {
		p.blocks[i].id = i
		if i > 0 {
			p.pushFree(&p.blocks[i])
		}
	}
	return p
}

func (p *pool) pushFree(b *block) {
	last := p.free.previous
	b.previous, b.next = last, &p.free
	last.next, p.free.previous = b, b
	p.nfree++
}

func (p *pool) unlink(b *block) {
	b.previous.next, b.next.previous = b.next, b.previous
	b.previous, b.next = nil, nil
	p.nfree--
}

// take holds n blocks whose content is to be overwritten, or none and false.
func (p *pool) take(n int) ([]*block, bool) {
	if n > p.nfree {
		return nil, false
	}
	taken := make([]*block, n)
	for i := range taken {
		b := p.free.next
		p.unlink(b)
		p.uncache(b)
		b.refs = 1
		taken[i] = b
	}
	return taken, true
}

// fits tells whether n blocks can be taken once found ones are held.
func (p *pool) fits(n int, found []*block) bool {
	free := p.nfree
	for _, b := range found {
		if b.refs == 0 {
			free--
		}
	}
	return n <= free
}

// share holds blocks that the prefix cache found.
func (p *pool) share(blocks []*block) {
	for _, b := range blocks {
		if b.refs == 0 {
			p.unlink(b)
		}
		b.refs++
	}
}

// release gives blocks back, the end of a sequence first: what is furthest from the common beginning is reused first.
func (p *pool) release(blocks []*block) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		if b.refs--; b.refs == 0 {
			p.pushFree(b)
		}
	}
}

// pin counts blocks as held for a remote reader; unpin ends that. Neither changes who holds them.
func (p *pool) pin(blocks []*block) {
	for _, b := range blocks {
		if b.pins++; b.pins == 1 {
			p.pinned++
		}
	}
}

func (p *pool) unpin(blocks []*block) {
	for _, b := range blocks {
		if b.pins--; b.pins == 0 {
			p.pinned--
		}
	}
}

// cache makes a block findable. The first block with a hash keeps it: others hold the same tokens.
func (p *pool) cache(b *block, h blockHash) {
	if b.cached {
		return
	}
	if _, taken := p.byHash[h]; taken {
		return
	}
	b.hash, b.cached = h, true
	p.byHash[h] = b
}

func (p *pool) uncache(b *block) {
	if b.cached {
		delete(p.byHash, b.hash)
		b.cached = false
	}
}

// find returns the cached blocks of the longest known beginning of a chain.
func (p *pool) find(hashes []blockHash) []*block {
	var found []*block
	for _, h := range hashes {
		b, ok := p.byHash[h]
		if !ok {
			break
		}
		found = append(found, b)
	}
	return found
}

// forget empties the prefix cache.
func (p *pool) forget() {
	for i := range p.blocks {
		p.uncache(&p.blocks[i])
	}
}

// total is the number of blocks that can be handed out.
func (p *pool) total() int { return len(p.blocks) - 1 }

func (p *pool) used() int { return p.total() - p.nfree }

// appendHashes extends a chain of block hashes over the full blocks of tokens. salt keeps the chains of different cache
// salts apart.
func appendHashes(hashes []blockHash, tokens []int, blockSize int, salt string) []blockHash {
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
		hashes = append(hashes, blockHash(h.Sum(nil)))
	}
	return hashes
}
