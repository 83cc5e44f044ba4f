package kvhash

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// vector is a block: of an engine that was recorded, or of one as CPython pickles it.
type vector struct {
	Source, Algorithm, Seed string
	Root, Parent            string // digests
	Tokens                  []uint32
	Adapter, Salt           string
	Digest, Name            string
}

func vectors(tb testing.TB) (all []vector) {
	text, err := os.ReadFile("testdata/vectors.jsonl")
	if err != nil {
		tb.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var v vector
		if err := json.Unmarshal(line, &v); err != nil {
			tb.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

func (v *vector) prompt() Prompt {
	return Prompt{Tokens: v.Tokens, BlockTokens: len(v.Tokens), Adapter: []byte(v.Adapter), Salt: v.Salt}
}

func (v *vector) name(tb testing.TB) uint64 {
	name, err := strconv.ParseUint(v.Name, 16, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return name
}

// hasher returns the hasher of a vector, which hashes the first block of a prompt with the vector's parent.
func (v *vector) hasher(tb testing.TB) *Hasher {
	a, err := Parse(v.Algorithm, v.Seed)
	if err != nil {
		tb.Fatal(err)
	}
	h := New(a)
	if got := hex.EncodeToString(h.root); got != v.Root {
		tb.Errorf("%v begins with %s, want %s", a, got, v.Root)
	}
	if h.root, err = hex.DecodeString(v.Parent); err != nil {
		tb.Fatal(err)
	}
	return h
}

// TestVectors: all names are those of the engines.
func TestVectors(t *testing.T) {
	seen := map[string]int{}
	for i, v := range vectors(t) {
		p := v.prompt()
		if got := v.hasher(t).Append(nil, &p); len(got) != 1 || got[0] != v.name(t) {
			t.Errorf("vector %d, %s, %s, %d tokens: %x, want %s", i, v.Source, v.Algorithm, len(v.Tokens), got, v.Name)
		}
		seen[v.Source+", "+v.Algorithm]++
	}
	want := map[string]int{"vLLM, recorded, sha256": 14, "vLLM, recorded, sha256_cbor": 14, "vLLM, recorded, xxhash_cbor": 12,
		"SGLang, recorded, sglang": seen["SGLang, recorded, sglang"], "CPython's pickle, sha256": seen["CPython's pickle, sha256"],
		"vLLM's functions, xxhash": 60, "vLLM's functions, xxhash_cbor": 60}
	if fmt.Sprint(seen) != fmt.Sprint(want) || len(seen) != len(want) {
		t.Errorf("%v, want %v", seen, want)
	}
}

// chains returns prompts of several blocks that were recorded, and the names of their blocks.
func chains(t *testing.T) (prompts []Prompt, named [][]uint64, algorithms []Algorithm) {
	all := vectors(t)
	for i, v := range all {
		if v.Parent != v.Root {
			continue
		}
		a, err := Parse(v.Algorithm, v.Seed)
		if err != nil {
			t.Fatal(err)
		}
		p, names, digest := v.prompt(), []uint64{v.name(t)}, v.Digest
		for _, next := range all[i+1:] {
			if next.Parent == digest && next.Algorithm == v.Algorithm && len(next.Tokens) == p.BlockTokens {
				p.Tokens = append(slices.Clip(p.Tokens), next.Tokens...)
				names, digest = append(names, next.name(t)), next.Digest
			}
		}
		prompts, named, algorithms = append(prompts, p), append(named, names), append(algorithms, a)
	}
	return prompts, named, algorithms
}

// TestChains: a block is hashed with the one before it, and what comes after the last whole block does not count.
func TestChains(t *testing.T) {
	prompts, named, algorithms := chains(t)
	longest := 0
	for i, p := range prompts {
		p.Tokens = append(slices.Clip(p.Tokens), make([]uint32, p.BlockTokens-1)...)
		if got := New(algorithms[i]).Append(nil, &p); !slices.Equal(got, named[i]) {
			t.Errorf("%v: %x, want %x", algorithms[i], got, named[i])
		}
		longest = max(longest, len(named[i]))
	}
	if longest < 3 {
		t.Errorf("the longest prompt has %d blocks", longest)
	}
}

// TestHashTokens: an engine that hashes more often names a block by the hash of its last part, and Fit finds out how often.
func TestHashTokens(t *testing.T) {
	prompts, named, algorithms := chains(t)
	for i, p := range prompts {
		h, n := New(algorithms[i]), len(named[i])
		if got := h.Fit(p, named[i]); got != p.BlockTokens {
			t.Errorf("%v: blocks of %d tokens are hashed after %d", algorithms[i], p.BlockTokens, got)
		}
		if n < 2 {
			continue
		}
		hashed := p.BlockTokens
		p.BlockTokens, p.HashTokens = 2*hashed, hashed
		want := []uint64{}
		for k := 1; k < n; k += 2 {
			want = append(want, named[i][k])
		}
		if got := h.Append(nil, &p); !slices.Equal(got, want) {
			t.Errorf("%v: %x, want %x", algorithms[i], got, want)
		}
		if got := h.Fit(p, want); got != hashed {
			t.Errorf("%v: blocks are hashed after %d tokens, want %d", algorithms[i], got, hashed)
		}
		want[0]++
		if got := h.Fit(p, want); got != 0 {
			t.Errorf("%v: other names fit %d tokens", algorithms[i], got)
		}
	}
}

func TestGuess(t *testing.T) {
	prompts, named, algorithms := chains(t)
	for i, p := range prompts {
		a := algorithms[i]
		if got := Guess(p, named[i], a.Seed()); got != a {
			t.Errorf("%q, want %q", got, a)
		}
		if got := Guess(p, []uint64{1}, a.Seed()); got != (Algorithm{}) {
			t.Errorf("%q, though no algorithm gives this name", got)
		}
	}
}

func TestParse(t *testing.T) {
	for name, test := range map[string]struct{ algorithm, seed, want string }{
		"vLLM's default":          {"sha256", "", "sha256"},
		"a seed":                  {"sha256_cbor", "42", `sha256_cbor with hashSeed "42"`},
		"SGLang has none":         {"sglang", "42", "sglang"},
		"XXH3":                    {"xxhash", "0", `xxhash with hashSeed "0"`},
		"XXH3 of a random root":   {"xxhash_cbor", "", ""},
		"nothing":                 {"", "", ""},
		"llm-d's own, not ours":   {"cbor-fnv", "", ""},
		"older, of another chain": {"sha256_cbor_64bit", "0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := Parse(test.algorithm, test.seed)
			if a.String() != test.want || (err == nil) != (test.want != "") {
				t.Errorf("%q, %v, want %q", a, err, test.want)
			}
		})
	}
}

// TestSGLangApart: what SGLang's hashes do not cover must not be found under them.
func TestSGLangApart(t *testing.T) {
	h := New(Algorithm{method: sglang})
	for _, p := range []Prompt{{Salt: "s"}, {Adapter: []byte("poet")}} {
		p.Tokens, p.BlockTokens = make([]uint32, 8), 4
		if got := h.Append(nil, &p); len(got) > 0 {
			t.Errorf("%+v has names", p)
		}
	}
}

// BenchmarkAppend names the blocks of 128k tokens.
func BenchmarkAppend(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	tokens := make([]uint32, 128<<10)
	for i := range tokens {
		tokens[i] = random.Uint32N(150_000)
	}
	for _, name := range names[1:] {
		for _, block := range []int{16, 64} {
			b.Run(fmt.Sprintf("%s/block=%d", name, block), func(b *testing.B) {
				a, err := Parse(name, "0")
				if err != nil {
					b.Fatal(err)
				}
				h, p := New(a), Prompt{Tokens: tokens, BlockTokens: block}
				var dst []uint64
				b.ReportAllocs()
				least := time.Duration(math.MaxInt64) // of one operation: on a busy machine it is interrupted least
				for b.Loop() {
					began := time.Now()
					dst = h.Append(dst[:0], &p)
					least = min(least, time.Since(began))
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(dst)), "ns/block")
				b.ReportMetric(float64(least.Nanoseconds()), "least-ns")
			})
		}
	}
}

// The names of blocks of one to four tokens: CPython writes tuples of up to three elements in another way than longer ones.
func TestShortBlocks(t *testing.T) {
	a, err := Parse("sha256", "")
	if err != nil {
		t.Fatal(err)
	}
	// int.from_bytes(sha256(pickle.dumps((sha256(pickle.dumps("vllm-none-hash", protocol=5)).digest(), tokens, None), protocol=5)).digest()[-8:], "big")
	for _, test := range []struct {
		tokens []uint32
		want   uint64
	}{
		{[]uint32{1}, 0x8f11ed7ff290cbf0},
		{[]uint32{1, 300}, 0xe9cbbf84aab43bdd},
		{[]uint32{1, 300, 70000}, 0xd04da9db4092be1e},
		{[]uint32{1, 300, 70000, 5}, 0x5c44114bc531a962},
	} {
		if got := New(a).Append(nil, &Prompt{Tokens: test.tokens, BlockTokens: len(test.tokens)}); len(got) != 1 || got[0] != test.want {
			t.Errorf("%d: %#x, want %#x", test.tokens, got, test.want)
		}
	}
}

// The state that the standard library marshals is used, and gives the same digests as sha256.Sum256; so do messages of any size.
func TestSHA256(t *testing.T) {
	if !marshals {
		t.Error("this version of Go does not marshal the state of SHA-256 as before: hashing is slower")
	}
	s := newScratch()
	b := make([]byte, 0, 2*typical)
	for n := range 700 {
		b = append(b, byte(n*7))
		if got, want := s.sha256(b), sha256.Sum256(b); !bytes.Equal(got, want[:]) {
			t.Fatalf("%d bytes: %x, want %x", n+1, got, want)
		}
	}
}
