package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// unigram is SentencePiece's Unigram model: of all ways to divide a word into tokens, the one whose scores have the largest sum.
type unigram struct {
	tokens *trie
	texts  *vocabulary // the same tokens
	whole  *vocabulary // words that are one token
	scores []float64   // by id

	unknown      uint32 // id of characters that are no token
	unknownScore float64
	fallback     [256]uint32 // ids of bytes for such characters, or none
}

// unknownPenalty is by how much the score of an unknown character is below the least one of the vocabulary, in the reference.
const unknownPenalty = 10

// fileUnigram is the model in the file.
type fileUnigram struct {
	UnkID        *int        `json:"unk_id"`
	Vocab        []filePiece `json:"vocab"`
	ByteFallback bool        `json:"byte_fallback"`
}

// filePiece is a token with its score, in a list of two.
type filePiece struct {
	text  string
	score float64
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *filePiece) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&p.text, &p.score})
}

// newUnigram makes a model, and returns its vocabulary too.
func newUnigram(f *fileUnigram) (*unigram, map[string]uint32, error) {
	switch {
	case len(f.Vocab) == 0:
		return nil, nil, errors.New("vocab is empty")
	case len(f.Vocab) > maxIDs:
		return nil, nil, fmt.Errorf("vocab has %d tokens, at most %d are supported", len(f.Vocab), maxIDs)
	case f.UnkID == nil:
		return nil, nil, errors.New("unk_id is missing: characters that are no token would have no id")
	case *f.UnkID < 0 || *f.UnkID >= len(f.Vocab):
		return nil, nil, fmt.Errorf("unk_id is %d, and vocab has %d tokens", *f.UnkID, len(f.Vocab))
	}
	ids, bytes, least := make(map[string]uint32, len(f.Vocab)), 0, math.Inf(1)
	for i, p := range f.Vocab {
		if _, twice := ids[p.text]; twice {
			return nil, nil, fmt.Errorf("vocab[%d]: %q is there twice", i, p.text)
		}
		ids[p.text] = uint32(i)
		bytes += len(p.text)
		least = min(least, p.score)
	}
	if bytes >= maxNodes {
		return nil, nil, fmt.Errorf("vocab has %d bytes of text, less than %d are supported", bytes, maxNodes)
	}
	m := &unigram{tokens: newTrie(), texts: newVocabulary(len(f.Vocab)), whole: newVocabulary(len(f.Vocab)),
		scores: make([]float64, len(f.Vocab)), unknown: uint32(*f.UnkID), unknownScore: least - unknownPenalty}
	for i, p := range f.Vocab {
		m.scores[i] = p.score
		if p.text != "" {
			m.tokens.add(p.text, uint32(i))
			m.texts.add([]byte(p.text), uint32(i))
		}
	}
	for b := range m.fallback {
		m.fallback[b] = none
		if id, ok := ids[fmt.Sprintf("<0x%02X>", b)]; ok && f.ByteFallback {
			m.fallback[b] = id
		}
	}
	var s symbols
	var found []uint32
	for i, p := range f.Vocab {
		if p.text == "" {
			continue
		}
		if found = m.append(found[:0], []byte(p.text), &s); len(found) == 1 && found[0] == uint32(i) {
			m.whole.add([]byte(p.text), uint32(i))
		}
	}
	return m, ids, nil
}

func (m *unigram) known(word []byte, h uint64) (id uint32, ok bool) { return m.whole.find(word, h) }

// place is the best way to divide a word up to one of its bytes.
type place struct {
	score float64
	start int32  // where the last token begins, -1 if no way leads here
	id    uint32 // of the last token
}

// append appends the ids of a word.
func (m *unigram) append(dst []uint32, word []byte, s *symbols) []uint32 {
	places := s.places[:0]
	places = append(places, place{})
	for range word {
		places = append(places, place{start: -1})
	}
	s.places = places
	for at := 0; at < len(word); {
		_, size := utf8.DecodeRune(word[at:])
		so, single := places[at].score, false
		node := int32(0)
		for end := at; end < len(word); {
			if node = m.tokens.step(node, word[end]); node == 0 {
				break
			}
			end++
			id := m.tokens.values[node]
			if id == none {
				continue
			}
			if p, score := &places[end], m.scores[id]+so; p.start < 0 || score > p.score {
				*p = place{score, int32(at), id}
			}
			single = single || end == at+size
		}
		if !single {
			if p, score := &places[at+size], m.unknownScore+so; p.start < 0 || score > p.score {
				*p = place{score, int32(at), m.unknown}
			}
		}
		at += size
	}
	return m.follow(dst, word, s)
}

// follow appends the tokens on the best way. Unknown characters in sequence are one text, which is a token only if the vocabulary has it.
func (m *unigram) follow(dst []uint32, word []byte, s *symbols) []uint32 {
	s.next = s.next[:0] // the ends of the tokens, last one first
	for end := int32(len(word)); end > 0; end = s.places[end].start {
		s.next = append(s.next, end)
	}
	start := int32(0)
	for i := len(s.next) - 1; i >= 0; i-- {
		end := s.next[i]
		if s.places[end].id != m.unknown {
			dst, start = append(dst, s.places[end].id), end
			continue
		}
		for i > 0 && s.places[s.next[i-1]].id == m.unknown {
			i--
			end = s.next[i]
		}
		dst, start = m.appendUnknown(dst, word[start:end]), end
	}
	return dst
}

func (m *unigram) appendUnknown(dst []uint32, text []byte) []uint32 {
	if id, ok := m.texts.find(text, hash(text)); ok {
		return append(dst, id)
	}
	before := len(dst)
	for _, b := range text {
		if m.fallback[b] == none {
			return append(dst[:before], m.unknown)
		}
		dst = append(dst, m.fallback[b])
	}
	return dst
}
