package kvevents

import (
	"encoding/binary"
	"math"
)

// list and dict are arrays and maps to pack; a dict has names and values in turn, so that their order is given.
type (
	list = []any
	dict []any
)

// pack writes a value as MessagePack, in the shortest form as engines do.
func pack(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 0xc0)
	case bool:
		if v {
			return append(b, 0xc3)
		}
		return append(b, 0xc2)
	case int:
		return packInt(b, int64(v))
	case int64:
		return packInt(b, v)
	case uint64:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
	case string:
		if len(v) < 32 {
			return append(append(b, 0xa0|byte(len(v))), v...)
		}
		return append(append(b, 0xd9, byte(len(v))), v...)
	case []byte:
		return append(append(b, 0xc4, byte(len(v))), v...)
	case []uint64:
		b = packLength(b, len(v), 0x90, 0xdc)
		for _, n := range v {
			b = pack(b, n)
		}
	case []uint32:
		b = packLength(b, len(v), 0x90, 0xdc)
		for _, n := range v {
			b = packInt(b, int64(n))
		}
	case list:
		b = packLength(b, len(v), 0x90, 0xdc)
		for _, item := range v {
			b = pack(b, item)
		}
	case dict:
		b = packLength(b, len(v)/2, 0x80, 0xde)
		for _, item := range v {
			b = pack(b, item)
		}
	}
	return b
}

func packLength(b []byte, n int, short, long byte) []byte {
	if n < 16 {
		return append(b, short|byte(n))
	}
	return binary.BigEndian.AppendUint16(append(b, long), uint16(n))
}

func packInt(b []byte, v int64) []byte {
	switch {
	case v >= 0 && v < 128 || v < 0 && v >= -32:
		return append(b, byte(v))
	case v < 0:
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
	case v < 1<<8:
		return append(b, 0xcc, byte(v))
	case v < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case v < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(v))
}
