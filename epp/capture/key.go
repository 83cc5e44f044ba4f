package capture

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// Key keys the hashes of a capture. Without it, a hash tells nothing of what was hashed.
//
// Hashes of texts are the beginnings of SHA-256 over the key, a purpose and the text, too short for the extension of a message.
type Key [sha256.Size]byte

// NewKey returns a key that no other process has.
func NewKey() (k Key) {
	rand.Read(k[:]) // never fails
	return k
}

// leastSecret is the shortest secret that cannot be found by trying (bytes).
const leastSecret = 16

// ParseKey returns the key of a secret that several pickers share.
func ParseKey(secret []byte) (*Key, error) {
	secret = bytes.TrimSpace(secret)
	if len(secret) < leastSecret {
		return nil, fmt.Errorf("a secret of %d bytes can be guessed: it needs %d or more, such as those of openssl rand -hex 32", len(secret), leastSecret)
	}
	if bytes.ContainsAny(secret, "\r\n") {
		return nil, errors.New("it has more than one line")
	}
	k := Key(sha256.Sum256(append([]byte("tandem capture\x00"), secret...)))
	return &k, nil
}

// The purposes of hashes.
const (
	forName    = 'n'
	forBlock   = 'b'
	forSession = 's'
	forFlow    = 'f'
	forPrompts = 'p'
)

// Name returns the name of the key, which tells nothing of it.
func (k *Key) Name() string { return k.text(forName, "name") }

// ForPrompts returns the secret with which pickers that share the key hash prompts, before the capture hashes the result again: without
// it, every process has another one.
func (k *Key) ForPrompts() [sha256.Size]byte { return sha256.Sum256(append(k[:], forPrompts)) }

// text hashes a text.
func (k *Key) text(purpose byte, text string) string {
	sum := sha256.Sum256(append(append(append(make([]byte, 0, 128), k[:]...), purpose), text...))
	return hex.EncodeToString(sum[:8])
}

// blockHashes hashes the hashes of blocks. Each is one block of AES, which costs a tenth of SHA-256: a long prompt has thousands.
// It is not safe for concurrent use.
type blockHashes struct {
	cipher.Block
	text [aes.BlockSize]byte // scratch
}

func (k *Key) blockHashes() *blockHashes {
	own := sha256.Sum256(append(k[:], forBlock)) // no key is used in two ways
	b, err := aes.NewCipher(own[:])
	if err != nil {
		panic(err) // 32 bytes are a key of AES
	}
	return &blockHashes{Block: b}
}

// of returns a hash of 53 bits, so that every reader of JSON can hold it as a number: of ten million blocks, two have the same in one
// capture of two hundred.
func (b *blockHashes) of(hash uint64) int64 {
	clear(b.text[8:])
	binary.LittleEndian.PutUint64(b.text[:], hash)
	b.Encrypt(b.text[:], b.text[:])
	return int64(binary.LittleEndian.Uint64(b.text[:]) >> 11)
}
