package body

import "io"

const (
	// maxGap is the most bytes of white space between a comma and a key that are held back with the comma. Before more of
	// them, the comma moves to the end of the white space.
	maxGap = 64
	// smallRead is the size of the buffer for reads that are too short to hold anything back in: a page.
	smallRead = 4096
)

// Blank is a reader that overwrites members with spaces, each with its comma, so that the length of a body does not change
// while it is streamed. The result is valid JSON if the source is.
//
// Blank scans ordinary content in the caller's buffer, without a copy. Between two reads it holds back only a comma and the
// beginning of a key that may be wanted. A comma before a long run of white space may move to the end of the run; no other
// remaining byte changes.
//
// If the source is not JSON, the rest passes unchanged, unless it may contain a member to remove: then Read fails with
// ErrHidden before it has released the bytes that complete the member's name. Read fails with ErrHidden also if a member was
// removed before the first byte that is not JSON: without the member, the rest might be valid JSON again, with another
// meaning than the source. Read returns the scanner's other errors.
type Blank struct {
	src    io.Reader
	scan   Scanner
	remove func(want int) bool
	hint   hint
	broken bool  // the source is not JSON
	err    error // what the next Read returns

	held []byte // read from src, not yet released
	buf  []byte // for reads that are too short
	out  []byte // part of buf that is still to be released
	room int    // shortest read that is served without buf

	removal
}

// removal is the state of the removing.
type removal struct {
	next    int    // index of the first member that was not checked yet
	cur     int    // index of the member being removed, -1 = none
	from    int64  // offset at which its removal begins
	leading bool   // all members before it are removed, so the comma after it is removed too
	comma   int    // index of a leading member whose comma may still come, -1 = none
	leads   []lead // the enclosing objects, innermost last
	removed bool
}

// lead counts the removed members at the beginning of an object.
type lead struct {
	object int64
	run    int
}

// NewBlank returns a reader of src without the members of the wants for which remove returns true. remove must not select a want with
// Sink beneath a "*".
func NewBlank(src io.Reader, t *Table, l Limits, remove func(want int) bool) *Blank {
	b := &Blank{
		src: src, remove: remove, hint: t.hint(remove),
		room:    2 * (t.longestKey() + maxGap),
		removal: removal{cur: -1, comma: -1},
	}
	b.scan.Reset(t, l, nil)
	return b
}

// Removed reports whether a member was removed so far.
func (b *Blank) Removed() bool { return b.removed }

// Scanner returns the scanner of the source. Its offsets hold for the source and for what Read returned.
func (b *Blank) Scanner() *Scanner { return &b.scan }

// Read implements io.Reader.
func (b *Blank) Read(p []byte) (int, error) {
	if len(b.out) == 0 {
		if len(p) >= b.room {
			return b.fill(p)
		}
		if b.buf == nil {
			b.buf = make([]byte, max(smallRead, b.room))
		}
		n, err := b.fill(b.buf)
		if n == 0 {
			return 0, err
		}
		b.out = b.buf[:n]
	}
	n := copy(p, b.out)
	b.out = b.out[n:]
	return n, nil
}

// fill reads into p until it can release something, and returns how many bytes.
func (b *Blank) fill(p []byte) (int, error) {
	for b.err == nil {
		h := copy(p, b.held)
		n, err := b.src.Read(p[h:])
		idle := n == 0 && err == nil
		n, b.err = b.advance(p[:h+n], h, err)
		if n > 0 || idle {
			return n, nil
		}
	}
	return 0, b.err
}

// advance scans p, whose first h bytes were held back, removes members, and returns how many bytes it releases. end is the
// source's error.
func (b *Blank) advance(p []byte, h int, end error) (int, error) {
	b.held = b.held[:0]
	if b.broken {
		return b.pass(p, end)
	}
	base := b.scan.Offset() - int64(h)
	_, err := b.scan.Write(p[h:])
	b.sweep(p, base)
	if err == nil && end == io.EOF {
		err = b.scan.Close()
	}
	n := b.settled(p, base)
	b.hint.note(p[:n])
	if e, ok := err.(*SyntaxError); ok {
		b.broken = true
		if cutOff := e.Offset == base+int64(len(p)); b.removed && !cutOff {
			return n, ErrHidden
		}
		rest, err := b.pass(p[n:], end)
		return n + rest, err
	}
	if err != nil {
		return 0, err
	}
	b.held = append(b.held, p[n:]...)
	return n, end
}

// pass releases all of p, which is not JSON, if p cannot contain a member to remove.
func (b *Blank) pass(p []byte, end error) (int, error) {
	if b.hint.feed(p) {
		return 0, ErrHidden
	}
	return len(p), end
}

// settled returns how much of p, which begins at offset base, may be released.
func (b *Blank) settled(p []byte, base int64) int {
	at := b.scan.Settled()
	if at == b.scan.Offset() {
		return int(at - base)
	}
	n, key := int(max(at-base, 0)), int(b.scan.Offset()-base)
	if b.scan.state == inKey {
		key = int(b.scan.key.span.Start - base)
	}
	switch {
	case key < n || n == key:
		return n
	case p[n] != ',':
		return key // the comma was removed with an earlier member
	case key-n > maxGap:
		p[n], p[key-1] = ' ', ','
		return key - 1
	}
	return n
}

// sweep blanks the members to remove in p, which begins at offset base.
func (b *Blank) sweep(p []byte, base int64) {
	members := b.scan.members
	b.sweepComma(p, base)
	for b.cur >= 0 || b.pick() {
		end := members[b.cur].Value.End
		if end < 0 {
			blank(p, base, Span{b.from, b.scan.Offset()})
			return
		}
		blank(p, base, Span{b.from, end})
		if b.leading {
			b.comma = b.cur
			b.sweepComma(p, base)
		}
		b.cur = -1
	}
}

// sweepComma blanks the comma after a leading member, when it has arrived.
func (b *Blank) sweepComma(p []byte, base int64) {
	if b.comma < 0 {
		return
	}
	if at := b.scan.members[b.comma].Next; at >= 0 {
		blank(p, base, Span{at, at + 1})
		b.comma = -1
	}
}

// pick moves to the next member to remove.
func (b *Blank) pick() bool {
	for b.next < len(b.scan.members) {
		m := &b.scan.members[b.next]
		b.next++
		if !b.remove(m.Want) {
			continue
		}
		b.cur, b.removed = b.next-1, true
		b.leading = b.isLeading(m)
		if b.from = m.Key.Start; !b.leading {
			b.from = m.Prev
		}
		return true
	}
	return false
}

// isLeading reports whether m and all members before it in its object are removed.
func (b *Blank) isLeading(m *Member) bool {
	n := len(b.leads)
	for n > 0 && b.leads[n-1].object > m.Object {
		n--
	}
	b.leads = b.leads[:n]
	if n == 0 || b.leads[n-1].object < m.Object {
		b.leads = append(b.leads, lead{object: m.Object})
		n++
	}
	l := &b.leads[n-1]
	if l.run != m.Index {
		return false
	}
	l.run++
	return true
}

// blank overwrites those bytes of p, which begins at offset base, that lie in s.
func blank(p []byte, base int64, s Span) {
	from, to := max(s.Start-base, 0), min(s.End-base, int64(len(p)))
	for i := from; i < to; i++ {
		p[i] = ' '
	}
}
