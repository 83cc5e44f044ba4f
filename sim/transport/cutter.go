package transport

import "github.com/tandem-serving/tandem/transfer"

// cutter cuts a read into parts of at most maxSpans spans and maxPart bytes. A part of whole spans uses the caller's slices;
// spans that are larger than a part are copied, because they have to be cut. There is always a first part, even if it is empty,
// so that every read finds out whether the peer can be reached.
type cutter struct {
	spans   []transfer.Span
	into    [][]byte
	index   int
	offset  uint64 // into spans[index]
	started bool
}

func (c *cutter) more() bool { return !c.started || c.index < len(c.spans) }

// next returns the next part. Call it only if more returned true.
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

// piece returns the next piece of a span that is too large for one part.
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
