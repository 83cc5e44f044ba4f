package tokens

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/epp/tokens/chars"
)

// charsmap is SentencePiece's normalizer: a table of texts with what they become, compiled into a double array.
type charsmap struct {
	units []uint32            // of the double array
	texts []byte              // what texts become, each with a zero byte after it
	ascii [utf8.RuneSelf]bool // characters that change on their own
}

// newCharsmap reads a precompiled_charsmap: the length of the double array in bytes, its units, and the texts.
func newCharsmap(data []byte) (*charsmap, error) {
	if len(data) < 4 {
		return nil, errors.New("is missing or too short")
	}
	size := binary.LittleEndian.Uint32(data)
	data = data[4:]
	if uint64(size) > uint64(len(data)) || size%4 != 0 || size == 0 {
		return nil, errors.New("the length of its table is wrong")
	}
	m := &charsmap{texts: data[size:]}
	if !utf8.Valid(m.texts) {
		return nil, errors.New("its texts are not UTF-8")
	}
	for at := uint32(0); at < size; at += 4 {
		m.units = append(m.units, binary.LittleEndian.Uint32(data[at:]))
	}
	for b := range byte(utf8.RuneSelf) {
		_, m.ascii[b] = m.lookup([]byte{b})
	}
	return m, nil
}

// lookup returns what the shortest text in the table that a text begins with becomes. It stands for the whole text, as in the reference.
func (m *charsmap) lookup(text []byte) (becomes []byte, ok bool) {
	const leaf, isValue, far = 1 << 8, 1 << 31, 1 << 9
	offset := func(unit uint32) uint32 { return unit >> 10 << (unit & far >> 6) }
	at := offset(m.units[0])
	for _, b := range text {
		at ^= uint32(b)
		if b == 0 || at >= uint32(len(m.units)) {
			return nil, false
		}
		unit := m.units[at]
		if unit&(isValue|0xFF) != uint32(b) {
			return nil, false
		}
		at ^= offset(unit)
		if unit&leaf == 0 {
			continue
		}
		if at >= uint32(len(m.units)) {
			return nil, false
		}
		from := m.units[at] &^ isValue
		if from > uint32(len(m.texts)) {
			return nil, false
		}
		becomes = m.texts[from:]
		for i, c := range becomes {
			if c == 0 {
				return becomes[:i], true
			}
		}
		return becomes, true
	}
	return nil, false
}

func (m *charsmap) changes(text []byte) bool {
	for _, b := range text {
		if b >= utf8.RuneSelf || b == '\r' || m.ascii[b] {
			return true
		}
	}
	return false
}

// shortCluster is below which length a grapheme cluster is looked up as a whole, in the reference (bytes).
const shortCluster = 6

func (m *charsmap) append(dst, text []byte) []byte {
	for len(text) > 0 {
		if b := text[0]; b < utf8.RuneSelf && !m.ascii[b] && b != '\r' && (len(text) == 1 || text[1] < utf8.RuneSelf) {
			dst, text = append(dst, b), text[1:]
			continue
		}
		cluster := text[:chars.Cluster(text)]
		text = text[len(cluster):]
		if len(cluster) < shortCluster {
			if becomes, ok := m.lookup(cluster); ok {
				dst = append(dst, becomes...)
				continue
			}
		}
		for len(cluster) > 0 {
			_, size := utf8.DecodeRune(cluster)
			if becomes, ok := m.lookup(cluster[:size]); ok {
				dst = append(dst, becomes...)
			} else {
				dst = append(dst, cluster[:size]...)
			}
			cluster = cluster[size:]
		}
	}
	return dst
}
