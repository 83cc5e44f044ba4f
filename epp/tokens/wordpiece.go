package tokens

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// wordPiece is the model of BERT: a word is divided into the longest token that it begins with, then the longest one that the rest begins
// with, and so on. If that fails, the whole word is unknown.
type wordPiece struct {
	begins    *trie // tokens at the beginning of a word
	continues *trie // tokens after it, without their prefix
	unknown   uint32
	longest   int // words of more characters are unknown
}

// fileWordPiece is the model in the file.
type fileWordPiece struct {
	UnkToken                string            `json:"unk_token"`
	ContinuingSubwordPrefix *string           `json:"continuing_subword_prefix"`
	MaxInputCharsPerWord    *int              `json:"max_input_chars_per_word"`
	Vocab                   map[string]uint32 `json:"vocab"`
}

func newWordPiece(f *fileWordPiece) (*wordPiece, error) {
	unknown, ok := f.Vocab[f.UnkToken]
	switch {
	case len(f.Vocab) == 0:
		return nil, errors.New("vocab is empty")
	case !ok:
		return nil, fmt.Errorf("unk_token %q is not in vocab", f.UnkToken)
	case f.ContinuingSubwordPrefix == nil:
		return nil, errors.New("continuing_subword_prefix is missing")
	case f.MaxInputCharsPerWord == nil || *f.MaxInputCharsPerWord < 0:
		return nil, errors.New("max_input_chars_per_word must be a number of characters")
	}
	bytes := 0
	for text := range f.Vocab {
		bytes += len(text)
	}
	if bytes >= maxNodes {
		return nil, fmt.Errorf("vocab has %d bytes of text, less than %d are supported", bytes, maxNodes)
	}
	m := &wordPiece{begins: newTrie(), continues: newTrie(), unknown: unknown, longest: *f.MaxInputCharsPerWord}
	for text, id := range f.Vocab {
		if id >= maxIDs {
			return nil, fmt.Errorf("vocab: %q has the id %d, ids must be below %d", text, id, maxIDs)
		}
		if text != "" {
			m.begins.add(text, id)
		}
		if rest, ok := strings.CutPrefix(text, *f.ContinuingSubwordPrefix); ok && rest != "" {
			m.continues.add(rest, id)
		}
	}
	return m, nil
}

// known knows no word: to find a word's first token is as fast.
func (m *wordPiece) known([]byte, uint64) (id uint32, ok bool) { return 0, false }

// append appends the ids of a word.
func (m *wordPiece) append(dst []uint32, word []byte, _ *symbols) []uint32 {
	if len(word) > m.longest && utf8.RuneCount(word) > m.longest {
		return append(dst, m.unknown)
	}
	before, tokens := len(dst), m.begins
	for len(word) > 0 {
		id, length := tokens.longest(word)
		if length == 0 {
			return append(dst[:before], m.unknown)
		}
		dst, word, tokens = append(dst, id), word[length:], m.continues
	}
	return dst
}
