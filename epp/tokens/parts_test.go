package tokens

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// whole returns the ids of a text that is not cut into parts, and not remembered.
func whole(t *Tokenizer, text string) []uint32 {
	e := &encoder{Tokenizer: t, words: newWords(), first: true}
	t.raw.each([]byte(text), func(between []byte) { e.normalize(between); e.first = false }, e.id)
	return e.ids
}

// TestSeparator: a text is cut before a token only where the ids stay the same.
func TestSeparator(t *testing.T) {
	for _, c := range []struct {
		name, tokens string // of the file
		text, want   string
	}{
		{"the first that comes again", `{"content":"<s>"},{"content":"<u>"}`, "<s><u>a<u>b", "<u>"},
		{"none comes again", `{"content":"<s>"},{"content":"<u>"}`, "<s><u>a", ""},
		{"one is longer", `{"content":"<u>"},{"content":"<u><u>"}`, "<u>a<u>b", ""},
		{"one ends with its beginning", `{"content":"<u>"},{"content":"<s><"}`, "<u>a<u>b", ""},
		{"one contains it", `{"content":"<u>"},{"content":"[<u>]"}`, "<u>a<u>b", ""},
		{"it ends with its own beginning", `{"content":"<u<"}`, "<u<a<u<", ""},
		{"it begins with a space", `{"content":" u"}`, " ua u", ""},
		{"it begins with a letter", `{"content":"u"}`, "uaub", ""},
		{"it takes spaces", `{"content":"<u>","lstrip":true}`, "<u>a<u>b", ""},
		{"it is a word", `{"content":"<u>","single_word":true}`, "<u>a<u>b", ""},
		{"it comes late", `{"content":"<u>"}`, strings.Repeat("a", beginning) + "<u>a<u>b", ""},
	} {
		tokens, id := "", 3
		for _, token := range strings.Split(c.tokens, "},{") {
			tokens += fmt.Sprintf(`,{"id":%d,%s}`, id, strings.Trim(token, "{}"))
			id++
		}
		tokenizer, err := Read([]byte(`{"added_tokens":[` + tokens[1:] + `],"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := string(tokenizer.raw.separator([]byte(c.text))); got != c.want {
			t.Errorf("%s: cut before %q, want %q", c.name, got, c.want)
		}
	}
}

// TestParts: texts of chats have the same ids whether they are cut and remembered or not.
func TestParts(t *testing.T) {
	var files []string
	small, err := filepath.Glob("testdata/small/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []string{"qwen3", "llama3_1", "deepseek_v3", "gemma3"} {
		path := filepath.Join(tools, "vocabularies", family, "tokenizer.json")
		if _, err := os.Stat(path); err == nil { // the small ones have all kinds of added tokens too
			files = append(files, path)
		}
	}
	cut := 0
	for _, path := range append(files, small...) {
		tokenizer := readFile(t, path)
		random := rand.New(rand.NewPCG(1, 2))
		pieces := []string{"a", " b", "\n", "  ", "\n\n\n", "word", "é", "\t", "<", "<|", "<start", "The quick brown fox jumps over the lazy dog, again and again and again. "}
		for range 8 {
			if n := len(tokenizer.raw.tokens); n > 0 {
				pieces = append(pieces, string(tokenizer.raw.tokens[random.IntN(n)].text))
			}
		}
		for range 60 {
			var text strings.Builder
			for range 1 + random.IntN(80) {
				text.WriteString(pieces[random.IntN(len(pieces))])
			}
			if tokenizer.raw.separator([]byte(text.String())) != nil {
				cut++
			}
			want := whole(tokenizer, text.String())
			for range 2 { // the second time it is remembered
				if got := tokenizer.Append(nil, []byte(text.String()), false); !slices.Equal(got, want) {
					t.Fatalf("%s: %q: got %d, want %d", path, text.String(), got, want)
				}
			}
		}
	}
	if cut == 0 {
		t.Error("no text was cut")
	}
}
