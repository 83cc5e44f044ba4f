package model

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var vocabularies = []int{firstPiece, 1024, 20000, 128256}

var someTexts = []string{"", " ", "the cache of a block", "The  Cache, of\na block.", "naïve 日本語 😀", "a b c", "\x00\xff", "zzzzzzzz", " the the"}

func TestSplitRoundTrips(t *testing.T) {
	for _, v := range vocabularies {
		for _, text := range someTexts {
			tokens := Tokenizer{v}.Split(text)
			var joined []byte
			for _, token := range tokens {
				if token < FirstByte || token >= v {
					t.Errorf("vocabulary %d, %q: token %d", v, text, token)
				}
				joined = appendToken(joined, token)
			}
			if string(joined) != text {
				t.Errorf("vocabulary %d: %q came back as %q", v, text, joined)
			}
		}
	}
}

func FuzzSplitRoundTrips(f *testing.F) {
	for _, text := range someTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, v := range vocabularies {
			var joined []byte
			for _, token := range (Tokenizer{v}).Split(text) {
				joined = appendToken(joined, token)
			}
			if string(joined) != text {
				t.Fatalf("vocabulary %d: %q came back as %q", v, text, joined)
			}
		}
	})
}

// TestSplitTakesTheLongestPiece checks the documented table of ids.
func TestSplitTakesTheLongestPiece(t *testing.T) {
	for _, c := range []struct {
		vocabulary int
		text       string
		want       []int
	}{
		{firstPiece, " ab", []int{FirstByte + ' ', FirstByte + 'a', FirstByte + 'b'}},
		{128256, " ", []int{FirstByte + ' '}},
		{128256, " a", []int{264}},
		{128256, "zz", []int{965}},
		{128256, " zz", []int{1641}},
		{128256, "aaa", []int{1642}},
		{128256, "zzz", []int{19217}},
		{128256, " zzz", []int{36793}},
		{128256, "abcd", []int{1642 + 0*676 + 1*26 + 2, FirstByte + 'd'}},
		{1024, " abc", []int{967, FirstByte + 'c'}},
	} {
		if got := (Tokenizer{c.vocabulary}).Split(c.text); !slices.Equal(got, c.want) {
			t.Errorf("vocabulary %d: %q is %v, want %v", c.vocabulary, c.text, got, c.want)
		}
	}
}

// TestEveryTokenHasText: every token that is generated has text, and tokens past the table repeat it.
func TestEveryTokenHasText(t *testing.T) {
	for token := FirstByte; token < 128256; token++ {
		if len(appendToken(nil, token)) == 0 {
			t.Fatalf("token %d has no bytes", token)
		}
	}
	for token := range FirstByte {
		if len(appendToken(nil, token)) != 0 {
			t.Errorf("special token %d has bytes", token)
		}
	}
}

func TestDetokenizerWaitsForWholeCharacters(t *testing.T) {
	var d Detokenizer
	var got []string
	for _, b := range []byte("é😀x") {
		got = append(got, d.Push(FirstByte+int(b)))
	}
	if want := []string{"", "é", "", "", "", "😀", "x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	d.Push(FirstByte + 0xF0)
	if got := d.Flush(); got != string(utf8.RuneError) {
		t.Errorf("the rest is %q", got)
	}
	if got := d.Push(FirstByte + 0xFF); got != "" {
		t.Errorf("a byte that begins nothing is %q before it is clear that nothing follows", got)
	}
	if got := d.Push(FirstByte + 'x'); got != "\uFFFDx" {
		t.Errorf("a byte that begins nothing is %q", got)
	}
}

// The real engine was recorded to answer a prompt of bytes with their text, before what it generated (completions-ids).
func TestDetokenizerAfterAPrompt(t *testing.T) {
	for _, c := range []struct{ prompt, push, want string }{
		{"ab", "c", "c"},
		{"a\xf0\x9f", "c", "a\uFFFDc"},
		{"a\xf0\x9f", "\x98", ""},
		{"a😀", "c", "c"},
		{"", "c", "c"},
	} {
		var d Detokenizer
		var prompt []int
		for _, b := range []byte(c.prompt) {
			prompt = append(prompt, FirstByte+int(b))
		}
		d.Begin(prompt)
		if got := d.Push(FirstByte + int(c.push[0])); got != c.want {
			t.Errorf("%q after %q gives %q, want %q", c.push, c.prompt, got, c.want)
		}
	}
}

func BenchmarkSplit(b *testing.B) {
	text := strings.Repeat("the cache of a block is token and prefill to decode. ", 100)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for range b.N {
		Tokenizer{128256}.Split(text)
	}
}
