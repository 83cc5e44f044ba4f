package epp

import "bytes"

// promptList reads the array of a prompt, as JSON that the scanner has found to be right: strings, token ids, or arrays of
// ids. If it holds several prompts all of them count, but only the first one is hashed.
type promptList struct {
	id     uint32
	inID   bool
	inText bool
	plain  unescaper
}

func (l *promptList) reset() { *l = promptList{plain: unescaper{held: l.plain.held[:0]}} }

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

// writeIDs reads up to the next string, and returns what is behind its quote. What no engine takes for an id, such as 1.5,
// gives something.
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

// putID appends an id of a prompt.
func putID(d *digest, id uint32) {
	if d.length == 0 {
		d.mark(markIDs)
	}
	d.put(id)
}

// begin begins a prompt, which is not hashed if it is not the first.
func begin(d *digest) {
	if d.length > 0 {
		d.stop()
	}
}

// writeText reads up to the end of a string, and returns what is behind its quote.
func (l *promptList) writeText(d *digest, p []byte) []byte {
	n := bytes.IndexByte(p, '"')
	if n < 0 {
		l.plain.write(d, p)
		return nil
	}
	l.plain.write(d, p[:n])
	if l.plain.begun() {
		l.plain.write(d, p[n:n+1]) // an escaped quote
		return p[n+1:]
	}
	l.plain.end(d)
	l.inText = false
	return p[n+1:]
}
