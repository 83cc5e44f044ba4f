package kvevents

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
)

var (
	errShort = errors.New("the message ends too early")
	errForm  = errors.New("a value of another type is expected")
)

// cursor reads MessagePack values one after the other. Its methods that fail leave it anywhere.
type cursor struct {
	rest []byte
}

// header is the first part of a value.
type header struct {
	kind byte   // one of the constants below
	n    uint64 // the integer, or how many bytes, elements or pairs follow
}

const (
	isNil = iota
	isBool
	isUint
	isInt // a negative one, in n as two's complement
	isFloat
	isText
	isBytes
	isArray
	isMap
	isExt // n bytes, with the type
)

// wide is the kind of the values of which the first byte is from 0xc0 on, and how many bytes of a number follow it.
var wide = [32]struct{ kind, size byte }{
	0x00: {isNil, 0}, 0x02: {isBool, 0}, 0x03: {isBool, 0},
	0x04: {isBytes, 1}, 0x05: {isBytes, 2}, 0x06: {isBytes, 4},
	0x07: {isExt, 1}, 0x08: {isExt, 2}, 0x09: {isExt, 4},
	0x0a: {isFloat, 4}, 0x0b: {isFloat, 8},
	0x0c: {isUint, 1}, 0x0d: {isUint, 2}, 0x0e: {isUint, 4}, 0x0f: {isUint, 8},
	0x10: {isInt, 1}, 0x11: {isInt, 2}, 0x12: {isInt, 4}, 0x13: {isInt, 8},
	0x14: {isExt, 0}, 0x15: {isExt, 0}, 0x16: {isExt, 0}, 0x17: {isExt, 0}, 0x18: {isExt, 0},
	0x19: {isText, 1}, 0x1a: {isText, 2}, 0x1b: {isText, 4},
	0x1c: {isArray, 2}, 0x1d: {isArray, 4}, 0x1e: {isMap, 2}, 0x1f: {isMap, 4},
}

// header reads the first part of a value. What follows it is not read, but a length is never more than what is there.
func (c *cursor) header() (h header, err error) {
	if len(c.rest) == 0 {
		return h, errShort
	}
	first := c.rest[0]
	c.rest = c.rest[1:]
	switch {
	case first < 0x80:
		return header{isUint, uint64(first)}, nil
	case first < 0x90:
		h = header{isMap, uint64(first & 0x0f)}
	case first < 0xa0:
		h = header{isArray, uint64(first & 0x0f)}
	case first < 0xc0:
		h = header{isText, uint64(first & 0x1f)}
	case first >= 0xe0:
		return header{isInt, uint64(int64(int8(first)))}, nil
	default:
		if h, err = c.wide(first); err != nil || h.kind < isText {
			return h, err
		}
	}
	if h.n > uint64(len(c.rest)) { // each element has a byte at least
		return h, errShort
	}
	return h, nil
}

// wide reads the number behind a first byte from 0xc0 up to 0xdf.
func (c *cursor) wide(first byte) (h header, err error) {
	form := wide[first-0xc0]
	h.kind = form.kind
	if len(c.rest) < int(form.size) {
		return h, errShort
	}
	switch b := c.rest; form.size {
	case 1:
		h.n = uint64(b[0])
	case 2:
		h.n = uint64(binary.BigEndian.Uint16(b))
	case 4:
		h.n = uint64(binary.BigEndian.Uint32(b))
	case 8:
		h.n = binary.BigEndian.Uint64(b)
	}
	c.rest = c.rest[form.size:]
	switch {
	case first == 0xc1:
		return h, errForm // no value begins with it
	case form.kind == isInt && form.size < 8: // spread the sign
		unused := 64 - 8*uint(form.size)
		h.n = uint64(int64(h.n<<unused) >> unused)
		if int64(h.n) >= 0 {
			h.kind = isUint
		}
	case form.kind == isInt && int64(h.n) >= 0:
		h.kind = isUint
	case form.kind == isBool:
		h.n = uint64(first & 1)
	case form.kind == isExt && form.size == 0:
		h.n = 1<<(first-0xd4) + 1
	case form.kind == isExt:
		h.n++
	case first == 0xca:
		h.n = math.Float64bits(float64(math.Float32frombits(uint32(h.n))))
	}
	return h, nil
}

// bytes reads n bytes, which are there as header has found.
func (c *cursor) bytes(n uint64) []byte {
	b := c.rest[:n]
	c.rest = c.rest[n:]
	return b
}

// skip reads a value and returns its bytes. It needs no memory, however deep values are nested.
func (c *cursor) skip() ([]byte, error) {
	before := c.rest
	for left := uint64(1); left > 0; left-- {
		if b := c.rest; len(b) > 0 && b[0] == 0xc0 { // most extras are nil
			c.rest = b[1:]
			continue
		}
		h, err := c.header()
		if err != nil {
			return nil, err
		}
		switch h.kind {
		case isText, isBytes, isExt:
			c.bytes(h.n)
		case isArray:
			left += h.n
		case isMap:
			left += 2 * h.n
		}
		if left > uint64(len(c.rest))+1 {
			return nil, errShort
		}
	}
	return before[:len(before)-len(c.rest)], nil
}

// text reads a text, or nil, which is returned as no bytes.
func (c *cursor) text() ([]byte, error) {
	if b := c.rest; len(b) > 0 && b[0]&0xe0 == 0xa0 { // most are short
		if n := int(b[0] & 0x1f); n < len(b) {
			c.rest = b[n+1:]
			return b[1 : n+1], nil
		}
	}
	h, err := c.header()
	switch {
	case err != nil:
		return nil, err
	case h.kind == isText:
		return c.bytes(h.n), nil
	case h.kind == isNil:
		return nil, nil
	}
	return nil, errForm
}

// integer reads an integer, or nil; ok is false if it is nil.
func (c *cursor) integer() (v int64, ok bool, err error) {
	h, err := c.header()
	switch {
	case err != nil:
		return 0, false, err
	case h.kind == isUint || h.kind == isInt:
		return int64(h.n), true, nil
	case h.kind == isNil:
		return 0, false, nil
	}
	return 0, false, errForm
}

// array reads the header of an array, or nil, which is returned as an empty one.
func (c *cursor) array() (n int, err error) {
	h, err := c.header()
	switch {
	case err != nil:
		return 0, err
	case h.kind == isArray:
		return int(h.n), nil
	case h.kind == isNil:
		return 0, nil
	}
	return 0, errForm
}

// name reads the name of a block: an integer, signed or not, or the bytes of a digest, of which the last eight count. ok is false if
// it is nil.
func (c *cursor) name() (v uint64, ok bool, err error) {
	h, err := c.header()
	switch {
	case err != nil:
		return 0, false, err
	case h.kind == isUint || h.kind == isInt:
		return h.n, true, nil
	case h.kind == isBytes || h.kind == isText:
		b := c.bytes(h.n)
		if len(b) < 8 {
			return 0, false, errForm
		}
		return binary.BigEndian.Uint64(b[len(b)-8:]), true, nil
	case h.kind == isNil:
		return 0, false, nil
	}
	return 0, false, errForm
}

// names reads an array of names and appends them.
func (c *cursor) names(dst []uint64) ([]uint64, error) {
	n, err := c.array()
	if err != nil {
		return dst, err
	}
	for range n {
		if b := c.rest; len(b) > 8 && b[0] == 0xcf { // most are integers of 64 bits
			dst = append(dst, binary.BigEndian.Uint64(b[1:]))
			c.rest = b[9:]
			continue
		}
		v, ok, err := c.name()
		if err != nil {
			return dst, err
		}
		if !ok {
			return dst, errForm
		}
		dst = append(dst, v)
	}
	return dst, nil
}

// tokens reads an array of token ids and appends them.
func (c *cursor) tokens(dst []uint32) ([]uint32, error) {
	n, err := c.array()
	if err != nil {
		return dst, err
	}
	dst = slices.Grow(dst, n) // no more than there are bytes
	b := c.rest
	for range n {
		// Most ids have two bytes; the vocabularies of some models have some of three, which take four.
		switch {
		case len(b) > 2 && b[0] == 0xcd:
			dst, b = append(dst, uint32(binary.BigEndian.Uint16(b[1:]))), b[3:]
			continue
		case len(b) > 4 && b[0] == 0xce:
			dst, b = append(dst, binary.BigEndian.Uint32(b[1:])), b[5:]
			continue
		}
		c.rest = b
		h, err := c.header()
		if err != nil {
			return dst, err
		}
		if h.kind != isUint || h.n > math.MaxUint32 {
			return dst, errForm
		}
		dst, b = append(dst, uint32(h.n)), c.rest
	}
	c.rest = b
	return dst, nil
}
