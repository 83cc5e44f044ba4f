package sim

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// Version is the version of vLLM whose recordings this engine is compared with.
const Version = "0.32.0"

// RandomHex returns n random bytes in hexadecimal digits.
func RandomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// newUUID returns a random UUID (version 4), the form of an engine id.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
