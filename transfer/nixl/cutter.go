//go:build nixl && cgo && linux

package nixl

import (
	"fmt"

	"github.com/tandem-serving/tandem/transfer"
)

// maxPieces is the largest number of pieces in one request. Making them takes about 0.1 µs each, by one caller at a time.
const maxPieces = 1024

// cutter splits a read into requests that fit into a slot, in order.
type cutter struct {
	regions map[uint32]extent
	spans   []transfer.Span
	into    [][]byte

	next   int    // span
	offset uint64 // in that span
}

// part is a run of a read's bytes that begins in a span.
type part struct {
	span          int
	offset, bytes uint64
}

// check reports whether a read is well formed, and inside the memory in the metadata of the peer.
func (c *cutter) check() error {
	if len(c.spans) != len(c.into) {
		return fmt.Errorf("%w: %d spans for %d buffers", transfer.ErrInvalid, len(c.spans), len(c.into))
	}
	for i, s := range c.spans {
		if s.Length != uint64(len(c.into[i])) {
			return fmt.Errorf("%w: span %d has %d bytes, its buffer %d", transfer.ErrInvalid, i, s.Length, len(c.into[i]))
		}
		if x, ok := c.regions[s.Region]; !ok || s.Offset > x.length || s.Length > x.length-s.Offset {
			return fmt.Errorf("span %d (%d bytes at %d of region %d) is %w", i, s.Length, s.Offset, s.Region, transfer.ErrRange)
		}
	}
	return nil
}

// more reports whether bytes are left.
func (c *cutter) more() bool {
	for c.next < len(c.spans) && c.spans[c.next].Length == 0 {
		c.next++
	}
	return c.next < len(c.spans)
}

// cut writes the pieces of the next part into the slot.
func (c *cutter) cut(s *slot) part {
	p := part{span: c.next, offset: c.offset}
	s.pieces = s.pieces[:0]
	region := uint32(0) // of the last piece: the library accepts none that spans two regions
	for c.more() && p.bytes < uint64(len(s.mem)) {
		span := c.spans[c.next]
		length := min(span.Length-c.offset, uint64(len(s.mem))-p.bytes)
		run := piece{c.regions[span.Region].address + span.Offset + c.offset, length}
		if n := len(s.pieces); n > 0 && region == span.Region && s.pieces[n-1].address+s.pieces[n-1].length == run.address {
			s.pieces[n-1].length += run.length
		} else if n < maxPieces {
			s.pieces = append(s.pieces, run)
		} else {
			break
		}
		region = span.Region
		p.bytes += run.length
		if c.offset += run.length; c.offset == span.Length {
			c.next++
			c.offset = 0
		}
	}
	return p
}

// copyOut copies the bytes of a part to their buffers.
func (c *cutter) copyOut(p part, from []byte) {
	from = from[:p.bytes]
	for i, offset := p.span, p.offset; len(from) > 0; i, offset = i+1, 0 {
		from = from[copy(c.into[i][offset:], from):]
	}
}
