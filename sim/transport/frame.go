package transport

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/tandem-serving/tandem/transfer"
)

// The wire format of TCP agents. Integers are big-endian.
//
// The dialling side opens with a hello, and the listening side answers with one of its own:
//
//	4 bytes  "TDKV"
//	2 bytes  protocol version, 1
//	8 bytes  generation of the sender
//	1 + n    length and bytes of the sender's name
//
// The dialling side compares the generation with the one in the metadata, and then sends requests. They are answered in the
// order of their arrival:
//
//	1 byte   'R' read, 'N' notify
//	4 bytes  length of what follows
//	         read: per span 4 bytes region, 8 bytes offset, 8 bytes length, at most maxSpans with maxPart bytes in all
//	         notify: the message, at most MaxMessage
//
//	1 byte   status
//	4 bytes  length of what follows: for a read with status ok the sum of its spans, else 0
//	         then the bytes of such a read, and 1 byte status: not ok if the memory went away half-way and zeros filled the rest
//
// The second status exists because the length is sent before the memory is read, and the memory's owner does not wait for a slow
// reader. Any other bytes end the connection: no side skips or guesses.
const (
	protocolMagic   = "TDKV"
	protocolVersion = 1

	helloFixed  = len(protocolMagic) + 2 + 8 + 1
	frameHeader = 1 + 4
	spanSize    = 4 + 8 + 8

	// maxSpans is the most that one vectored system call accepts (IOV_MAX of Linux); longer reads are cut into parts.
	maxSpans = 1024
	// maxPart is the most bytes of one answer. It is small enough that concurrent reads take turns, and large enough that the
	// time between two parts is short compared with their transfer.
	maxPart = 1 << 20
)

const (
	opRead   byte = 'R'
	opNotify byte = 'N'
)

const (
	statusOK byte = iota
	statusRange
	statusBusy
)

// statusErr returns the error of the contract for a status of the owner.
func statusErr(status byte) error {
	switch status {
	case statusOK:
		return nil
	case statusRange:
		return transfer.ErrRange
	case statusBusy:
		return transfer.ErrBusy
	}
	return fmt.Errorf("unknown status %d: %w", status, errLost)
}

type hello struct {
	version uint16
	identity
}

func (h hello) append(b []byte) []byte {
	b = append(b, protocolMagic...)
	b = binary.BigEndian.AppendUint16(b, protocolVersion)
	b = binary.BigEndian.AppendUint64(b, h.generation)
	return appendShort(b, h.name)
}

// readHello reads no byte beyond the hello. It returns a hello of another version as well, so that it can be answered or
// reported; of that only the version is valid.
func readHello(r io.Reader) (hello, error) {
	var b [helloFixed + transfer.MaxName]byte
	if _, err := io.ReadFull(r, b[:helloFixed]); err != nil {
		return hello{}, err
	}
	c := cursor{rest: b[:helloFixed]}
	if string(c.take(len(protocolMagic))) != protocolMagic {
		return hello{}, fmt.Errorf("%w: not a KV transfer agent", transfer.ErrNotSupported)
	}
	h := hello{version: c.uint16()}
	h.generation = c.uint64()
	name := b[helloFixed:][:c.uint8()]
	if h.version != protocolVersion {
		return h, nil
	}
	if _, err := io.ReadFull(r, name); err != nil {
		return hello{}, err
	}
	h.name = string(name)
	return h, nil
}

func appendFrame(b []byte, what byte, length int) []byte {
	return binary.BigEndian.AppendUint32(append(b, what), uint32(length))
}

func parseFrame(b [frameHeader]byte) (what byte, length uint32) {
	return b[0], binary.BigEndian.Uint32(b[1:])
}

func appendSpans(b []byte, spans []transfer.Span) []byte {
	for _, s := range spans {
		b = binary.BigEndian.AppendUint32(b, s.Region)
		b = binary.BigEndian.AppendUint64(b, s.Offset)
		b = binary.BigEndian.AppendUint64(b, s.Length)
	}
	return b
}

// readRequest reads one request; the payload is valid until the next call with the same buffer. The length is checked
// against the kind of request before anything is read or allocated.
func readRequest(r io.Reader, buf *[]byte) (op byte, payload []byte, err error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	op, length := parseFrame(head)
	switch {
	case op == opRead && length <= maxSpans*spanSize && length%spanSize == 0:
	case op == opNotify && length <= transfer.MaxMessage:
	default:
		return 0, nil, fmt.Errorf("%w: request %q of %d bytes", transfer.ErrInvalid, op, length)
	}
	if cap(*buf) < int(length) {
		*buf = make([]byte, length)
	}
	payload = (*buf)[:length]
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	return op, payload, nil
}

// parseSpans appends the spans of a read request to list, and adds up their bytes.
func parseSpans(list []transfer.Span, payload []byte) (spans []transfer.Span, total int, err error) {
	for c := (cursor{rest: payload}); len(c.rest) > 0; {
		s := transfer.Span{Region: c.uint32(), Offset: c.uint64(), Length: c.uint64()}
		if c.short || s.Length > uint64(maxPart-total) {
			return nil, 0, fmt.Errorf("%w: read of more than %d bytes, or half a span", transfer.ErrInvalid, maxPart)
		}
		total += int(s.Length)
		list = append(list, s)
	}
	return list, total, nil
}
