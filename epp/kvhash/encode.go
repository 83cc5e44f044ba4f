package kvhash

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// Opcodes of Python's pickle protocol 5, see https://docs.python.org/3/library/pickletools.html.
const (
	proto           = 0x80
	frame           = 0x95
	shortBinBytes   = 'C'
	binInt1         = 'K'
	binInt2         = 'M'
	binInt          = 'J'
	shortBinUnicode = 0x8c
	binUnicode      = 'X'
	memoize         = 0x94
	mark            = '('
	tuple           = 't'
	tuple1          = 0x85 // of two and three elements: the next ones
	noneOp          = 'N'
	stop            = '.'

	pickleHead = 2 + 1 + 8 // protocol and frame
)

// appendPickle appends pickle.dumps((parent, tokens, extras), protocol=5), where extras is None or a tuple of the adapter's name and
// ("cache_salt", salt). Python cuts pickles of more than 64 kB into several frames; blocks are far smaller.
func appendPickle(b, parent []byte, tokens []uint32, adapter []byte, salt string) []byte {
	b = startPickle(b)
	b = append(b, shortBinBytes, byte(len(parent)))
	b = append(append(b, parent...), memoize)
	if len(tokens) > 3 {
		b = append(b, mark)
	}
	b = slices.Grow(b, longest*len(tokens)+8)
	n := len(b)
	b = b[:cap(b)]
	for _, t := range tokens {
		form := pickled[bits.Len32(t)]
		binary.LittleEndian.PutUint64(b[n:], uint64(form.op)|uint64(t)<<8)
		n += form.size
	}
	b = appendTuple(b[:n], len(tokens))
	switch {
	case len(adapter) == 0 && salt == "":
		b = append(b, noneOp)
	default:
		n := 0 // extras
		if len(adapter) > 0 {
			b, n = appendText(b, adapter), n+1
		}
		if salt != "" {
			b, n = appendTuple(appendText(appendText(b, saltName), salt), 2), n+1
		}
		b = appendTuple(b, n)
	}
	b = append(appendTuple(b, 3), stop)
	finishPickle(b)
	return b
}

// form is how a token id is written: what comes before it, and the size of both in bytes. Encoding is half of the time of hashing if it branches
// on the sizes of ids.
type form struct {
	op   byte
	size int
}

const longest = 5 // bytes of a token id

// pickled and cbored are the forms of ids by their number of bits. CBOR has another one for those below 24.
var pickled, cbored = forms(binInt1, binInt2, binInt), forms(cborUint|24, cborUint|25, cborUint|26)

func forms(op1, op2, op4 byte) (all [33]form) {
	for n := range all {
		switch {
		case n <= 8:
			all[n] = form{op1, 2}
		case n <= 16:
			all[n] = form{op2, 3}
		default:
			all[n] = form{op4, longest}
		}
	}
	return all
}

// saltName comes before a salt.
const saltName = "cache_salt"

// startPickle appends what a pickle begins with; finishPickle writes its length there.
func startPickle(b []byte) []byte { return append(b, proto, 5, frame, 0, 0, 0, 0, 0, 0, 0, 0) }

func finishPickle(b []byte) {
	binary.LittleEndian.PutUint64(b[pickleHead-8:], uint64(len(b)-pickleHead))
}

// appendTuple makes a tuple of the last n elements. Before more than three there is a mark.
func appendTuple(b []byte, n int) []byte {
	if n > 3 {
		return append(b, tuple, memoize)
	}
	return append(b, tuple1+byte(n-1), memoize)
}

func appendText[T string | []byte](b []byte, text T) []byte {
	if len(text) < 256 {
		b = append(b, shortBinUnicode, byte(len(text)))
	} else {
		b = binary.LittleEndian.AppendUint32(append(b, binUnicode), uint32(len(text)))
	}
	return append(append(b, text...), memoize)
}

// Major types of CBOR (RFC 8949), and its null.
const (
	cborUint  = 0 << 5
	cborBytes = 2 << 5
	cborText  = 3 << 5
	cborArray = 4 << 5
	cborNull  = 0xf6
)

// appendCBOR appends the same as appendPickle in canonical CBOR.
func appendCBOR(b, parent []byte, tokens []uint32, adapter []byte, salt string) []byte {
	b = append(b, cborArray|3)
	b = append(appendHead(b, cborBytes, uint64(len(parent))), parent...)
	b = appendHead(b, cborArray, uint64(len(tokens)))
	b = slices.Grow(b, longest*len(tokens)+8)
	at := len(b)
	b = b[:cap(b)]
	for _, t := range tokens {
		if t < 24 {
			b[at] = cborUint | byte(t)
			at++
			continue
		}
		form := cbored[bits.Len32(t)]
		binary.BigEndian.PutUint64(b[at:], uint64(form.op)<<56|uint64(t)<<(64-8*form.size))
		at += form.size
	}
	b = b[:at]
	n := uint64(0)
	if len(adapter) > 0 {
		n++
	}
	if salt != "" {
		n++
	}
	if n == 0 {
		return append(b, cborNull)
	}
	b = appendHead(b, cborArray, n)
	if len(adapter) > 0 {
		b = append(appendHead(b, cborText, uint64(len(adapter))), adapter...)
	}
	if salt != "" {
		b = append(appendHead(append(b, cborArray|2), cborText, uint64(len(saltName))), saltName...)
		b = append(appendHead(b, cborText, uint64(len(salt))), salt...)
	}
	return b
}

// appendHead appends the head of an item: its type, and its value or length in the shortest form.
func appendHead(b []byte, kind byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, kind|byte(n))
	case n < 1<<8:
		return append(b, kind|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, kind|25), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, kind|26), uint32(n))
}
