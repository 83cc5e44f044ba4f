package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// model turns words into ids.
type model interface {
	// append appends the ids of a word, which is not empty.
	append(dst []uint32, word []byte, s *symbols) []uint32
	// known returns the id of a word that is one token, whose hash is h. It saves time; append returns the same.
	known(word []byte, h uint64) (id uint32, ok bool)
}

// readModel reads the model, its vocabulary, and where words can be cut.
func readModel(data []byte, byteLevel bool) (model, map[string]uint32, *boundaries, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return nil, nil, nil, err
	}
	switch kind.Type {
	case "BPE", "":
		var f fileModel
		if err := json.Unmarshal(data, &f); err != nil {
			return nil, nil, nil, err
		}
		m, err := newBPE(&f, byteLevel)
		if err != nil {
			return nil, nil, nil, err
		}
		return m, f.Vocab, newBoundaries(&f, m), nil
	case "Unigram":
		var f fileUnigram
		if err := json.Unmarshal(data, &f); err != nil {
			return nil, nil, nil, err
		}
		if byteLevel {
			return nil, nil, nil, errors.New("the model Unigram is not supported with a ByteLevel pre-tokenizer")
		}
		m, vocab, err := newUnigram(&f)
		return m, vocab, nil, err
	case "WordPiece":
		var f fileWordPiece
		if err := json.Unmarshal(data, &f); err != nil {
			return nil, nil, nil, err
		}
		if byteLevel {
			return nil, nil, nil, errors.New("the model WordPiece is not supported with a ByteLevel pre-tokenizer")
		}
		m, err := newWordPiece(&f)
		return m, f.Vocab, nil, err
	}
	return nil, nil, nil, fmt.Errorf("type %q is not supported", kind.Type)
}

func newBPE(f *fileModel, byteLevel bool) (*bpe, error) {
	switch {
	case f.Dropout != nil && *f.Dropout != 0:
		return nil, errors.New("dropout is not supported: ids would be random")
	case f.ContinuingSubwordPrefix != "":
		return nil, errors.New("continuing_subword_prefix is not supported")
	case f.EndOfWordSuffix != "":
		return nil, errors.New("end_of_word_suffix is not supported")
	case f.ByteFallback && byteLevel:
		return nil, errors.New("byte_fallback is not supported with a ByteLevel pre-tokenizer")
	case len(f.Vocab) == 0:
		return nil, errors.New("vocab is empty")
	case len(f.Vocab) > maxIDs:
		return nil, fmt.Errorf("vocab has %d tokens, at most %d are supported", len(f.Vocab), maxIDs)
	case len(f.Merges) > maxMerges:
		return nil, fmt.Errorf("there are %d merges, at most %d are supported", len(f.Merges), maxMerges)
	}
	m := &bpe{bytes: byteLevel, unknown: none, fuse: f.FuseUnk, merges: newMerges(len(f.Merges)), runeIDs: map[rune]uint32{}}
	if f.UnkToken != nil {
		id, ok := f.Vocab[*f.UnkToken]
		if !ok {
			return nil, fmt.Errorf("unk_token %q is not in vocab", *f.UnkToken)
		}
		m.unknown = id
	}
	for b := range 256 {
		m.byteIDs[b], m.fallback[b] = none, none
		if id, ok := f.Vocab[fmt.Sprintf("<0x%02X>", b)]; ok && f.ByteFallback {
			m.fallback[b] = id
		}
		if id, ok := f.Vocab[string(byteRunes[b])]; ok {
			m.byteIDs[b] = id
		}
	}
	for text, id := range f.Vocab {
		if id >= maxIDs {
			return nil, fmt.Errorf("vocab: %q has the id %d, ids must be below %d", text, id, maxIDs)
		}
		if r, size := utf8.DecodeRuneInString(text); size == len(text) && size > 0 && !byteLevel {
			m.runeIDs[r] = id
		}
	}
	for b := range m.lowIDs {
		m.lowIDs[b] = none
		if id, ok := m.runeIDs[rune(b)]; ok {
			m.lowIDs[b] = id
		}
	}
	for i, merge := range f.Merges {
		left, ok := f.Vocab[merge.left]
		right, ok2 := f.Vocab[merge.right]
		merged, ok3 := f.Vocab[merge.left+merge.right]
		if !ok || !ok2 || !ok3 {
			return nil, fmt.Errorf("merges[%d]: %q and %q, or what they are merged to, are not in vocab", i, merge.left, merge.right)
		}
		m.merges.add(left, right, merged)
	}
	m.rankBytes()
	m.findWhole(f)
	return m, nil
}

// rankBytes notes the ranks of pairs of bytes, of which all words consist at first.
func (m *bpe) rankBytes() {
	if !m.bytes || slices.Contains(m.byteIDs[:], none) {
		return
	}
	m.byteRank = make([]uint32, 0, 1<<16)
	for _, left := range m.byteIDs {
		for _, right := range m.byteIDs {
			m.byteRank = append(m.byteRank, m.merges.rank(left, right))
		}
	}
}

// findWhole notes the words that are one token: all of the vocabulary with ignore_merges, otherwise those that merging leads to.
func (m *bpe) findWhole(f *fileModel) {
	m.whole = newVocabulary(len(f.Vocab))
	var s symbols
	var text []byte
	var ids []uint32
	for token, id := range f.Vocab {
		var ok bool
		if text, ok = m.text(text[:0], token); !ok || len(text) == 0 {
			continue
		}
		if !f.IgnoreMerges {
			if ids = m.append(ids[:0], text, &s); len(ids) != 1 || ids[0] != id {
				continue
			}
		}
		m.whole.add(text, id)
	}
}

// text appends the text that a token of the vocabulary stands for; false if no text does.
func (m *bpe) text(dst []byte, token string) ([]byte, bool) {
	if !m.bytes {
		return append(dst, token...), true
	}
	for _, r := range token {
		if int(r) >= len(runeBytes) || runeBytes[r] < 0 {
			return dst, false
		}
		dst = append(dst, byte(runeBytes[r]))
	}
	return dst, true
}

func (m *bpe) known(word []byte, h uint64) (id uint32, ok bool) { return m.whole.find(word, h) }

// byteRunes are the characters by which the vocabularies of byte-level models write bytes: printable ones of Latin-1 by themselves, the
// others by those from U+0100 on. runeBytes is the way back, -1 for other characters.
var (
	byteRunes = func() (runes [256]rune) {
		next := rune(0x100)
		for b := range runes {
			if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xFF && b != 0xAD {
				runes[b] = rune(b)
				continue
			}
			runes[b] = next
			next++
		}
		return runes
	}()
	runeBytes = func() (bytes [0x180]int16) {
		for i := range bytes {
			bytes[i] = -1
		}
		for b, r := range byteRunes {
			bytes[r] = int16(b)
		}
		return bytes
	}()
)
