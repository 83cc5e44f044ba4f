package epp

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// tokenBytes is how many bytes of text count as a token, and how many a token id is packed into.
const tokenBytes = 4

// Hashes are keyed with a secret of the process: a client that could make its prompt collide with another's would draw
// requests to the wrong pods, and learn from the time to first token what others have asked. So they mean nothing outside.
var (
	seed = maphash.MakeSeed()
	key0 = maphash.String(seed, "state")
	key1 = maphash.String(seed, "input")
)

// mix folds b into a.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^key0, b^key1)
	return hi ^ lo
}

// digest cuts a text into blocks while it streams in, and hashes each together with all before it.
type digest struct {
	size   int // bytes of a block; 0 = only the length is wanted
	max    int // most blocks
	length int // bytes
	state  uint64
	tail   []byte // the begun block
	keys   []uint64
}

// wanted reports whether there is to be any block.
func (s BlockSpec) wanted() bool { return s.Tokens > 0 && s.Max > 0 }

// reset prepares for a new text, and keeps the buffers.
func (d *digest) reset(s BlockSpec) {
	*d = digest{tail: d.tail[:0], keys: d.keys[:0]}
	if s.wanted() {
		d.size, d.max = s.Tokens*tokenBytes, s.Max
	}
}

// full reports whether no further block is wanted.
func (d *digest) full() bool { return len(d.keys) >= d.max }

// stop only counts from now on.
func (d *digest) stop() { d.max = len(d.keys) }

// write appends text. What is a whole block within p is hashed where it lies.
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

// put appends a token id. Behind text, which no engine takes, it may make a block longer.
func (d *digest) put(id uint32) {
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

// skip appends n bytes that say nothing: the mark before them says what they stand for.
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

// mark folds something in that takes no room: the end of a message, say. It shows in the begun block, but in none before.
func (d *digest) mark(what uint64) {
	if !d.full() {
		d.state = mix(mix(d.state, what), uint64(len(d.tail)))
	}
}

func (d *digest) block(b []byte) {
	d.state = mix(d.state, maphash.Bytes(seed, b))
	d.keys = append(d.keys, d.state)
}

// sum is the hash of the whole text, for what follows it.
func (d *digest) sum() uint64 { return mix(d.state, maphash.Bytes(seed, d.tail)) }
