package read

import "bytes"

// promptList reads a prompt that is an array of strings, of token ids, or of arrays of ids. The scanner has already found
// its JSON valid. If it holds several prompts, the tokens of all count, but only the first is hashed.
type promptList struct {
	id     uint32
	inID   bool
	inText bool
	plain  unescaper
}

func (l *promptList) reset() { *l = promptList{plain: unescaper{pending: l.plain.pending[:0]}} }

// write reads a piece of the array into d.
func (l *promptList) write(d *digest, p []byte) {
	for len(p) > 0 {
		if l.inText {
			p = l.writeText(d, p)
		} else {
			p = l.writeIDs(d, p)
		}
	}
}

// writeIDs reads up to the next string, and returns the rest after its opening quote. A number that engines refuse, such as
// 1.5, yields arbitrary ids.
func (l *promptList) writeIDs(d *digest, p []byte) []byte {
	id, inID := l.id, l.inID
	for i, c := range p {
		if digit := c - '0'; digit <= 9 {
			id, inID = id*10+uint32(digit), true
			continue
		}
		if inID {
			putID(d, id)
			id, inID = 0, false
		}
		switch c {
		case '[':
			begin(d)
		case '"':
			begin(d)
			l.id, l.inID, l.inText = 0, false, true
			return p[i+1:]
		}
	}
	l.id, l.inID = id, inID
	return nil
}

// putID appends a token id of a prompt.
func putID(d *digest, id uint32) {
	if d.length == 0 {
		d.mark(markIDs)
	}
	d.put(id)
}

// begin starts a prompt. Only the first one is hashed.
func begin(d *digest) {
	if d.length > 0 {
		d.stop()
	}
}

// writeText reads up to the end of a string, and returns the rest after its closing quote.
func (l *promptList) writeText(d *digest, p []byte) []byte {
	n := bytes.IndexByte(p, '"')
	if n < 0 {
		l.plain.write(d, p)
		return nil
	}
	l.plain.write(d, p[:n])
	if l.plain.afterBackslash() {
		l.plain.write(d, p[n:n+1]) // an escaped quote
		return p[n+1:]
	}
	l.plain.end(d)
	l.inText = false
	return p[n+1:]
}
