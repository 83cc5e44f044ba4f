package dialect

import (
	"encoding/binary"
	"errors"
)

// errMsgpack is the error for bytes that are not the expected msgpack. Callers wrap it in their own words.
var errMsgpack = errors.New("not the msgpack that was expected")

// unpacker reads the msgpack of side channels: maps with string keys, strings and bytes; it skips other values. It does not
// recurse, since the sender chooses the depth. After an error all further reads fail.
type unpacker struct {
	rest []byte
	err  error
}

// take reads n bytes.
func (u *unpacker) take(n uint64) []byte {
	if u.err != nil || n > uint64(len(u.rest)) {
		u.err = errMsgpack
		return nil
	}
	b := u.rest[:n]
	u.rest = u.rest[n:]
	return b
}

// uint reads an unsigned number of size bytes.
func (u *unpacker) uint(size uint64) uint64 {
	var b [8]byte
	copy(b[8-size:], u.take(size))
	return binary.BigEndian.Uint64(b[:])
}

// value is one value without the values inside of it.
type value struct {
	bytes   []byte // of a string or byte array
	isBytes bool   // the value is a string or byte array
	isMap   bool
	inside  uint64 // how many of the following values belong to it; a map has two for each entry
}

// sizes are what follows the type bytes 0xc0 to 0xdf: the length's bytes, and further bytes.
var sizes = [32]struct{ length, more uint64 }{
	0x04: {1, 0}, 0x05: {2, 0}, 0x06: {4, 0}, // bytes
	0x07: {1, 1}, 0x08: {2, 1}, 0x09: {4, 1}, // extensions, whose kind is one byte
	0x0a: {0, 4}, 0x0b: {0, 8}, // floats
	0x0c: {0, 1}, 0x0d: {0, 2}, 0x0e: {0, 4}, 0x0f: {0, 8}, // unsigned integers
	0x10: {0, 1}, 0x11: {0, 2}, 0x12: {0, 4}, 0x13: {0, 8}, // integers
	0x14: {0, 2}, 0x15: {0, 3}, 0x16: {0, 5}, 0x17: {0, 9}, 0x18: {0, 17}, // extensions of fixed sizes
	0x19: {1, 0}, 0x1a: {2, 0}, 0x1b: {4, 0}, // strings
	0x1c: {2, 0}, 0x1d: {4, 0}, // lists
	0x1e: {2, 0}, 0x1f: {4, 0}, // maps
}

// next reads a value.
func (u *unpacker) next() value {
	first := byte(u.uint(1))
	switch {
	case first < 0x80, first >= 0xe0: // small integers
		return value{}
	case first < 0x90:
		return value{isMap: true, inside: 2 * uint64(first&0xf)}
	case first < 0xa0:
		return value{inside: uint64(first & 0xf)}
	case first < 0xc0:
		return value{bytes: u.take(uint64(first & 0x1f)), isBytes: true}
	case first == 0xc1: // the type byte that has no meaning
		u.err = errMsgpack
	}
	size := sizes[first-0xc0]
	length := u.uint(size.length)
	switch {
	case first >= 0xde:
		return value{isMap: true, inside: 2 * length}
	case first >= 0xdc:
		return value{inside: length}
	}
	isBytes := first >= 0xd9 || first >= 0xc4 && first <= 0xc6
	return value{bytes: u.take(length + size.more), isBytes: isBytes}
}

// skip skips the values inside of a value.
func (u *unpacker) skip(v value) {
	for left := v.inside; left > 0 && u.err == nil; left-- {
		left += u.next().inside
	}
}

// mapOf reads a map and returns its strings and byte arrays by key. The last of several equal keys counts.
func (u *unpacker) mapOf() (map[string][]byte, error) {
	m := u.next()
	if !m.isMap {
		return nil, errMsgpack
	}
	found := map[string][]byte{}
	for range m.inside / 2 {
		key := u.next()
		u.skip(key)
		v := u.next()
		u.skip(v)
		if u.err != nil {
			return nil, u.err
		}
		if key.isBytes && v.isBytes {
			found[string(key.bytes)] = v.bytes
		}
	}
	return found, u.err
}

// The type bytes of strings and bytes whose length has four bytes.
const (
	packedBytes  = 0xc6
	packedString = 0xdb
)

// appendPacked packs a string or byte array.
func appendPacked(b []byte, kind byte, text string) []byte {
	b = binary.BigEndian.AppendUint32(append(b, kind), uint32(len(text)))
	return append(b, text...)
}
