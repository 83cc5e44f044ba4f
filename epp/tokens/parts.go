package tokens

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// The text of a chat has the same added token at the beginning of each message, such as <|im_start|>. It is cut there, and each part is
// remembered as a whole, with all added tokens in it: Gemma's lines, for instance, end with one each. That has the same ids as the whole text if
// no other added token can overlap the one that it is cut at.
const (
	// beginning is where in a text the token is looked for (bytes), and candidates is how many tokens are considered.
	beginning  = 512
	candidates = 4
	// longestPart is the longest part that is remembered as a whole: of longer ones the texts between added tokens are, so that a
	// change in one does not cost all of it (bytes).
	longestPart = 16 << 10
)

// separation says whether a text can be cut before an added token. The zero value says that it is not known yet.
type separation int32

const (
	unseparated separation = iota + 1
	separates
)

// separator returns the text of an added token before which a text can be cut, nil if there is none that is worth it.
func (f *finder) separator(text []byte) []byte {
	window := text[:min(len(text), beginning)]
	for from, n := 0, 0; n < candidates; n++ {
		t, start, end := f.find(window, from)
		if t == nil {
			break
		}
		if token := window[start:end]; f.separates(t, token) && bytes.Contains(text[end:], token) {
			return token
		}
		from = end
	}
	return nil
}

// separates reports whether a text can be cut before a token, and remembers it.
func (f *finder) separates(t *added, text []byte) bool {
	known := separation(t.separation.Load())
	if known == 0 {
		known = unseparated
		if f.standsAlone(t, text) {
			known = separates
		}
		t.separation.Store(int32(known))
	}
	return known == separates
}

// standsAlone reports whether a token is found wherever its text is, and whether the text before it has the same ids without it.
func (f *finder) standsAlone(t *added, text []byte) bool {
	if t.singleWord || t.lstrip || t.rstrip {
		return false
	}
	// Tokens before it look at its first character.
	if r, _ := utf8.DecodeRune(text); unicode.IsSpace(r) || f.word.Contains(r) {
		return false
	}
	for i := range f.tokens {
		other := f.tokens[i].text
		if len(other) > len(text) && bytes.HasPrefix(other, text) {
			return false
		}
		for at := 1; at < len(other); at++ { // an end of the other one is its beginning, or contains it
			if other[at] == text[0] && (bytes.HasPrefix(other[at:], text) || bytes.HasPrefix(text, other[at:])) {
				return false
			}
		}
	}
	return true
}

// parts handles a text that is cut before a token.
func (e *encoder) parts(text, token []byte) {
	next := bytes.Index(text, token)
	e.raw.each(text[:next], e.segment, e.id)
	for text = text[next:]; len(text) > 0; text = text[next:] {
		if next = bytes.Index(text[len(token):], token); next < 0 {
			next = len(text)
		} else {
			next += len(token)
		}
		e.recallPart(text[:next])
	}
}

// recallPart appends the ids of a part. No text between added tokens begins with one, so both can be remembered in one memory.
func (e *encoder) recallPart(text []byte) {
	if len(text) < shortest || len(text) > longestPart {
		e.raw.each(text, e.segment, e.id)
		return
	}
	h := hash(text)
	if ids := e.memory.find(text, h); ids != nil {
		e.ids, e.first = append(e.ids, ids...), false
		return
	}
	before := len(e.ids)
	e.raw.each(text, e.segment, e.id)
	e.memory.add(text, h, e.ids[before:])
}
