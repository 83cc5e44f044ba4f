package tokens

import "bytes"

// words is a cache of what a model makes of words. It belongs to one encoder, so it needs no locks.
type words struct {
	short []shortLine // by shortSum
	long  []longWord  // by hash: what is too long for the others, or has too many ids
}

// shortLine is of the size of a line of the processor's cache. The word that came last is the first one.
type shortLine [2]shortWord

// shortWord is a word of up to maxShort bytes, padded with zeros. Its length is 0 if there is none.
type shortWord struct {
	lo, hi uint64
	ids    [maxShortIDs]uint32
	length uint8
	count  uint8 // of ids
	_      uint16
}

// longWord is a word of up to maxLong bytes, of the size of a line too. Its length is 0 if there is none.
type longWord struct {
	ids    [7]uint32
	count  uint8 // of ids
	length uint8
	_      uint16
	word   [maxLong]byte
}

const (
	// maxShort and maxLong are the longest words (bytes).
	maxShort = 16
	maxLong  = 32
	// maxShortIDs is how many ids a short word has at most.
	maxShortIDs = 3
	// shortBits make 1 MiB of lines, and longBits 256 KiB.
	shortBits = 14
	longBits  = 12
)

func newWords() words {
	return words{make([]shortLine, 1<<shortBits), make([]longWord, 1<<longBits)}
}

// mask leaves the bytes of a short word.
type mask struct{ lo, hi uint64 }

// masks are those of words of each length.
var masks = func() (all [maxShort + 1]mask) {
	for i := range all {
		all[i] = mask{1<<(8*i) - 1, 0}
		if i >= 8 {
			all[i] = mask{1<<64 - 1, 1<<(8*(i-8)) - 1}
		}
	}
	return all
}()

// shortSum returns a hash of a short word, whose upper bits are the best.
func shortSum(lo, hi uint64) uint64 {
	return (lo ^ hi*0xC2B2AE3D27D4EB4F) * 0x9E3779B97F4A7C15
}

func (s *shortWord) holds(lo, hi uint64, length int) bool {
	return (s.lo^lo)|(s.hi^hi)|(uint64(s.length)^uint64(length)) == 0
}

func (s *longWord) holds(word []byte) bool {
	return int(s.length) == len(word) && bytes.Equal(s.word[:s.length], word)
}

func (s *longWord) keep(word []byte, ids []uint32) {
	if len(ids) <= len(s.ids) {
		s.length, s.count = uint8(copy(s.word[:], word)), uint8(copy(s.ids[:], ids))
	}
}
