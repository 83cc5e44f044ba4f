package sim

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
			tokens := tokenizer{v}.split(text)
			var joined []byte
			for _, token := range tokens {
				if token < firstByte || token >= v {
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
			for _, token := range (tokenizer{v}).split(text) {
				joined = appendToken(joined, token)
			}
			if string(joined) != text {
				t.Fatalf("vocabulary %d: %q came back as %q", v, text, joined)
			}
		}
	})
}

// TestSplitTakesTheLongestPiece is the documented table of ids.
func TestSplitTakesTheLongestPiece(t *testing.T) {
	for _, c := range []struct {
		vocabulary int
		text       string
		want       []int
	}{
		{firstPiece, " ab", []int{firstByte + ' ', firstByte + 'a', firstByte + 'b'}},
		{128256, " ", []int{firstByte + ' '}},
		{128256, " a", []int{264}},
		{128256, "zz", []int{965}},
		{128256, " zz", []int{1641}},
		{128256, "aaa", []int{1642}},
		{128256, "zzz", []int{19217}},
		{128256, " zzz", []int{36793}},
		{128256, "abcd", []int{1642 + 0*676 + 1*26 + 2, firstByte + 'd'}},
		{1024, " abc", []int{967, firstByte + 'c'}},
	} {
		if got := (tokenizer{c.vocabulary}).split(c.text); !slices.Equal(got, c.want) {
			t.Errorf("vocabulary %d: %q is %v, want %v", c.vocabulary, c.text, got, c.want)
		}
	}
}

// TestEveryTokenHasText: whatever is generated shows, and tokens past the table repeat it.
func TestEveryTokenHasText(t *testing.T) {
	for token := firstByte; token < 128256; token++ {
		if len(appendToken(nil, token)) == 0 {
			t.Fatalf("token %d has no bytes", token)
		}
	}
	for token := range firstByte {
		if len(appendToken(nil, token)) != 0 {
			t.Errorf("special token %d has bytes", token)
		}
	}
}

func TestDetokenizerWaitsForWholeCharacters(t *testing.T) {
	var d detokenizer
	var got []string
	for _, b := range []byte("é😀x") {
		got = append(got, d.push(firstByte+int(b)))
	}
	if want := []string{"", "é", "", "", "", "😀", "x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	d.push(firstByte + 0xF0)
	if got := d.flush(); got != string(utf8.RuneError) {
		t.Errorf("the rest is %q", got)
	}
	if got := d.push(firstByte + 0xFF); got != string(utf8.RuneError) {
		t.Errorf("a byte that begins nothing is %q", got)
	}
}

func TestStopStrings(t *testing.T) {
	feed := func(s *sampling, text string) (out []string, stop string) {
		var ts textStop
		for i := range len(text) {
			piece, found := ts.push(firstByte+int(text[i]), i == len(text)-1, true, s)
			out = append(out, piece)
			if found != "" {
				return out, found
			}
		}
		return out, ""
	}
	for _, c := range []struct {
		name, text, want, stop string
		sampling               sampling
	}{
		{"none", "hello", "hello", "", sampling{}},
		{"cut before", "hello world", "hello", " wor", sampling{stop: []string{" wor"}}},
		{"kept", "hello world", "hello wor", " wor", sampling{stop: []string{" wor"}, includeStop: true}},
		{"begins but does not end", "hello wo", "hello wo", "", sampling{stop: []string{" world"}}},
		{"first of two", "abc", "a", "b", sampling{stop: []string{"x", "b"}}},
		{"held back inside of a character", "aé", "aé", "", sampling{stop: []string{"zz"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pieces, stop := feed(&c.sampling, c.text)
			if got := strings.Join(pieces, ""); got != c.want || stop != c.stop {
				t.Errorf("got %q and stop %q, want %q and %q", got, stop, c.want, c.stop)
			}
			if slices.ContainsFunc(pieces, func(p string) bool { return !utf8.ValidString(p) }) {
				t.Errorf("pieces %q are not whole characters", pieces)
			}
		})
	}
}
