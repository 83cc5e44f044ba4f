package kvevents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/epp/kvindex"
)

// Kind is what an event says.
type Kind uint8

// The kinds of events.
const (
	Stored  Kind = iota // the cache has blocks
	Removed             // it has dropped blocks
	Cleared             // it has dropped all
)

// Event is one event. Its slices are valid until the next one is read.
type Event struct {
	Kind        Kind
	Names       []uint64 // of blocks: the last eight bytes of the engine's hash
	HasParent   bool
	Parent      uint64 // the block before the first one
	Tokens      []uint32
	BlockTokens int
	// Adapter is the LoRA adapter that computed the blocks, "" = none. AdapterID says so where the engine has only numbers for them.
	Adapter      []byte
	AdapterID    int64
	HasAdapterID bool
	// Extras is what each block depends on beside its tokens and the adapter, hashed; 0 = nothing. nil = nothing.
	Extras []uint64
	// Medium is where the blocks are, as the engine writes it; none = GPU.
	Medium []byte
	// Group is the number of the layers' group of a hybrid model, -1 = the engine tells none. Attention is its kind.
	Group     int
	Attention []byte
	// Remote says that the blocks are in a store that several engines share.
	Remote bool

	names []byte // the message from the names on
	salt  []byte
	extra cursor // raw extra keys
	pairs bool   // tokens are pairs
}

// ErrBatch means that a message is no batch of events.
var ErrBatch = errors.New("not a batch of KV events")

// Batch is what a message says beside its events.
type Batch struct {
	At      float64 // seconds since 1970, by the engine's clock
	Rank    int     // of the data-parallel engine, -1 = not told
	Events  int     // that were read
	Skipped int     // events that are of no known kind, or not as they should be

	Replayed bool // the engine had sent it before, and was asked for it again
}

// Decoder decodes messages. It can be used again, but not by several goroutines at once.
type Decoder struct {
	Seed  kvindex.Seed // by which extras are hashed
	event Event
}

// Decode reads a batch and calls each for its events, in their order. The error is ErrBatch; events before it were read.
func (d *Decoder) Decode(payload []byte, each func(*Event)) (b Batch, err error) {
	b.Rank = -1
	c := cursor{payload}
	if err := d.batch(&c, &b, each); err != nil {
		return b, fmt.Errorf("%w: %w", ErrBatch, err)
	}
	return b, nil
}

func (d *Decoder) batch(c *cursor, b *Batch, each func(*Event)) error {
	h, err := c.header()
	if err != nil {
		return err
	}
	if h.kind != isArray && h.kind != isMap || h.kind == isArray && h.n < 2 {
		return errForm
	}
	for i := range h.n {
		field := i
		if h.kind == isMap {
			name, err := c.text()
			if err != nil {
				return err
			}
			switch string(name) {
			case "ts":
				field = 0
			case "events":
				field = 1
			case "data_parallel_rank", "attn_dp_rank":
				field = 2
			default:
				field = math.MaxUint64
			}
		}
		if err := d.batchField(c, field, b, each); err != nil {
			return err
		}
	}
	return nil
}

func (d *Decoder) batchField(c *cursor, field uint64, b *Batch, each func(*Event)) error {
	switch field {
	case 0:
		h, err := c.header()
		if err != nil {
			return err
		}
		switch h.kind {
		case isFloat:
			b.At = math.Float64frombits(h.n)
		case isUint:
			b.At = float64(h.n)
		default:
			return errForm
		}
		return nil
	case 1:
		return d.events(c, b, each)
	case 2:
		rank, ok, err := c.integer()
		if ok && rank >= 0 && rank < math.MaxInt32 {
			b.Rank = int(rank)
		}
		return err
	}
	_, err := c.skip()
	return err
}

func (d *Decoder) events(c *cursor, b *Batch, each func(*Event)) error {
	n, err := c.array()
	if err != nil {
		return err
	}
	for n > 0 {
		before := *c
		n--
		if err := d.one(c); err == nil {
			more := d.alike(c, before, n)
			n -= more
			b.Events += 1 + more
			each(&d.event)
			continue
		}
		b.Skipped++
		*c = before
		if _, err := c.skip(); err != nil {
			return err
		}
	}
	return nil
}

// alike reads up to n further events that differ from the one just read, which began at first, in the name of a dropped block only, and adds
// these names to it. Engines tell of each block that they drop by an event of its own, which takes longer to read than to apply.
func (d *Decoder) alike(c *cursor, first cursor, n int) (read int) {
	e := &d.event
	if e.Kind != Removed || len(e.Names) != 1 {
		return 0
	}
	at, size := oneName(e.names)
	if size == 0 {
		return 0
	}
	at += len(first.rest) - len(e.names)
	raw := first.rest[:len(first.rest)-len(c.rest)]
	head, tail := raw[:at], raw[at+size:]
	for ; read < n && len(c.rest) >= len(raw); read++ {
		next := c.rest[:len(raw)]
		if !bytes.Equal(next[:at], head) || !bytes.Equal(next[at+size:], tail) {
			break
		}
		e.Names = append(e.Names, binary.BigEndian.Uint64(next[at+size-8:]))
		c.rest = c.rest[len(raw):]
	}
	return read
}

// oneName returns where the only name in an array of names is, and its size in bytes; 0 = it is one that does not always have the same size.
func oneName(array []byte) (at, size int) {
	if len(array) < 3 || array[0] != 0x91 {
		return 0, 0
	}
	switch array[1] {
	case 0xcf, 0xd3: // integers of 64 bits
		return 2, 8
	case 0xc4: // fewer than 256 bytes
		return 3, int(array[2])
	}
	return 0, 0
}

// one reads an event.
func (d *Decoder) one(c *cursor) error {
	e := &d.event
	*e = Event{Names: e.Names[:0], Tokens: e.Tokens[:0], Extras: e.Extras[:0], Group: -1}
	h, err := c.header()
	switch {
	case err != nil:
		return err
	case h.kind == isMap:
		err = e.readMap(c, h.n)
	case h.kind == isArray && h.n > 0:
		err = e.readArray(c, h.n)
	default:
		return errForm
	}
	if err != nil || e.Kind != Stored {
		return err
	}
	if e.pairs {
		return errForm // the engine's blocks are of pairs of tokens: prompts have no such blocks
	}
	return d.extras(e)
}

// field is a member of an event.
type field uint8

const (
	unknown field = iota
	typeField
	namesField
	parentField
	tokensField
	blockSizeField
	adapterIDField
	mediumField
	adapterField
	extrasField
	groupField
	attentionField
	saltField
	localityField
)

// The members of events that are arrays, in their order.
var (
	storedFields  = []field{namesField, parentField, tokensField, blockSizeField, adapterIDField, mediumField, adapterField, extrasField, groupField, attentionField}
	removedFields = []field{namesField, mediumField, groupField}
)

// fieldOf returns the member of a name.
func fieldOf(name []byte) field {
	switch string(name) {
	case "type":
		return typeField
	case "block_hashes":
		return namesField
	case "parent_block_hash":
		return parentField
	case "token_ids":
		return tokensField
	case "block_size":
		return blockSizeField
	case "lora_id":
		return adapterIDField
	case "medium":
		return mediumField
	case "lora_name":
		return adapterField
	case "extra_keys":
		return extrasField
	case "group_idx":
		return groupField
	case "kv_cache_spec_kind":
		return attentionField
	case "cache_salt":
		return saltField
	case "locality":
		return localityField
	}
	return unknown
}

// readMap reads an event that is a map of n members.
func (e *Event) readMap(c *cursor, n uint64) error {
	typed := false
	for range n {
		name, err := c.text()
		if err != nil {
			return err
		}
		f := fieldOf(name)
		typed = typed || f == typeField
		if err := e.read(c, f); err != nil {
			return err
		}
	}
	if !typed {
		return errForm
	}
	return nil
}

// readArray reads an event that is an array of n elements, the first of which is the type.
func (e *Event) readArray(c *cursor, n uint64) error {
	if err := e.read(c, typeField); err != nil {
		return err
	}
	fields := storedFields
	if e.Kind != Stored {
		fields = removedFields
	}
	for i := range n - 1 {
		f := unknown
		if i < uint64(len(fields)) {
			f = fields[i]
		}
		if err := e.read(c, f); err != nil {
			return err
		}
	}
	return nil
}

func (e *Event) read(c *cursor, f field) (err error) {
	switch f {
	case typeField:
		return e.readType(c)
	case namesField:
		e.names = c.rest
		e.Names, err = c.names(e.Names)
	case parentField:
		e.Parent, e.HasParent, err = c.name()
	case tokensField:
		err = e.readTokens(c)
	case blockSizeField:
		e.BlockTokens, err = small(c)
	case adapterIDField:
		e.AdapterID, e.HasAdapterID, err = c.integer()
	case mediumField:
		e.Medium, err = c.text()
	case adapterField:
		err = e.readAdapter(c)
	case extrasField:
		e.extra.rest, err = c.skip()
	case groupField:
		before := *c
		if e.Group, err = small(c); err == nil && before.rest[0] == 0xc0 {
			e.Group = -1
		}
	case attentionField:
		e.Attention, err = c.text()
	case saltField:
		e.salt, err = c.text()
	case localityField:
		var where []byte
		where, err = c.text()
		e.Remote = string(where) == "REMOTE"
	default:
		_, err = c.skip()
	}
	return err
}

// small reads a number that is not negative and fits; nil is 0.
func small(c *cursor) (int, error) {
	v, _, err := c.integer()
	if err == nil && (v < 0 || v > math.MaxInt32) {
		err = errForm
	}
	return int(v), err
}

func (e *Event) readType(c *cursor) error {
	name, err := c.text()
	switch string(name) {
	case "BlockStored":
		e.Kind = Stored
	case "BlockRemoved":
		e.Kind = Removed
	case "AllBlocksCleared":
		e.Kind = Cleared
	default:
		if err == nil {
			err = errForm
		}
	}
	return err
}

// readTokens reads token ids. With speculative decoding, SGLang's blocks may be of pairs of them.
func (e *Event) readTokens(c *cursor) (err error) {
	before := *c
	if e.Tokens, err = c.tokens(e.Tokens); err == nil {
		return nil
	}
	*c, e.pairs = before, true
	_, err = c.skip()
	return err
}

// readAdapter reads the name of an adapter. Some versions of SGLang have a map with other members at its place.
func (e *Event) readAdapter(c *cursor) error {
	before := *c
	h, err := c.header()
	if err != nil || h.kind != isMap {
		*c = before
		e.Adapter, err = c.text()
		return err
	}
	for range h.n {
		name, err := c.text()
		if err != nil {
			return err
		}
		f := fieldOf(name)
		if f != saltField {
			f = unknown
		}
		if err := e.read(c, f); err != nil {
			return err
		}
	}
	return nil
}

// extras hashes what the blocks depend on. vLLM has a list for each block, which begins with the adapter's name, if there is one.
// SGLang has a salt for the first block of a prompt.
func (d *Decoder) extras(e *Event) error {
	if len(e.salt) > 0 && !e.HasParent && len(e.Names) > 0 {
		e.Extras = append(e.Extras, make([]uint64, len(e.Names))...)
		e.Extras[0] = d.Seed.Text(0, e.salt)
	}
	c := &e.extra
	if len(c.rest) == 0 {
		return nil
	}
	n, err := c.array()
	if err != nil || n == 0 {
		return err
	}
	if n != len(e.Names) {
		return errForm
	}
	some := false
	for len(e.Extras) < n {
		if b := c.rest; len(b) > 0 && b[0] == 0xc0 { // most blocks depend on nothing else
			e.Extras, c.rest = append(e.Extras, 0), b[1:]
			continue
		}
		h, err := d.extra(c, e.Adapter)
		if err != nil {
			return err
		}
		some = some || h != 0
		e.Extras = append(e.Extras, h)
	}
	if !some {
		e.Extras = e.Extras[:0]
	}
	return nil
}

// extra hashes the list of one block.
func (d *Decoder) extra(c *cursor, adapter []byte) (hash uint64, err error) {
	n, err := c.array()
	if err != nil {
		return 0, err
	}
	for i := range n {
		raw, err := c.skip()
		if err != nil {
			return 0, err
		}
		item := cursor{raw}
		if text, err := item.text(); err == nil && text != nil {
			if raw = text; i == 0 && len(adapter) > 0 && string(text) == string(adapter) {
				continue
			}
		}
		hash = d.Seed.Text(hash, raw)
	}
	return hash, nil
}
