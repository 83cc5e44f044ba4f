package sim

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// EncodingConfig is how the engine exchanges encodings of images with others: as files, as with vLLM's ECExampleConnector, or fetched from
// the encoder, as with its ECCPUConnector and ec_enable_nixl.
type EncodingConfig struct {
	// Role has the names of the engine's ec_role; default: images are encoded by each engine itself.
	Role EncodingRole
	// Store is the folder that engines share: an encoding is a file in it.
	Store string
	// Fetch, instead of Store, keeps encodings in the encoder's memory, from which readers fetch them by what the encoder has announced.
	Fetch bool
	// Address is the host:port where an encoder with Fetch serves readers; default: a free port of 127.0.0.1.
	Address string
	// Keep is how many encodings an engine with Fetch has in memory; default 256. An encoder announces no address of others.
	Keep int
}

// EncodingRole is an engine's side of an exchange of encodings.
type EncodingRole string

// The roles. An encoder encodes, and generates nothing.
const (
	Encoder        EncodingRole = "ec_producer"
	EncodingReader EncodingRole = "ec_consumer"
)

// Image is an image of a prompt, or a reference to its encoding.
type Image struct {
	Hash      string // of its content, in hex digits; or what the client calls it
	Reference bool
	Grid      []int           // of a reference
	Source    *EncodingSource // where an encoder said that its encoding can be fetched; nil: nowhere
}

// ImageGrid is the size of every image, in patches: images are not decoded here.
var ImageGrid = []int{1, 4, 4}

// imageTokens is how many tokens of a prompt an image of that size takes.
const imageTokens = 4

// Encode returns the tokens of images. They are drawn from the image's hash, or are what the file of its encoding says, so that the
// answer proves which encoding was read. kvComes says that the KV of the prompt comes from another engine, so that no encoding is
// needed. As the real engine, it dies of a reference whose encoding it does not find, or whose size is wrong; the error is ErrDead. The error
// ErrNoEncoding is that of a reference that could not be fetched from where the request says.
func (e *Engine) Encode(images []Image, kvComes bool) ([]int, error) {
	var tokens []int
	for _, i := range images {
		one, err := e.encode(i, kvComes)
		if errors.Is(err, ErrNoEncoding) {
			return nil, err
		}
		if err != nil {
			e.Kill(fmt.Errorf("encoding an image: %w", err))
			return nil, ErrDead
		}
		tokens = append(tokens, one...)
	}
	return tokens, nil
}

func (e *Engine) encode(i Image, kvComes bool) ([]int, error) {
	if i.Reference && !slices.Equal(i.Grid, ImageGrid) {
		return nil, fmt.Errorf("its reference says %v, and it is %v", i.Grid, ImageGrid)
	}
	own := drawTokens(i.Hash, e.cfg.Model.Vocabulary)
	switch {
	case e.cfg.Encoding.Role == Encoder && !i.Reference:
		if f := e.connector.fetched; f != nil {
			f.keep(i.Hash, own)
			return own, nil
		}
		return own, e.writeEncoding(i.Hash, own)
	case kvComes:
		return own, nil
	case e.cfg.Encoding.Role == EncodingReader && e.cfg.Encoding.Fetch:
		return e.fetch(i)
	case e.cfg.Encoding.Role == EncodingReader:
		if read, err := e.readEncoding(i.Hash); err == nil || i.Reference {
			return read, err
		}
	case i.Reference:
		return nil, errors.New("a reference, and no connector that finds what it names")
	}
	return own, nil
}

// drawTokens returns the tokens of an image, none of them a special one.
func drawTokens(hash string, vocabulary int) []int {
	const special = 8
	digest := sha256.Sum256([]byte(hash))
	tokens := make([]int, imageTokens)
	for i := range tokens {
		tokens[i] = special + (int(digest[2*i])<<8|int(digest[2*i+1]))%(vocabulary-special)
	}
	return tokens
}

// encodingFile is the name of the file, in a folder that is named by the hash.
const encodingFile = "encoder_cache.json"

func (e *Engine) writeEncoding(hash string, tokens []int) error {
	if !isHex(hash) {
		return fmt.Errorf("it is named %q, and not by a hash", hash)
	}
	dir := filepath.Join(e.cfg.Encoding.Store, hash)
	content, err := json.Marshal(tokens)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, encodingFile), content, 0o644)
	}
	return err
}

func (e *Engine) readEncoding(hash string) (tokens []int, err error) {
	if !isHex(hash) {
		return nil, fmt.Errorf("it is named %q, and not by a hash", hash)
	}
	content, err := os.ReadFile(filepath.Join(e.cfg.Encoding.Store, hash, encodingFile))
	if err == nil {
		err = json.Unmarshal(content, &tokens)
	}
	return tokens, err
}

func isHex(name string) bool { return name != "" && strings.Trim(name, "0123456789abcdef") == "" }
