package body

import "slices"

// Body is a request or response body as the segments in which it arrived. The zero value is empty. Segments are never copied
// and must not change.
type Body struct {
	segments [][]byte
	ends     []int64 // offset of the end of each segment
}

// Append adds a segment, which the Body keeps.
func (b *Body) Append(seg []byte) {
	if len(seg) == 0 {
		return
	}
	b.ends = append(b.ends, b.Len()+int64(len(seg)))
	b.segments = append(b.segments, seg)
}

// Reset empties the body.
func (b *Body) Reset() {
	clear(b.segments)
	b.segments, b.ends = b.segments[:0], b.ends[:0]
}

// Len returns the number of bytes.
func (b *Body) Len() int64 {
	if len(b.ends) == 0 {
		return 0
	}
	return b.ends[len(b.ends)-1]
}

// Segments returns the segments, none of them empty.
func (b *Body) Segments() [][]byte { return b.segments }

// Bytes returns the bytes of a span: a slice of the segment if they lie in one segment, else a copy. Offsets beyond the body
// are left out.
func (b *Body) Bytes(s Span) []byte {
	s.Start, s.End = max(s.Start, 0), min(s.End, b.Len())
	if s.Start >= s.End {
		return nil
	}
	k := b.segment(s.Start)
	if s.End <= b.ends[k] {
		from := b.start(k)
		return b.segments[k][s.Start-from : s.End-from : s.End-from]
	}
	out := make([]byte, 0, s.Len())
	for _, part := range b.AppendSpan(nil, s) {
		out = append(out, part...)
	}
	return out
}

// AppendSpan appends the slices of the segments that make up the span.
func (b *Body) AppendSpan(dst [][]byte, s Span) [][]byte {
	if s.Start >= s.End {
		return dst
	}
	for k := b.segment(s.Start); s.Start < s.End; k++ {
		from, to := s.Start-b.start(k), min(s.End, b.ends[k])-b.start(k)
		dst = append(dst, b.segments[k][from:to:to])
		s.Start = b.ends[k]
	}
	return dst
}

// segment returns the index of the segment that holds the byte at offset at.
func (b *Body) segment(at int64) int {
	k, _ := slices.BinarySearch(b.ends, at+1)
	return k
}

func (b *Body) start(k int) int64 { return b.ends[k] - int64(len(b.segments[k])) }
