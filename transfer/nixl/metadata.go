package nixl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/transfer"
)

// Metadata of an agent is a list of items behind a magic word. Each item is a tag, its length in bytes (8, little-endian),
// the bytes, and a bar. The first is the agent's name. Only that is read here: the library reads the rest.
const (
	metadataMagic = "nixlSerDes|"
	nameTag       = "Agent"
	// MaxMetadata is the longest metadata that is loaded, in bytes. An agent needs about 500, and 44 for every region.
	MaxMetadata = 16 << 20
)

// agentName returns the name in metadata, which is not trusted.
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
	// Of metadata that is cut off the library keeps a part that it cannot be made to forget: it refuses the whole one after.
	if metadata[len(metadata)-1] != '|' {
		return "", fmt.Errorf("%w: metadata is cut off", transfer.ErrInvalid)
	}
	name := string(rest[8 : 8+size])
	return name, checkName(name, name)
}

// checkName refuses what cannot be a C string, or is empty. unique is the whole name that counts for the length.
func checkName(name, unique string) error {
	if name == "" || len(unique) > transfer.MaxName || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: agent name %q: want 1 to %d bytes, none of them zero", transfer.ErrInvalid, name, transfer.MaxName)
	}
	return nil
}
