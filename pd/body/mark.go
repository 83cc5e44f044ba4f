package body

import "bytes"

// Mark is a text that is looked for in every event of a stream, nearly always in vain. bytes.Index compares it with the event at each byte;
// a Mark goes from one place with a byte that is rare in events to the next, and compares only there.
type Mark struct {
	text []byte
	rare int // index of the byte in text
}

// NewMark returns a Mark for a text. rare is one of its bytes: of them, the one that engines' events have least of besides the text that
// they bring, which is of names such as "choices", "finish_reason" and "logprobs". NewMark panics if the text does not have it.
func NewMark(text string, rare byte) Mark {
	m := Mark{text: []byte(text), rare: bytes.IndexByte([]byte(text), rare)}
	if m.rare < 0 {
		panic("a mark without its rare byte: " + text)
	}
	return m
}

// Index returns where the text begins in data, -1 if data does not have it.
func (m Mark) Index(data []byte) int {
	for from := m.rare; from < len(data); from++ {
		i := bytes.IndexByte(data[from:], m.text[m.rare])
		if i < 0 {
			return -1
		}
		from += i
		if begin := from - m.rare; bytes.HasPrefix(data[begin:], m.text) {
			return begin
		}
	}
	return -1
}

// In reports whether data has the text.
func (m Mark) In(data []byte) bool { return m.Index(data) >= 0 }
