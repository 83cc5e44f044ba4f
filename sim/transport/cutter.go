package transport

import "github.com/tandem-serving/tandem/transfer"

// cutter cuts a read into parts of at most maxSpans spans and maxPart bytes. A part of whole spans shares the caller's
// slices; only spans larger than a part are copied out, to be cut themselves. There is always a first part, if only an
// empty one, so that every read learns whether the peer is there.
type cutter struct {
	spans   []transfer.Span
	into    [][]byte
	index   int
	offset  uint64 // into spans[index]
	started bool
}

func (c *cutter) more() bool { return !c.started || c.index < len(c.spans) }

// next must only be called if there is more.
func (c *cutter) next() *attempt {
	c.started = true
	a := &attempt{call: call{op: opRead}}
	if c.index < len(c.spans) && c.spans[c.index].Length > maxPart {
		c.piece(a)
		return a
	}
	first := c.index
	for ; c.index < len(c.spans) && c.index-first < maxSpans; c.index++ {
		length := c.spans[c.index].Length
		if length > uint64(maxPart-a.total) {
			break
		}
		a.total += int(length)
	}
	a.spans, a.into = c.spans[first:c.index], c.into[first:c.index]
	return a
}

// piece takes the next piece of a span that is too large for one part.
func (c *cutter) piece(a *attempt) {
	s := c.spans[c.index]
	length := min(s.Length-c.offset, maxPart)
	a.spans = []transfer.Span{{Region: s.Region, Offset: s.Offset + c.offset, Length: length}}
	a.into = [][]byte{c.into[c.index][c.offset:][:length]}
	a.total = int(length)
	if c.offset += length; c.offset == s.Length {
		c.index, c.offset = c.index+1, 0
	}
}
