package tokens

import (
	"bytes"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/epp/tokens/chars"
)

// added is one of a file's added tokens: a text that is found before anything else is done, such as <|im_start|>.
type added struct {
	id         uint32
	singleWord bool // only where no letter or digit is next to it
	lstrip     bool // with the spaces before it
	rstrip     bool // with the spaces after it
	text       []byte
	separation atomic.Int32 // a separation
}

// finder finds added tokens: of those that begin at the leftmost place, the longest.
type finder struct {
	tokens []*added
	nodes  []trieNode
	first  [256]bool // bytes that tokens begin with
	only   int       // the byte that all begin with, -1 if there are several
	word   chars.Set // what counts as part of a word beside a token of a single word
}

// trieNode is a place in the texts of the tokens.
type trieNode struct {
	token    int32 // the one that ends here, -1 if there is none
	labels   []byte
	children []int32
}

func newFinder() *finder {
	return &finder{nodes: []trieNode{{token: -1}}, only: -1, word: chars.RustWord()}
}

// add adds a token with its text. Of tokens with the same text the first one counts.
func (f *finder) add(text []byte, t *added) {
	if len(text) == 0 {
		return
	}
	switch first := text[0]; {
	case len(f.tokens) == 0:
		f.only = int(first)
	case f.only != int(first):
		f.only = -1
	}
	f.first[text[0]] = true
	at := int32(0)
	for _, b := range text {
		i := bytes.IndexByte(f.nodes[at].labels, b)
		if i >= 0 {
			at = f.nodes[at].children[i]
			continue
		}
		f.nodes[at].labels = append(f.nodes[at].labels, b)
		f.nodes[at].children = append(f.nodes[at].children, int32(len(f.nodes)))
		at = int32(len(f.nodes))
		f.nodes = append(f.nodes, trieNode{token: -1})
	}
	if f.nodes[at].token < 0 {
		f.nodes[at].token = int32(len(f.tokens))
		t.text = bytes.Clone(text)
		f.tokens = append(f.tokens, t)
	}
}

// find returns the first token at or after from, and where its text begins and ends.
func (f *finder) find(text []byte, from int) (token *added, start, end int) {
	if len(f.tokens) == 0 {
		return nil, 0, 0
	}
	for start = from; start < len(text); start++ {
		if f.only >= 0 {
			i := bytes.IndexByte(text[start:], byte(f.only))
			if i < 0 {
				break
			}
			start += i
		} else if !f.first[text[start]] {
			continue
		}
		if t, end := f.longest(text, start); t >= 0 {
			return f.tokens[t], start, end
		}
	}
	return nil, 0, 0
}

// longest returns the longest token that begins at start, -1 if there is none, and where it ends.
func (f *finder) longest(text []byte, start int) (token int32, end int) {
	token = -1
	at := int32(0)
	for i := start; i < len(text); i++ {
		node := &f.nodes[at]
		child := 0
		if len(node.labels) != 1 { // most have one, which is compared faster than it is looked for
			child = bytes.IndexByte(node.labels, text[i])
		} else if node.labels[0] != text[i] {
			break
		}
		if child < 0 {
			break
		}
		at = node.children[child]
		if t := f.nodes[at].token; t >= 0 {
			token, end = t, i+1
		}
	}
	return token, end
}

// each calls between for each text that is no added token, and id for each that is one, in their order.
func (f *finder) each(text []byte, between func([]byte), id func(uint32)) {
	done := 0
	for from := 0; ; {
		t, start, end := f.find(text, from)
		if t == nil {
			break
		}
		from = end
		if t.singleWord && (f.endsWithWord(text[:start]) || f.startsWithWord(text[end:])) {
			continue
		}
		if t.lstrip {
			start = max(len(trimRight(text[:start])), done)
		}
		if t.rstrip {
			end = len(text) - len(trimLeft(text[end:]))
		}
		if done < start {
			between(text[done:start])
		}
		id(t.id)
		done = end
	}
	if done < len(text) {
		between(text[done:])
	}
}

func (f *finder) endsWithWord(text []byte) bool {
	r, n := utf8.DecodeLastRune(text)
	return n > 0 && f.word.Contains(r)
}

func (f *finder) startsWithWord(text []byte) bool {
	r, n := utf8.DecodeRune(text)
	return n > 0 && f.word.Contains(r)
}

func trimRight(text []byte) []byte { return bytes.TrimRightFunc(text, unicode.IsSpace) }
func trimLeft(text []byte) []byte  { return bytes.TrimLeftFunc(text, unicode.IsSpace) }
