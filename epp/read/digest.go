package read

import (
	"encoding/binary"
	"hash/maphash"

	"github.com/tandem-serving/tandem/epp"
)

// tokenBytes is how many bytes of text count as one token, and the size of an encoded token id.
const tokenBytes = 4

// digest cuts a text into blocks while it arrives, and hashes each block together with all blocks before it.
type digest struct {
	hash   *hasher
	size   int // bytes of a block; 0 = only count the length
	max    int // most blocks
	length int // bytes
	state  uint64
	tail   []byte // the incomplete last block
	keys   []uint64
	ids    []uint32 // the token ids that the text consists of, as far as they are kept
	maxIDs int
}

// keptIDs is for how many token ids a reader keeps its memory from one request to the next.
const keptIDs = 256 << 10

// wantsBlocks reports whether prompts are cut into blocks at all.
func wantsBlocks(s epp.PromptSpec) bool { return s.Tokens > 0 && s.Max > 0 }

// reset prepares for a new text and reuses the buffers.
func (d *digest) reset(h *hasher, s epp.PromptSpec) {
	*d = digest{hash: h, tail: d.tail[:0], keys: d.keys[:0], ids: d.ids[:0], maxIDs: s.IDs}
	if cap(d.ids) > keptIDs {
		d.ids = nil
	}
	if wantsBlocks(s) {
		d.size, d.max = s.Tokens*tokenBytes, s.Max
	}
}

// full reports whether there are as many blocks as asked for.
func (d *digest) full() bool { return len(d.keys) >= d.max }

// stop ends hashing: text written later only adds to the length.
func (d *digest) stop() { d.max, d.maxIDs = len(d.keys), 0 }

// write appends text. Whole blocks within p are hashed without a copy.
func (d *digest) write(p []byte) {
	d.length += len(p)
	if d.full() {
		return
	}
	if len(d.tail) > 0 {
		n := min(d.size-len(d.tail), len(p))
		d.tail = append(d.tail, p[:n]...)
		if len(d.tail) < d.size {
			return
		}
		d.block(d.tail)
		d.tail, p = d.tail[:0], p[n:]
	}
	for len(p) >= d.size {
		if d.full() {
			return
		}
		d.block(p[:d.size])
		p = p[d.size:]
	}
	d.tail = append(d.tail, p...)
}

// put appends a token id. After text, a mix that engines refuse, it may make a block longer than size.
func (d *digest) put(id uint32) {
	if len(d.ids) < d.maxIDs && d.length == tokenBytes*len(d.ids) { // nothing but ids comes before it
		d.ids = append(d.ids, id)
	}
	d.length += tokenBytes
	if d.full() {
		return
	}
	d.tail = binary.LittleEndian.AppendUint32(d.tail, id)
	if len(d.tail) >= d.size {
		d.block(d.tail)
		d.tail = d.tail[:0]
	}
}

// skip appends n zero bytes in place of content that the mark before them identifies.
func (d *digest) skip(n int) {
	d.length += n
	for n > 0 && !d.full() {
		k := min(d.size-len(d.tail), n)
		d.tail = append(d.tail, make([]byte, k)...)
		if len(d.tail) == d.size {
			d.block(d.tail)
			d.tail = d.tail[:0]
		}
		n -= k
	}
}

// mark folds a value of no length into the hash, such as the end of a message. It changes the hash of the incomplete block
// and of later ones, not of earlier ones.
func (d *digest) mark(what uint64) {
	if !d.full() {
		d.state = d.hash.mix(d.hash.mix(d.state, what), uint64(len(d.tail)))
	}
}

func (d *digest) block(b []byte) {
	h := d.hash
	if h.keyed != nil {
		d.state = h.mix(d.state, h.keyed.sum(b))
	} else {
		d.state = h.mix(d.state, maphash.Bytes(seed, b)) // as h.bytes does, without its call
	}
	d.keys = append(d.keys, d.state)
}

// sum returns the hash of the whole text, incomplete block included, as the root of the section that follows.
func (d *digest) sum() uint64 { return d.hash.mix(d.state, d.hash.bytes(d.tail)) }
