package message

import (
	"encoding/binary"
	"errors"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// Errors of a body. After any of them, nothing more can be read.
var (
	// ErrSyntax is a frame or a message that is malformed. Groups count as such: no engine's messages have them.
	ErrSyntax = errors.New("malformed")
	// ErrCompressed is a message that is compressed.
	ErrCompressed = errors.New("compressed")
	// ErrTooLarge is a message that is longer than the limit.
	ErrTooLarge = errors.New("too large")
	// ErrTruncated is a body that ends within a frame.
	ErrTruncated = errors.New("truncated")
)

// Kind says how the value of a field is read.
type Kind uint8

// The kinds of fields that are read.
const (
	Number Kind = iota + 1 // a varint; a repeated one also where it is packed
	Bytes                  // a string or bytes
	Nested                 // a message
)

// FieldNumber is the number of a field on the wire.
type FieldNumber = protowire.Number

// Field is a field that is read. On the wire, a field of another type than Kind's is skipped, as protobuf prescribes.
type Field struct {
	Number FieldNumber
	Kind   Kind
	Want   int     // names the field to the sink
	Fields []Field // of a nested message: at most maxDepth deep in all
}

// Sink receives what is read. An error of it ends the reading.
type Sink interface {
	// Begin is called before the value of a Bytes or Nested field.
	Begin(want int) error
	// Number is called for each value of a Number field.
	Number(want int, value uint64) error
	// Piece is called for each piece of a Bytes field, in order. An empty value has one empty piece. The piece is part of the
	// chunk that was written.
	Piece(want int, piece []byte, last bool) error
}

const (
	headerLen = 5 // of a frame: a flag, and the length of the message
	maxDepth  = 4 // of nested messages, the outermost and a packed list included
)

// state is what comes next.
type state uint8

const (
	inHeader state = iota // of a frame
	atTag
	inNumber
	inLength
	inPacked
	inBytes
	inSkipped
)

// level is a message, or a packed list, that has not ended.
type level struct {
	fields []Field
	end    int64
}

// Reader reads the messages of one body. Reset it before use. It is not safe for concurrent use, and allocates nothing.
type Reader struct {
	fields   []Field
	sink     Sink
	limit    int64
	messages int

	state  state
	header [headerLen]byte
	cut    [binary.MaxVarintLen64]byte // the beginning of a header, or of a number, whose rest comes in the next chunk
	cutLen int

	pos    int64 // in the message of the current frame
	levels [maxDepth]level
	depth  int
	field  *Field // that is read; nil = it is skipped
	left   int64  // bytes of its value
	err    error
}

// Reset prepares for a new body, whose messages have these fields. limit is the longest message in bytes, 0 = no limit.
func (r *Reader) Reset(fields []Field, limit int64, sink Sink) {
	*r = Reader{fields: fields, sink: sink, limit: limit}
}

// Messages returns how many messages have been read.
func (r *Reader) Messages() int { return r.messages }

// Close reports ErrTruncated for a body that ended within a frame.
func (r *Reader) Close() error {
	if r.err == nil && (r.state != inHeader || r.cutLen > 0) {
		r.err = ErrTruncated
	}
	return r.err
}

// Write reads the next chunk. The error is one of this package's, or the sink's; every later call returns the same one.
func (r *Reader) Write(p []byte) error {
	for len(p) > 0 && r.err == nil {
		p = r.step(p)
	}
	return r.err
}

// step reads the beginning of p and returns the rest.
func (r *Reader) step(p []byte) []byte {
	switch r.state {
	case inHeader:
		return r.readHeader(p)
	case inBytes, inSkipped:
		return r.readBytes(p)
	case inPacked:
		return r.readPacked(p)
	}
	v, p, ok := r.varint(p)
	if !ok || r.err != nil {
		return p
	}
	switch r.state {
	case atTag:
		r.readTag(v)
	case inNumber:
		r.state = atTag
		if r.field != nil {
			r.err = r.sink.Number(r.field.Want, v)
		}
		r.settle()
	case inLength:
		r.readLength(v)
	}
	return p
}

// readHeader reads the header of a frame.
func (r *Reader) readHeader(p []byte) []byte {
	n := copy(r.header[r.cutLen:], p)
	if r.cutLen += n; r.cutLen < headerLen {
		return p[n:]
	}
	r.cutLen = 0
	length := int64(binary.BigEndian.Uint32(r.header[1:]))
	switch {
	case r.header[0] == 1:
		r.err = ErrCompressed
	case r.header[0] != 0:
		r.err = ErrSyntax
	case r.limit > 0 && length > r.limit:
		r.err = ErrTooLarge
	default:
		r.pos, r.depth = 0, 0
		r.push(level{r.fields, length})
		r.state = atTag
		r.settle()
	}
	return p[n:]
}

// varint reads a number. ok is false if it goes on in the next chunk.
func (r *Reader) varint(p []byte) (v uint64, rest []byte, ok bool) {
	from, before := p, r.cutLen
	if before > 0 {
		r.cutLen += copy(r.cut[before:], p)
		from = r.cut[:r.cutLen]
	}
	v, n := protowire.ConsumeVarint(from)
	switch {
	case n >= 0:
		r.cutLen = 0
		if r.pos += int64(n); r.pos > r.levels[r.depth-1].end {
			r.err = ErrSyntax
		}
		return v, p[n-before:], true
	case protowire.ParseError(n) != io.ErrUnexpectedEOF:
		r.err = ErrSyntax
	case before == 0:
		r.cutLen = copy(r.cut[:], p)
	}
	return 0, nil, false
}

// readTag begins a field.
func (r *Reader) readTag(tag uint64) {
	number, wire := protowire.DecodeTag(tag)
	r.field = nil
	fields := r.levels[r.depth-1].fields
	for i := range fields {
		if fields[i].Number == number && (wire == protowire.BytesType || wire == protowire.VarintType && fields[i].Kind == Number) {
			r.field = &fields[i]
		}
	}
	switch {
	case number < protowire.MinValidNumber:
		r.err = ErrSyntax
	case wire == protowire.VarintType:
		r.state = inNumber
	case wire == protowire.BytesType:
		r.state = inLength
	case wire == protowire.Fixed32Type:
		r.skip(4)
	case wire == protowire.Fixed64Type:
		r.skip(8)
	default:
		r.err = ErrSyntax
	}
}

// readLength begins the value of a field that has a length.
func (r *Reader) readLength(n uint64) {
	if n > uint64(r.levels[r.depth-1].end-r.pos) {
		r.err = ErrSyntax
		return
	}
	if r.field == nil {
		r.skip(int64(n))
		return
	}
	switch r.field.Kind {
	case Number:
		r.push(level{nil, r.pos + int64(n)})
		r.state = inPacked
		r.settle()
		return
	case Nested:
		r.err = r.sink.Begin(r.field.Want)
		r.push(level{r.field.Fields, r.pos + int64(n)})
		r.state = atTag
		r.settle()
		return
	}
	r.left, r.state = int64(n), inBytes
	if r.err = r.sink.Begin(r.field.Want); r.err == nil && n == 0 {
		r.err = r.sink.Piece(r.field.Want, nil, true)
		r.settle()
	}
}

// skip skips the next n bytes.
func (r *Reader) skip(n int64) {
	if n > r.levels[r.depth-1].end-r.pos {
		r.err = ErrSyntax
		return
	}
	if r.left, r.state = n, inSkipped; n == 0 {
		r.settle()
	}
}

// readBytes reads a piece of a value.
func (r *Reader) readBytes(p []byte) []byte {
	piece := p[:min(int64(len(p)), r.left)]
	r.left -= int64(len(piece))
	r.pos += int64(len(piece))
	if r.state == inBytes {
		r.err = r.sink.Piece(r.field.Want, piece, r.left == 0)
	}
	if r.left == 0 {
		r.settle()
	}
	return p[len(piece):]
}

// readPacked reads numbers of a packed list.
func (r *Reader) readPacked(p []byte) []byte {
	end := r.levels[r.depth-1].end
	for len(p) > 0 && r.pos < end {
		v, rest, ok := r.varint(p)
		if !ok || r.err != nil {
			return rest
		}
		if r.err = r.sink.Number(r.field.Want, v); r.err != nil {
			return rest
		}
		p = rest
	}
	r.settle()
	return p
}

// push begins a nested message or list.
func (r *Reader) push(l level) {
	r.levels[r.depth] = l
	r.depth++
}

// settle ends the messages and lists that end here, and says what comes next.
func (r *Reader) settle() {
	if r.state != inPacked || r.pos == r.levels[r.depth-1].end {
		r.state = atTag
	}
	for r.depth > 0 && r.pos == r.levels[r.depth-1].end {
		r.depth--
	}
	if r.depth == 0 {
		r.messages++
		r.state = inHeader
	}
}
