package nixl

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/transfer"
)

// The metadata that a Transport exports; integers are big-endian. The library's own metadata has no numbers for regions, which
// Read needs:
//
//	4 bytes  "TDNX"
//	1 byte   format version, 1
//	8 bytes  generation, random per start of the agent
//	4 bytes  number of regions, then for each, by number: 4 bytes number, 8 bytes address, 8 bytes length
//	4 + n    length and bytes of the library's metadata, which calls the agent NAME@GENERATION in 16 hexadecimal digits
const (
	envelopeMagic   = "TDNX"
	envelopeVersion = 1
	envelopeHead    = len(envelopeMagic) + 1 + 8 + 4
	entrySize       = 4 + 8 + 8
	maxRegions      = 1 << 16 // as for the other transports
)

// extent is a run of bytes in a process.
type extent struct{ address, length uint64 }

// real reports whether a process can have such memory.
func (e extent) real() bool {
	return e.address != 0 && e.length != 0 && e.length <= math.MaxInt64 && e.address <= math.MaxUint64-e.length
}

// envelope is the metadata of an agent. A bare one, of another program, has no region numbers; its agent only takes
// notifications.
type envelope struct {
	agent      string // the library's name for it
	bare       bool
	generation uint64
	regions    map[uint32]extent
	blob       []byte // the library's part
}

// named returns the library's name for one generation of an agent. The library needs names that were never used before.
func named(name string, generation uint64) string { return fmt.Sprintf("%s@%016x", name, generation) }

// plainName removes the generation from a name; ok is false if it has none.
func plainName(agent string) (name string, ok bool) {
	const digits = 16
	at := len(agent) - digits - 1
	if at < 1 || agent[at] != '@' || strings.Trim(agent[at+1:], "0123456789abcdef") != "" {
		return agent, false
	}
	return agent[:at], true
}

// peer returns the name that callers have for the agent.
func (e envelope) peer() transfer.Peer {
	if e.bare {
		return transfer.Peer(e.agent)
	}
	name, _ := plainName(e.agent)
	return transfer.Peer(name)
}

func (e envelope) append(b []byte) []byte {
	b = append(append(b, envelopeMagic...), envelopeVersion)
	b = binary.BigEndian.AppendUint64(b, e.generation)
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.regions)))
	for _, id := range slices.Sorted(maps.Keys(e.regions)) {
		b = binary.BigEndian.AppendUint32(b, id)
		b = binary.BigEndian.AppendUint64(b, e.regions[id].address)
		b = binary.BigEndian.AppendUint64(b, e.regions[id].length)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.blob)))
	return append(b, e.blob...)
}

// parseEnvelope reads an envelope, or metadata that the library exported without one. It checks everything, because the bytes
// come from other programs. The result shares no memory with them.
func parseEnvelope(b []byte) (envelope, error) {
	if len(b) > MaxMetadata {
		return envelope{}, fmt.Errorf("%w: metadata of %d bytes, at most %d", transfer.ErrInvalid, len(b), MaxMetadata)
	}
	if !strings.HasPrefix(string(b[:min(len(b), len(envelopeMagic))]), envelopeMagic) {
		name, err := agentName(b)
		return envelope{agent: name, bare: true, blob: slices.Clone(b)}, err
	}
	if len(b) > len(envelopeMagic) && b[len(envelopeMagic)] != envelopeVersion {
		return envelope{}, fmt.Errorf("%w: metadata version %d, this program knows %d",
			transfer.ErrNotSupported, b[len(envelopeMagic)], envelopeVersion)
	}
	if len(b) < envelopeHead {
		return envelope{}, fmt.Errorf("%w: metadata is cut off", transfer.ErrInvalid)
	}
	e := envelope{generation: binary.BigEndian.Uint64(b[len(envelopeMagic)+1:])}
	rest, err := e.parseRegions(binary.BigEndian.Uint32(b[envelopeHead-4:]), b[envelopeHead:])
	if err != nil {
		return envelope{}, err
	}
	if len(rest) < 4 || uint64(len(rest)-4) != uint64(binary.BigEndian.Uint32(rest)) {
		return envelope{}, fmt.Errorf("%w: metadata is cut off or too long", transfer.ErrInvalid)
	}
	e.blob = slices.Clone(rest[4:])
	if e.agent, err = agentName(e.blob); err != nil {
		return envelope{}, err
	}
	if plain, _ := plainName(e.agent); named(plain, e.generation) != e.agent {
		return envelope{}, fmt.Errorf("%w: metadata of another life of the agent than its generation says", transfer.ErrInvalid)
	}
	return e, nil
}

// parseRegions reads the table and returns the bytes after it. Numbers must ascend, and regions must not wrap around.
func (e *envelope) parseRegions(count uint32, b []byte) (rest []byte, err error) {
	if count > maxRegions || uint64(len(b)) < uint64(count)*entrySize {
		return nil, fmt.Errorf("%w: metadata announces %d regions and is cut off, or they are more than %d",
			transfer.ErrInvalid, count, maxRegions)
	}
	e.regions = make(map[uint32]extent, count)
	next := uint64(0)
	for range count {
		id := binary.BigEndian.Uint32(b)
		x := extent{binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[12:])}
		if uint64(id) < next || !x.real() {
			return nil, fmt.Errorf("%w: region %d of metadata is out of order, or no run of bytes", transfer.ErrInvalid, id)
		}
		e.regions[id] = x
		next = uint64(id) + 1
		b = b[entrySize:]
	}
	return b, nil
}
