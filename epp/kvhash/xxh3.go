package kvhash

import (
	"encoding/binary"
	"math/bits"
)

// Constants of XXH3, see https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
const (
	prime32a = 0x9E3779B1
	prime32b = 0x85EBCA77
	prime32c = 0xC2B2AE3D

	prime64a = 0x9E3779B185EBCA87
	prime64b = 0xC2B2AE3D27D4EB4F
	prime64c = 0x165667B19E3779F9
	prime64d = 0x85EBCA77C2B2AE63
	prime64e = 0x27D4EB2F165667C5

	primeMX1 = 0x165667919E3779F9
	primeMX2 = 0x9FB21C651E98DF25

	stripe     = 64                   // bytes that an input of more than 240 is read by
	secretEnd  = len(secret) - stripe // where the secret of the last stripe of a block is, and of scrambling
	blockBytes = stripe * secretEnd / 8
)

// secret is XXH3's without a seed: vLLM hashes its seed as data.
var secret = [192]byte{
	0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
	0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
	0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
	0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
	0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
	0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
	0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
	0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
	0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
	0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
	0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
	0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
}

// word returns the 64 bits at b[i:].
func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }

// word32 returns the 32 bits at b[i:].
func word32(b []byte, i int) uint64 { return uint64(binary.LittleEndian.Uint32(b[i:])) }

// fold returns both halves of a product, combined.
func fold(x, y uint64) uint64 {
	high, low := bits.Mul64(x, y)
	return high ^ low
}

// avalanche has every bit of a half depend on all bits of h.
func avalanche(h uint64) uint64 {
	h = (h ^ h>>37) * primeMX1
	return h ^ h>>32
}

// avalancheShort does so in inputs of less than 4 bytes.
func avalancheShort(h uint64) uint64 {
	h = (h ^ h>>33) * prime64b
	h = (h ^ h>>29) * prime64c
	return h ^ h>>32
}

// xxh3 returns the halves of XXH3's hash of 128 bits, without a seed.
func xxh3(b []byte) (high, low uint64) {
	switch n := len(b); {
	case n > 240:
		return xxh3Long(b)
	case n > 16:
		return xxh3Middle(b)
	case n > 8:
		first, last, key := word(b, 0), word(b, n-8), secret[32:64]
		high, low = bits.Mul64(first^last^word(key, 0)^word(key, 8), prime64a)
		low += uint64(n-1) << 54
		last ^= word(key, 16) ^ word(key, 24)
		high += last + uint64(uint32(last))*(prime32b-1)
		low ^= bits.ReverseBytes64(high)
		carried := high
		high, low = bits.Mul64(low, prime64b)
		return avalanche(high + carried*prime64b), avalanche(low)
	case n > 3:
		key := secret[16:32]
		high, low = bits.Mul64((word32(b, 0)|word32(b, n-4)<<32)^word(key, 0)^word(key, 8), prime64a+uint64(n)<<2)
		high += low << 1
		low ^= high >> 3
		low = (low ^ low>>35) * primeMX2
		return avalanche(high), low ^ low>>28
	case n > 0:
		packed := uint32(b[0])<<16 | uint32(b[n/2])<<24 | uint32(b[n-1]) | uint32(n)<<8
		turned := bits.RotateLeft32(bits.ReverseBytes32(packed), 13)
		key := secret[:16]
		return avalancheShort(uint64(turned) ^ word32(key, 8) ^ word32(key, 12)), avalancheShort(uint64(packed) ^ word32(key, 0) ^ word32(key, 4))
	}
	key := secret[64:96]
	return avalancheShort(word(key, 16) ^ word(key, 24)), avalancheShort(word(key, 0) ^ word(key, 8))
}

// mix takes two parts of 16 bytes into the halves, with 32 bytes of the secret.
func mix(high, low uint64, x, y, key []byte) (uint64, uint64) {
	x0, x1, y0, y1 := word(x, 0), word(x, 8), word(y, 0), word(y, 8)
	low = (low + fold(x0^word(key, 0), x1^word(key, 8))) ^ (y0 + y1)
	high = (high + fold(y0^word(key, 16), y1^word(key, 24))) ^ (x0 + x1)
	return high, low
}

// xxh3Middle hashes 17 to 240 bytes. Up to 128 are read from both ends inwards, more of them from the front.
func xxh3Middle(b []byte) (high, low uint64) {
	n := len(b)
	low = uint64(n) * prime64a
	if n <= 128 {
		for i := (n - 1) / 32 * 16; i >= 0; i -= 16 {
			high, low = mix(high, low, b[i:i+16], b[n-i-16:], secret[2*i:])
		}
	} else {
		for i := 0; i < 128; i += 32 {
			high, low = mix(high, low, b[i:], b[i+16:], secret[i:])
		}
		high, low = avalanche(high), avalanche(low)
		for i := 128; i+32 <= n; i += 32 {
			high, low = mix(high, low, b[i:], b[i+16:], secret[i-128+3:])
		}
		high, low = mix(high, low, b[n-16:], b[n-32:], secret[136-17-16:])
	}
	return -avalanche(low*prime64a + high*prime64d + uint64(n)*prime64b), avalanche(low + high)
}

// xxh3Long hashes more than 240 bytes.
func xxh3Long(b []byte) (high, low uint64) {
	acc := [8]uint64{prime32c, prime64a, prime64b, prime64c, prime64d, prime32b, prime64e, prime32a}
	n, last := uint64(len(b)), b[len(b)-stripe:]
	for ; len(b) > blockBytes; b = b[blockBytes:] {
		for i := range secretEnd / 8 {
			accumulate(&acc, b[i*stripe:], secret[i*8:])
		}
		for i := range acc {
			acc[i] = (acc[i] ^ acc[i]>>47 ^ word(secret[secretEnd:], i*8)) * prime32a
		}
	}
	for i := range (len(b) - 1) / stripe {
		accumulate(&acc, b[i*stripe:], secret[i*8:])
	}
	accumulate(&acc, last, secret[secretEnd-7:])
	return merge(&acc, secret[secretEnd-11:], ^(n * prime64b)), merge(&acc, secret[11:], n*prime64a)
}

// accumulate takes a stripe into the lanes.
func accumulate(acc *[8]uint64, b, key []byte) {
	b, key = b[:stripe], key[:stripe]
	for i := range acc {
		x := word(b, i*8)
		keyed := x ^ word(key, i*8)
		acc[i^1] += x
		acc[i] += uint64(uint32(keyed)) * (keyed >> 32)
	}
}

// merge makes half of a hash of the lanes.
func merge(acc *[8]uint64, key []byte, start uint64) uint64 {
	for i := 0; i < len(acc); i += 2 {
		start += fold(acc[i]^word(key, i*8), acc[i+1]^word(key, i*8+8))
	}
	return avalanche(start)
}
