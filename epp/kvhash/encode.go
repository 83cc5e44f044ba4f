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
	b = slices.Grow(b, len(pickleStart)+len(parent)+longest*len(tokens)+32)
	b = append(b, pickleStart...)
	b = append(b, shortBinBytes, byte(len(parent)))
	b = append(b, parent...)
	b = append(b, memoize, mark)
	n := len(b)
	if len(tokens) <= 3 {
		n-- // no mark
	}
	b = b[:cap(b)]
	for _, t := range tokens {
		// Encoding is half of the time of hashing if it branches on the sizes of ids.
		big := (1<<8 - 1 - uint64(t)) >> 63   // 1 if it takes more than one byte
		huge := (1<<16 - 1 - uint64(t)) >> 63 // 1 if it takes more than two
		op := uint64(binInt1|binInt2<<8|binInt<<16) >> (8 * (big + huge)) & 0xff
		binary.LittleEndian.PutUint64(b[n:], op|uint64(t)<<8)
		n += int(2 + big + 2*huge)
	}
	if b = b[:n]; len(adapter) == 0 && salt == "" && len(tokens) > 3 { // the most frequent by far
		b = append(b, pickleEnd...)
		finishPickle(b)
		return b
	}
	b = appendTuple(b, len(tokens))
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

const longest = 5 // bytes of a token id

// form is how CBOR writes a token id of 24 or more: what comes before it, and the size of both in bytes.
type form struct {
	op   byte
	size int
}

// cbored are the forms of ids by their number of bits.
var cbored = func() (all [33]form) {
	for n := range all {
		switch {
		case n <= 8:
			all[n] = form{cborUint | 24, 2}
		case n <= 16:
			all[n] = form{cborUint | 25, 3}
		default:
			all[n] = form{cborUint | 26, longest}
		}
	}
	return all
}()

// saltName comes before a salt.
const saltName = "cache_salt"

// pickleStart is what a pickle begins with; finishPickle writes its length there.
var pickleStart = string([]byte{proto, 5, frame, 0, 0, 0, 0, 0, 0, 0, 0})

// pickleEnd is what follows more than three tokens of a block that depends on nothing else.
var pickleEnd = string([]byte{tuple, memoize, noneOp, tuple1 + 2, memoize, stop})

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
