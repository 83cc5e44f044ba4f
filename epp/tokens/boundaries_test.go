package tokens

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// boundaryFile returns a file of byte-pair encoding of code points, with the characters of a string and with merges.
func boundaryFile(t *testing.T, characters string, merges []string, more object) []byte {
	t.Helper()
	vocab := map[string]int{"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2}
	for _, r := range characters {
		vocab[string(r)] = len(vocab)
	}
	for _, m := range merges {
		if made := strings.ReplaceAll(m, " ", ""); vocab[made] == 0 {
			vocab[made] = len(vocab)
		}
	}
	model := map[string]any{"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges}
	for name, value := range more {
		model[name] = value
	}
	data, err := json.Marshal(map[string]any{"normalizer": map[string]any{"type": "Replace", "pattern": map[string]string{"String": " "}, "content": "▁"}, "model": model})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestBoundaries compares the ids of texts that are cut at boundaries with those of whole texts: with merges across them, characters that are no
// tokens and of which some have tokens of their bytes, and more cuts than are made at once.
func TestBoundaries(t *testing.T) {
	data := boundaryFile(t, "ab▁>1(ü", []string{"a b", "▁ a", "▁a b", "▁ ▁", "> ▁", ">▁ (", "b (", "ü b", "a ü", "( ▁"}, nil)
	at, one := mustRead(t, data), mustRead(t, data)
	if at.boundaries == nil {
		t.Fatal("there are no boundaries")
	}
	one.boundaries = nil
	for pair, want := range map[string]bool{"b▁": true, "▁a": false, ">▁": false, "▁>": true, "11": true, "b(": false, "(b": true, "üb": false, "ü▁": true, "aü": false, "1ü": false, "1x": false, "x1": false, "éa": true} {
		r := []rune(pair)
		if got := at.boundaries.cut[classOf(r[0])][classOf(r[1])]; got != want {
			t.Errorf("between the characters of %q: cut %v, want %v", pair, got, want)
		}
	}
	mustBeOfWhole(t, at, one)
	dropping := boundaryFile(t, "ab▁", []string{"a b", "▁ a"}, object{"unk_token": json.RawMessage("null"), "byte_fallback": json.RawMessage("false")})
	at, one = mustRead(t, dropping), mustRead(t, dropping)
	one.boundaries = nil
	mustBeOfWhole(t, at, one)
}

// mustBeOfWhole compares the ids of two tokenizers on random texts.
func mustBeOfWhole(t *testing.T, at, one *Tokenizer) {
	t.Helper()
	random := rand.New(rand.NewPCG(11, 12))
	letters := []rune("ab >1(üxé中")
	for i := range 4000 {
		var b strings.Builder
		for range random.IntN(12) + i%2*random.IntN(400) {
			b.WriteRune(letters[random.IntN(len(letters))])
		}
		text := b.String()
		if got, want := at.Append(nil, []byte(text), false), one.Append(nil, []byte(text), false); !slices.Equal(got, want) {
			t.Fatalf("%q: in parts %d, whole %d", text, got, want)
		}
	}
}

// TestNoBoundaries: models whose words cannot be cut, or need not be.
func TestNoBoundaries(t *testing.T) {
	bytes, err := os.ReadFile("testdata/small/bytelevel.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"ignore_merges":                     boundaryFile(t, "ab▁", []string{"a b"}, object{"ignore_merges": json.RawMessage("true")}),
		"tokens of bytes are merged":        boundaryFile(t, "ab▁", []string{"<0xC3> <0xA9>"}, nil),
		"unknown characters are merged":     boundaryFile(t, "ab▁", []string{"<unk> a"}, nil),
		"everything is merged":              boundaryFile(t, "a", []string{"a a"}, object{"vocab": json.RawMessage(`{"<unk>":0,"中":1,"文":2,"中文":3}`), "merges": json.RawMessage(`["中 文"]`)}),
		"bytes, with steps that make words": bytes,
	} {
		if at := mustRead(t, data); at.boundaries != nil {
			t.Errorf("%s: there are boundaries", name)
		}
	}
}
