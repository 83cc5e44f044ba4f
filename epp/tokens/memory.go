package tokens

import (
	"bytes"
	"sync"
	"unicode/utf8"
)

// Texts between added tokens are remembered with their ids, so that the next turn of a conversation only costs what is new in it. Their ids
// depend on nothing else. Long ones are cut, at places where the pre-tokenizer always splits.
const (
	// memoryBytes is how much memory a tokenizer takes at most for what it remembers.
	memoryBytes = 64 << 20
	// shortest is the shortest text that is remembered: words of shorter ones are cached anyway (bytes).
	shortest = 64
	// cutAfter is how long a part of a text is at least (bytes).
	cutAfter = 1 << 10
	// shards are locked on their own.
	shards = 16
)

// memory remembers texts with their ids. There are two generations: the older one is dropped as a whole when the younger one is full.
type memory [shards]struct {
	mu         sync.Mutex
	young, old map[uint64]*remembered
	bytes      int // of the young
}

// remembered is a text. It is not changed.
type remembered struct {
	text []byte
	ids  []uint32
}

// overhead is about what an entry takes beside its text and ids (bytes).
const overhead = 128

// find returns the ids of a text whose hash is h, nil if it is not remembered.
func (m *memory) find(text []byte, h uint64) []uint32 {
	s := &m[h%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.young[h]
	if r == nil {
		if r = s.old[h]; r != nil && bytes.Equal(r.text, text) {
			m.keep(h, r)
		}
	}
	if r == nil || !bytes.Equal(r.text, text) {
		return nil
	}
	return r.ids
}

// add remembers a text. It copies both.
func (m *memory) add(text []byte, h uint64, ids []uint32) {
	r := &remembered{bytes.Clone(text), append([]uint32(nil), ids...)}
	s := &m[h%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	m.keep(h, r)
}

// keep puts a text into the young generation of its shard, which is locked.
func (m *memory) keep(h uint64, r *remembered) {
	s := &m[h%shards]
	size := len(r.text) + 4*len(r.ids) + overhead
	if s.young == nil || s.bytes+size > memoryBytes/shards/2 {
		s.old, s.young, s.bytes = s.young, make(map[uint64]*remembered), 0
	}
	if s.young[h] == nil {
		s.bytes += size
	}
	s.young[h] = r
}

// cuts returns the characters before which a text can be cut after a line's end.
func (t *Tokenizer) cuts() (cut [utf8.RuneSelf]bool) {
	for _, n := range t.normalizers {
		if _, ok := n.(form); !ok {
			return cut
		}
	}
	if len(t.normal.tokens) > 0 {
		return cut // they may reach over the place
	}
	for c := byte('!'); c < utf8.RuneSelf; c++ {
		for i := range t.splits {
			s := &t.splits[i]
			if s.prefix || s.space != nil || s.keep > removed || s.invert {
				return [utf8.RuneSelf]bool{}
			}
			if s.pattern == nil {
				continue
			}
			apart, begins := s.pattern.Between('\n', c)
			if !apart || begins {
				cut[c] = apart
				break
			}
		}
	}
	return cut
}

// segment handles text between added tokens.
func (e *encoder) segment(text []byte) {
	for len(text) > 0 {
		n := e.part(text)
		e.recall(text[:n])
		e.first = false
		text = text[n:]
	}
}

// part returns how long the first part of a text is.
func (e *encoder) part(text []byte) int {
	for n := cutAfter; n < len(text); n++ {
		line := bytes.IndexByte(text[n:], '\n')
		if line < 0 {
			break
		}
		n += line
		if n+1 < len(text) && text[n+1] < utf8.RuneSelf && e.cut[text[n+1]] {
			return n + 1
		}
	}
	return len(text)
}

// recall appends the ids of a part of a text.
func (e *encoder) recall(text []byte) {
	if len(text) < shortest || len(text) > memoryBytes/shards/8 || e.first && e.beginning {
		e.normalize(text)
		return
	}
	h := hash(text)
	if ids := e.memory.find(text, h); ids != nil {
		e.ids = append(e.ids, ids...)
		return
	}
	before := len(e.ids)
	e.normalize(text)
	e.memory.add(text, h, e.ids[before:])
}
