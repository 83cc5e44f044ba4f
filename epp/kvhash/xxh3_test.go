package kvhash

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"testing"
)

// xxh3Bytes returns the bytes that xxHash's own tests hash.
func xxh3Bytes(n int) []byte {
	b, state := make([]byte, n), uint64(prime32a)
	for i := range b {
		b[i] = byte(state >> 56)
		state *= 0x9E3779B185EBCA8D
	}
	return b
}

// TestXXH3: hashes are those of PyPI xxhash 4.1.0, xxh3_128_hexdigest(xxh3Bytes(2048)[:n]), for all n from 0 to 2048: the last value is the
// SHA-256 of them all as bytes. The other lengths are the first and last ones of each way to hash.
func TestXXH3(t *testing.T) {
	want := map[int]string{
		0:    "99aa06d3014798d86001c324468d497f",
		1:    "a6cd5e9392000f6ac44bdff4074eecdb",
		3:    "20efc49ff02422ea54247382a8d6b94d",
		4:    "970d585ac632bf8e2e7d8d6876a39fe9",
		8:    "47a7f080d82bb45664c69cab4bb21dc5",
		9:    "564ef6078950d457ed7ccbc501eb7501",
		16:   "c68c368ecf8a9c05562980258a998629",
		17:   "955fa78643ed3669abbc12d11973d7db",
		32:   "98fc6458710dc2e8278410a17595e3f9",
		33:   "3103c192ceaa2dede593bc4e5914c9d1",
		64:   "6d90e81a9b0fd622efdb6a44690721a9",
		96:   "d9d0b885f56c93f1e9324473ea9afebe",
		128:  "39992220e045260aebb15e34a7fb5ab1",
		129:  "03815fc91f1b30b686c9e3bc8f0a3b5c",
		160:  "ba5d218964b622ad737126c8d7c09cee",
		240:  "aa4202daa2769dc85c9aae94c8ebe5a0",
		241:  "99a80ecf0ecfc647c5a639ecd2030e5e",
		1024: "0d30d24071c64c57dd85c9b5c1109c5c",
		1025: "fd3ee4fe7f2954c6d870c0fa13211c6a",
		2048: "f736557fd47073a5dd59e2c3a5f038e0",
	}
	b, all := xxh3Bytes(2048), sha256.New()
	for n := range len(b) + 1 {
		high, low := xxh3(b[:n])
		digest := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, high), low)
		all.Write(digest)
		if got := fmt.Sprintf("%x", digest); want[n] != "" && got != want[n] {
			t.Errorf("%d bytes: %s, want %s", n, got, want[n])
		}
	}
	if got, want := fmt.Sprintf("%x", all.Sum(nil)), "7a84cdc3bc5c214c1ff61df8a16a3a1bb8922f98bdbf7073f4b3574bea771e4f"; got != want {
		t.Errorf("hashes of 0 to %d bytes: %s, want %s", len(b), got, want)
	}
}
