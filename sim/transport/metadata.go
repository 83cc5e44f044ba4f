package transport

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/transfer"
)

// Metadata on the wire, integers big-endian:
//
//	4 bytes  "TDMD"
//	1 byte   format version, 1
//	1 byte   kind of transport: 'm' memory, 't' TCP
//	8 bytes  generation, random per start of the agent
//	1 + n    length and bytes of the name
//	1 + n    length and bytes of the address (host:port; empty for memory)
//	4 bytes  number of regions, then for each: 4 bytes number, 8 bytes length
const (
	metadataMagic   = "TDMD"
	metadataVersion = 1
	extentSize      = 4 + 8
	maxAddress      = 255 // bytes

	// maxRegions bounds the regions in the metadata of one agent. Engines register one or two per layer.
	maxRegions = 1 << 16
)

type kind byte

const (
	kindMem kind = 'm'
	kindTCP kind = 't'
)

// identity is the name and the generation of an agent.
type identity struct {
	name       string
	generation uint64
}

// metadata is what one agent knows of another.
type metadata struct {
	identity
	kind    kind
	address string
	regions map[uint32]uint64 // length in bytes by Region.ID
}

func checkName(name string) error {
	if name == "" || len(name) > transfer.MaxName || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: agent name %q: want 1 to %d bytes, none of them zero", transfer.ErrInvalid, name, transfer.MaxName)
	}
	return nil
}

func (m metadata) append(b []byte) []byte {
	b = append(b, metadataMagic...)
	b = append(b, metadataVersion, byte(m.kind))
	b = binary.BigEndian.AppendUint64(b, m.generation)
	b = appendShort(b, m.name)
	b = appendShort(b, m.address)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.regions)))
	for _, id := range slices.Sorted(maps.Keys(m.regions)) {
		b = binary.BigEndian.AppendUint32(b, id)
		b = binary.BigEndian.AppendUint64(b, m.regions[id])
	}
	return b
}

// parseMetadata checks everything, because the bytes come from other programs.
func parseMetadata(b []byte) (metadata, error) {
	c := cursor{rest: b}
	if string(c.take(len(metadataMagic))) != metadataMagic {
		return metadata{}, fmt.Errorf("%w: not metadata", transfer.ErrInvalid)
	}
	if v := c.uint8(); v != metadataVersion {
		return metadata{}, fmt.Errorf("%w: metadata version %d, this program knows %d", transfer.ErrNotSupported, v, metadataVersion)
	}
	m := metadata{kind: kind(c.uint8())}
	m.generation = c.uint64()
	m.name = c.string()
	m.address = c.string()
	count := c.uint32()
	if c.short || uint64(len(c.rest)) != uint64(count)*extentSize {
		return metadata{}, fmt.Errorf("%w: metadata is cut off or too long", transfer.ErrInvalid)
	}
	m.regions = make(map[uint32]uint64, count)
	for range count {
		id := c.uint32()
		m.regions[id] = c.uint64()
	}
	return m, checkName(m.name)
}

// check reports, before anything is sent, whether a read is well formed and inside of the memory in the metadata.
func (m metadata) check(spans []transfer.Span, into [][]byte) error {
	if len(spans) != len(into) {
		return fmt.Errorf("%w: %d spans for %d buffers", transfer.ErrInvalid, len(spans), len(into))
	}
	for i, s := range spans {
		if s.Length != uint64(len(into[i])) {
			return fmt.Errorf("%w: span %d has %d bytes, its buffer %d", transfer.ErrInvalid, i, s.Length, len(into[i]))
		}
		if size, ok := m.regions[s.Region]; !ok || !within(s, size) {
			return fmt.Errorf("span %d (%d bytes at %d of region %d) is %w", i, s.Length, s.Offset, s.Region, transfer.ErrRange)
		}
	}
	return nil
}

func appendShort(b []byte, s string) []byte {
	return append(append(b, byte(len(s))), s...)
}

// cursor reads fields of a byte string. Past the end it returns zeros and notes that bytes were missing, so that a parser needs
// one check instead of one per field.
type cursor struct {
	rest  []byte
	short bool
}

var zeros [8]byte

func (c *cursor) take(n int) []byte {
	if n > len(c.rest) {
		c.short, c.rest = true, nil
		return zeros[:min(n, len(zeros))]
	}
	field := c.rest[:n]
	c.rest = c.rest[n:]
	return field
}

func (c *cursor) uint8() uint8   { return c.take(1)[0] }
func (c *cursor) uint16() uint16 { return binary.BigEndian.Uint16(c.take(2)) }
func (c *cursor) uint32() uint32 { return binary.BigEndian.Uint32(c.take(4)) }
func (c *cursor) uint64() uint64 { return binary.BigEndian.Uint64(c.take(8)) }
func (c *cursor) string() string { return string(c.take(int(c.uint8()))) }

// loadable parses metadata, and checks that an agent of this kind may load it.
func loadable(ctx context.Context, blob []byte, want kind, self identity) (metadata, error) {
	if err := ctx.Err(); err != nil {
		return metadata{}, err
	}
	md, err := parseMetadata(blob)
	if err != nil {
		return metadata{}, err
	}
	if md.kind != want {
		return metadata{}, fmt.Errorf("%w: metadata of transport %q, this is %q", transfer.ErrNotSupported, md.kind, want)
	}
	if md.identity == self {
		return metadata{}, fmt.Errorf("%w: an agent's own metadata", transfer.ErrInvalid)
	}
	return md, nil
}

func checkMessage(message []byte) error {
	if len(message) > transfer.MaxMessage {
		return fmt.Errorf("%w: notification of %d bytes, at most %d", transfer.ErrInvalid, len(message), transfer.MaxMessage)
	}
	return nil
}
