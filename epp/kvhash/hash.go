package kvhash

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// method is an algorithm without its seed.
type method uint8

const (
	none       method = iota
	sha256Of          // of a pickle, as vLLM does by default
	sha256CBOR        // of canonical CBOR
	xxhash            // XXH3 with 128 bits, of a pickle
	xxhashCBOR        // of canonical CBOR
	sglang            // SHA-256 of raw bytes
	methods
)

// names are those of vLLM's flag --prefix-caching-hash-algo, and of SGLang.
var names = [methods]string{"", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor", "sglang"}

// usualSeed is what vLLM hashes with SHA-256 before the first block of a prompt, unless PYTHONHASHSEED is set. With XXH3 it is a random number.
const usualSeed = "vllm-none-hash"

// Algorithm is how engines hash blocks. The zero value is no algorithm. Algorithms are comparable.
type Algorithm struct {
	method method
	seed   string // PYTHONHASHSEED, or usualSeed
}

// Parse returns the algorithm of a name, such as sha256, with the engines' PYTHONHASHSEED, "" = they have none. The error names the
// algorithms that there are, or asks for the seed that an algorithm needs.
func Parse(name, seed string) (Algorithm, error) {
	m := method(slices.Index(names[:], name))
	switch {
	case name == "" || m >= methods:
		return Algorithm{}, fmt.Errorf("must be one of %s, got %q", strings.Join(names[1:], ", "), name)
	case m == sglang:
		return Algorithm{method: m}, nil
	case seed == "" && (m == xxhash || m == xxhashCBOR):
		return Algorithm{}, fmt.Errorf("%s needs hashSeed: give all engines the same PYTHONHASHSEED and name it there; without it each hashes with a random number", name)
	case seed == "":
		seed = usualSeed
	}
	return Algorithm{m, seed}, nil
}

// String returns the algorithm and its seed, as people configure them; "" if it is none.
func (a Algorithm) String() string {
	if a.Seed() == "" {
		return names[a.method]
	}
	return fmt.Sprintf("%s with hashSeed %q", names[a.method], a.seed)
}

// Seed returns the engines' PYTHONHASHSEED, "" = they have none.
func (a Algorithm) Seed() string {
	if a.seed == usualSeed {
		return ""
	}
	return a.seed
}

// Prompt is what the names of blocks depend on.
type Prompt struct {
	Tokens      []uint32
	BlockTokens int
	// HashTokens is after how many tokens the engine hashes, a divisor of BlockTokens; 0 = BlockTokens. The name of a block is the hash of
	// its last part. With hybrid models it is smaller.
	HashTokens int
	Adapter    []byte // LoRA adapter, none = the model itself
	Salt       string // cache salt, "" = none
}

// Hasher hashes by one algorithm. It is safe for concurrent use.
type Hasher struct {
	method method
	root   []byte    // what the first block is hashed with
	memory sync.Pool // of *scratch
}

// New returns the hasher of an algorithm, which must not be the zero value.
func New(a Algorithm) *Hasher {
	h := &Hasher{method: a.method}
	h.memory.New = func() any { return newScratch() }
	var b []byte
	switch a.method {
	case sha256Of, xxhash:
		b = append(append(append(b, pickleStart...), appendText(nil, a.seed)...), stop)
		finishPickle(b)
	case sha256CBOR, xxhashCBOR:
		b = append(appendHead(b, cborText, uint64(len(a.seed))), a.seed...)
	case sglang:
		return h
	}
	h.root = h.digest(newScratch(), b)
	return h
}

// digest returns the hash of b, until the next call. b may be overwritten behind its end.
func (h *Hasher) digest(s *scratch, b []byte) []byte {
	if h.method == xxhash || h.method == xxhashCBOR {
		high, low := xxh3(b)
		binary.BigEndian.PutUint64(s.space[:], high)
		binary.BigEndian.PutUint64(s.space[8:], low)
		return s.space[:16]
	}
	return s.sha256(b)
}

// Append appends the names of the whole blocks of a prompt. With SGLang there are none if it has an adapter or a salt: its hashes do not
// depend on them, so they would be the names of blocks that the prompt must not use.
func (h *Hasher) Append(dst []uint64, p *Prompt) []uint64 {
	each := p.HashTokens
	if each == 0 {
		each = p.BlockTokens
	}
	if each < 1 || p.BlockTokens%each != 0 || h.method == sglang && (len(p.Adapter) > 0 || p.Salt != "") {
		return dst
	}
	s := h.memory.Get().(*scratch)
	defer h.memory.Put(s)
	buf, parent, salt := s.buf, h.root, p.Salt
	whole := len(p.Tokens) / p.BlockTokens * p.BlockTokens
	for at := each; at <= whole; at += each {
		tokens := p.Tokens[at-each : at]
		switch h.method {
		case sha256Of, xxhash:
			buf = appendPickle(buf[:0], parent, tokens, p.Adapter, salt)
		case sha256CBOR, xxhashCBOR:
			buf = appendCBOR(buf[:0], parent, tokens, p.Adapter, salt)
		default:
			buf = append(buf[:0], parent...)
			for _, t := range tokens {
				buf = binary.LittleEndian.AppendUint32(buf, t)
			}
		}
		parent, salt = h.digest(s, buf), ""
		if at%p.BlockTokens == 0 {
			dst = append(dst, h.name(parent))
		}
	}
	return dst
}

// name returns the part of a digest that KV events have.
func (h *Hasher) name(digest []byte) uint64 {
	if h.method == sglang {
		return binary.BigEndian.Uint64(digest)
	}
	return binary.BigEndian.Uint64(digest[len(digest)-8:])
}

// Fit returns after how many tokens an engine hashes that gave these names to the first blocks of a prompt, 0 if it hashes in another way.
// HashTokens of the prompt does not count.
func (h *Hasher) Fit(p Prompt, named []uint64) (hashTokens int) {
	p.Tokens = p.Tokens[:min(len(p.Tokens), len(named)*p.BlockTokens)]
	for parts := 1; parts <= p.BlockTokens; parts++ {
		if p.BlockTokens%parts != 0 {
			continue
		}
		p.HashTokens = p.BlockTokens / parts
		if got := h.Append(nil, &p); len(got) == len(named) && len(got) > 0 && slices.Equal(got, named) {
			return p.HashTokens
		}
	}
	return 0
}

// Guess returns the algorithm that gave these names to the first blocks of a prompt, among those that need no seed, or have the given one or
// one that guides for vLLM recommend. It returns the zero value if there is none.
func Guess(p Prompt, named []uint64, seed string) Algorithm {
	for m := sha256Of; m < methods; m++ {
		for _, s := range []string{seed, "", "0", "42"} {
			if a, err := Parse(names[m], s); err == nil && New(a).Fit(p, named) > 0 {
				return a
			}
		}
	}
	return Algorithm{}
}
