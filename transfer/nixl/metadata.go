package nixl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/transfer"
)

// Metadata of an agent is a magic word and a list of items. Each item is a tag, its length in bytes (8, little-endian), the
// bytes, and a bar. The first is the agent's name, which is all that this package reads.
const (
	metadataMagic = "nixlSerDes|"
	nameTag       = "Agent"
	// MaxMetadata is the longest metadata that is loaded, in bytes. An agent needs about 500, and 44 for every region.
	MaxMetadata = 16 << 20
)

// agentName returns the name in metadata, which may be any bytes.
func agentName(metadata []byte) (string, error) {
	if len(metadata) > MaxMetadata {
		return "", fmt.Errorf("%w: metadata of %d bytes, at most %d", transfer.ErrInvalid, len(metadata), MaxMetadata)
	}
	rest, ok := bytes.CutPrefix(metadata, []byte(metadataMagic+nameTag))
	if !ok || len(rest) < 8 {
		return "", fmt.Errorf("%w: not the metadata of a NIXL agent", transfer.ErrInvalid)
	}
	size := binary.LittleEndian.Uint64(rest)
	if size > transfer.MaxName || size > uint64(len(rest)-8) {
		return "", fmt.Errorf("%w: an agent's name of %d bytes", transfer.ErrInvalid, size)
	}
	// The library must not get metadata that is cut off: it stores a part of it, cannot forget that, and later refuses the whole
	// one.
	if metadata[len(metadata)-1] != '|' {
		return "", fmt.Errorf("%w: metadata is cut off", transfer.ErrInvalid)
	}
	name := string(rest[8 : 8+size])
	return name, checkName(name, name)
}

// checkName refuses a name that is empty, or cannot be a C string. unique is the whole name, whose length counts.
func checkName(name, unique string) error {
	if name == "" || len(unique) > transfer.MaxName || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: agent name %q: want 1 to %d bytes, none of them zero", transfer.ErrInvalid, name, transfer.MaxName)
	}
	return nil
}
