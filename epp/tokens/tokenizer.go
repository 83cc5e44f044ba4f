package tokens

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/epp/tokens/chars"
)

// Tokenizer turns text into token ids. Its methods may be called from several goroutines at once. It remembers texts of up to 64 MiB in all, with
// their ids.
type Tokenizer struct {
	raw         *finder // added tokens that are found in the text before it is normalized
	normalizers normalizers
	normal      *finder // added tokens that are found in normalised text
	splits      []split
	scan        *scanner // does all splits at once; nil if they are not of that kind
	model       model
	boundaries  *boundaries // where words are cut; nil: nowhere

	before, after []uint32 // special tokens around a text
	beginning     bool     // what a text begins with has other ids than the same elsewhere

	cut    [utf8.RuneSelf]bool // see cuts
	memory memory

	mu   sync.Mutex
	idle []*encoder
}

// encoder is what one call of Append needs at a time: scratch space, and a cache of words.
type encoder struct {
	*Tokenizer
	ids        []uint32
	repaired   []byte
	normalized [2][]byte
	prefixed   []byte
	spaced     []byte
	first      bool // the text begins with what is handled now
	ends       [64]int
	words      words
	symbols    symbols
}

// maxScratch is how much scratch space an encoder keeps (bytes of text): a single long text must not hold memory for ever.
const maxScratch = 1 << 20

// Append appends the token ids of a text to dst, and with special also those that the file puts around each text, such as that of its
// beginning. What is not UTF-8 in the text counts as U+FFFD.
func (t *Tokenizer) Append(dst []uint32, text []byte, special bool) []uint32 {
	e := t.encoder()
	e.ids = dst
	if special {
		e.ids = append(e.ids, t.before...)
	}
	if !utf8.Valid(text) {
		e.repaired = chars.Repair(e.repaired[:0], text)
		text = e.repaired
	}
	e.first = true
	if token := t.raw.separator(text); token != nil {
		e.parts(text, token)
	} else {
		t.raw.each(text, e.segment, e.id)
	}
	if special {
		e.ids = append(e.ids, t.after...)
	}
	dst, e.ids = e.ids, nil
	t.release(e, len(text))
	return dst
}

// encoder returns an idle encoder, or a new one.
func (t *Tokenizer) encoder() *encoder {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := len(t.idle) - 1; last >= 0 {
		e := t.idle[last]
		t.idle = t.idle[:last]
		return e
	}
	return &encoder{Tokenizer: t, words: newWords()}
}

// release keeps an encoder for the next call: as many as can run at a time.
func (t *Tokenizer) release(e *encoder, length int) {
	if length > maxScratch {
		e.repaired, e.normalized, e.prefixed, e.spaced, e.symbols = nil, [2][]byte{}, nil, nil, symbols{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.idle) < runtime.GOMAXPROCS(0) {
		t.idle = append(t.idle, e)
	}
}

func (e *encoder) id(id uint32) { e.ids, e.first = append(e.ids, id), false }

// normalize handles text in which no added token is found before it is normalized.
func (e *encoder) normalize(text []byte) {
	e.normal.each(e.normalizers.apply(text, &e.normalized), e.pieces, e.id)
}

// pieces splits normalised text.
func (e *encoder) pieces(text []byte) {
	if e.scan != nil {
		e.scanned(text)
	} else {
		e.piece(0, text)
	}
	e.first = false
}

// piece applies the steps of pre-tokenization from one on, and the model to what they make.
func (e *encoder) piece(step int, text []byte) {
	if step == len(e.splits) {
		if e.boundaries != nil {
			e.cutWord(text)
		} else {
			e.word(text)
		}
		return
	}
	s := &e.splits[step]
	if s.prefix && text[0] != ' ' {
		e.prefixed = append(append(e.prefixed[:0], ' '), text...)
		text = e.prefixed
	}
	if s.space != nil {
		text = e.withSpaces(s, text)
	}
	if s.pattern == nil {
		e.piece(step+1, text)
		return
	}
	if s.keep != isolated {
		// Gemma's looks for spaces, of which its normalizer leaves none.
		if _, _, ok := s.pattern.Next(text, 0); !ok && !s.invert {
			e.piece(step+1, text)
			return
		}
		s.each(text, func(piece []byte) { e.piece(step+1, piece) })
		return
	}
	// The same without calls by reference, each of which allocates.
	for done := 0; done < len(text); {
		start, end, ok := s.pattern.Next(text, done)
		if !ok {
			start, end = len(text), len(text)
		}
		if done < start {
			e.piece(step+1, text[done:start])
		}
		if start < end {
			e.piece(step+1, text[start:end])
		}
		done = end
	}
}

// withSpaces returns a text with what Metaspace has in the place of spaces.
func (e *encoder) withSpaces(s *split, text []byte) []byte {
	out := e.spaced[:0]
	if (s.before == everyPiece || s.before == firstPiece && e.first) && text[0] != ' ' && !bytes.HasPrefix(text, s.space) {
		out = append(out, s.space...)
	}
	for {
		i := bytes.IndexByte(text, ' ')
		if i < 0 {
			break
		}
		out = append(append(out, text[:i]...), s.space...)
		text = text[i+1:]
	}
	e.spaced = append(out, text...)
	return e.spaced
}

// scanned splits a text as e.scan says, and appends the ids of its words.
func (e *encoder) scanned(text []byte) {
	for at := 0; at < len(text); {
		n := e.scan.last.Ends(text, at, e.ends[:])
		at = e.append(text, at, e.ends[:n])
		if n < len(e.ends) && at < len(text) {
			at = e.other(text, at)
		}
	}
}

// append appends the ids of the words of a text that follow each other from a place on, and returns where the last one ends.
func (e *encoder) append(text []byte, at int, ends []int) int {
	short, ids := e.words.short, e.ids
	for _, end := range ends {
		length := end - at
		if length > maxShort || at+maxShort > len(text) {
			e.ids = ids
			e.word(text[at:end])
			ids = e.ids
			at = end
			continue
		}
		m := &masks[length]
		lo, hi := binary.LittleEndian.Uint64(text[at:])&m.lo, binary.LittleEndian.Uint64(text[at+8:])&m.hi
		line := &short[shortSum(lo, hi)>>(64-shortBits)]
		s := &line[0]
		if !s.holds(lo, hi, length) {
			if s = &line[1]; !s.holds(lo, hi, length) {
				e.ids = ids
				e.unknown(line, lo, hi, text[at:end])
				ids = e.ids
				at = end
				continue
			}
		}
		if cap(ids)-len(ids) < maxShortIDs {
			ids = slices.Grow(ids, maxShortIDs)
		}
		n := len(ids)
		ids = ids[:n+maxShortIDs] // a copy of a fixed size costs less than what follows it in vain
		*(*[maxShortIDs]uint32)(ids[n:]) = s.ids
		ids = ids[:n+int(s.count)]
		at = end
	}
	e.ids = ids
	return at
}

// other handles what is at a place where the last pattern matches nothing, and returns where it ends.
func (e *encoder) other(text []byte, at int) int {
	for step, run := range e.scan.runs {
		if end := run.Match(text, at); end > 0 {
			if e.scan.whole[step] {
				e.word(text[at:end])
			} else {
				e.piece(step+1, text[at:end])
			}
			return end
		}
	}
	end := at
	for {
		_, size := utf8.DecodeRune(text[end:])
		if end += size; end == len(text) || e.scan.begins(text, end) {
			break
		}
	}
	if !e.scan.drops {
		e.word(text[at:end])
	}
	return end
}

// word appends the ids of a word.
func (e *encoder) word(text []byte) {
	if len(text) > maxShort {
		e.uncached(text)
		return
	}
	var padded [maxShort]byte
	copy(padded[:], text)
	lo, hi := binary.LittleEndian.Uint64(padded[:]), binary.LittleEndian.Uint64(padded[8:])
	line := &e.words.short[shortSum(lo, hi)>>(64-shortBits)]
	for i := range line {
		if s := &line[i]; s.holds(lo, hi, len(text)) {
			e.ids = append(e.ids, s.ids[:s.count]...)
			return
		}
	}
	e.unknown(line, lo, hi, text)
}

// unknown appends the ids of a short word that is not in its line, and puts it there.
func (e *encoder) unknown(line *shortLine, lo, hi uint64, text []byte) {
	before := len(e.ids)
	e.uncached(text)
	if ids := e.ids[before:]; len(ids) <= maxShortIDs {
		line[1] = line[0]
		s := &line[0]
		s.lo, s.hi, s.length, s.count = lo, hi, uint8(len(text)), uint8(copy(s.ids[:], ids))
	}
}

// uncached appends the ids of a word that is none of the short ones that are cached.
func (e *encoder) uncached(text []byte) {
	h := hash(text)
	if len(text) > maxLong {
		e.looked(text, h)
		return
	}
	slot := &e.words.long[h>>(64-longBits)]
	if slot.holds(text) {
		e.ids = append(e.ids, slot.ids[:slot.count]...)
		return
	}
	before := len(e.ids)
	e.looked(text, h)
	if ids := e.ids[before:]; len(text) > maxShort || len(ids) > maxShortIDs {
		slot.keep(text, ids)
	}
}

// looked appends the ids of a word whose hash is h, without a look into the cache.
func (e *encoder) looked(text []byte, h uint64) {
	if id, ok := e.model.known(text, h); ok {
		e.ids = append(e.ids, id)
		return
	}
	e.ids = e.model.append(e.ids, text, &e.symbols)
}
