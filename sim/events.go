package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// EventsConfig is where the engine publishes what enters and leaves its prefix cache, in the form of vLLM.
type EventsConfig struct {
	// Publish is the host:port of the PUB socket; default: the engine publishes nothing.
	Publish string
	// Replay is the host:port of the ROUTER socket that sends the last 10,000 messages again; default: it sends none again.
	Replay string
	// Topic is that of all messages.
	Topic string
}

// ErrEvents means that a socket of EventsConfig cannot be opened.
var ErrEvents = errors.New("opening the sockets for KV events")

// KeptMessages is how many messages can be replayed: the real engine's default.
const KeptMessages = 10_000

// events publishes KV events. Only the engine's loop calls stored, removed and flush.
type events struct {
	topic     []byte
	blockSize int
	publisher zmtp.Publisher
	listener  net.Listener
	replays   net.Listener // nil = it is not served

	batch []byte // the events of this step
	count int

	mu   sync.Mutex
	next uint64   // number of the next message
	kept [][]byte // the last messages; those before next
}

// openEvents opens the sockets. It returns nil if nothing is to be published.
func openEvents(cfg *Config) (*events, error) {
	if cfg.Events.Publish == "" {
		return nil, nil
	}
	e := &events{topic: []byte(cfg.Events.Topic), blockSize: cfg.KV.BlockSize}
	var err error
	if e.listener, err = net.Listen("tcp", cfg.Events.Publish); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEvents, err)
	}
	if cfg.Events.Replay == "" {
		return e, nil
	}
	if e.replays, err = net.Listen("tcp", cfg.Events.Replay); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrEvents, err), e.listener.Close())
	}
	return e, nil
}

// work returns what serves the sockets.
func (e *events) work(failed func(error)) (work []func(context.Context)) {
	work = append(work, func(ctx context.Context) {
		if err := e.publisher.Serve(ctx, e.listener); err != nil {
			failed(err)
		}
	})
	if e.replays != nil {
		work = append(work, func(ctx context.Context) {
			if err := zmtp.Reply(ctx, e.replays, e.replay); err != nil {
				failed(err)
			}
		})
	}
	return work
}

// The end of a replay is a message with this number.
const endOfReplay = math.MaxUint64

// replay answers a request for the messages from a number on.
func (e *events) replay(request [][]byte, send func(...[]byte) error) error {
	if len(request) != 2 || len(request[1]) != 8 {
		return nil // the real engine logs it and answers nothing
	}
	start := binary.BigEndian.Uint64(request[1])
	e.mu.Lock()
	first := e.next - uint64(len(e.kept))
	kept := e.kept // its messages do not change
	e.mu.Unlock()
	for i, payload := range kept {
		if n := first + uint64(i); n >= start {
			if err := send(nil, e.topic, binary.BigEndian.AppendUint64(nil, n), payload); err != nil {
				return err
			}
		}
	}
	return send(nil, nil, binary.BigEndian.AppendUint64(nil, endOfReplay), nil)
}

// BlockName is what KV events call a block.
func BlockName(h kv.Hash) uint64 { return binary.BigEndian.Uint64(h[len(h)-8:]) }

// stored tells of blocks that have entered the prefix cache.
func (e *events) stored(s *core.Sequence, first int, hashes []kv.Hash) {
	e.count++
	n := len(hashes) - first
	b := append(e.batch, 0x8b) // a map of 11
	b = appendText(appendText(b, "type"), "BlockStored")
	b = appendLength(appendText(b, "block_hashes"), n)
	for _, h := range hashes[first:] {
		b = appendName(b, h)
	}
	b = appendText(b, "parent_block_hash")
	if first > 0 {
		b = appendName(b, hashes[first-1])
	} else {
		b = append(b, packedNil)
	}
	b = appendLength(appendText(b, "token_ids"), n*e.blockSize)
	for _, id := range s.Tokens[first*e.blockSize : len(hashes)*e.blockSize] {
		b = appendNumber(b, uint32(id))
	}
	b = appendNumber(appendText(b, "block_size"), uint32(e.blockSize))
	b = append(appendText(b, "lora_id"), packedNil)
	b = appendText(appendText(b, "medium"), "GPU")
	b = append(appendText(b, "lora_name"), packedNil)
	b = appendLength(appendText(b, "extra_keys"), n)
	for i := range n {
		if first+i == 0 && s.Salt != "" {
			b = appendText(appendLength(b, 1), s.Salt)
		} else {
			b = append(b, packedNil)
		}
	}
	b = appendNumber(appendText(b, "group_idx"), 0)
	e.batch = appendText(appendText(b, "kv_cache_spec_kind"), "full_attention")
}

// offloaded tells of a block that was copied to the host's memory. vLLM's OffloadingConnector names such blocks, and does not describe them.
func (e *events) offloaded(h kv.Hash) {
	e.count++
	b := append(e.batch, 0x89) // a map of 9
	b = appendText(appendText(b, "type"), "BlockStored")
	b = appendName(appendLength(appendText(b, "block_hashes"), 1), h)
	b = append(appendText(b, "parent_block_hash"), packedNil)
	b = appendLength(appendText(b, "token_ids"), 0)
	b = appendNumber(appendText(b, "block_size"), 0)
	b = append(appendText(b, "lora_id"), packedNil)
	b = appendText(appendText(b, "medium"), "CPU")
	b = append(appendText(b, "lora_name"), packedNil)
	e.batch = appendNumber(appendText(b, "group_idx"), 0)
}

// removed tells of a block that has left the prefix cache.
func (e *events) removed(h kv.Hash) { e.left(h, "GPU") }

// dropped tells of a block that has left the host's memory.
func (e *events) dropped(h kv.Hash) { e.left(h, "CPU") }

func (e *events) left(h kv.Hash, medium string) {
	e.count++
	b := append(e.batch, 0x84) // a map of 4
	b = appendText(appendText(b, "type"), "BlockRemoved")
	b = appendName(appendLength(appendText(b, "block_hashes"), 1), h)
	b = appendText(appendText(b, "medium"), medium)
	e.batch = appendNumber(appendText(b, "group_idx"), 0)
}

// cleared tells that the prefix cache is empty. Like the real engine, which publishes in its steps only, this is told with the next one.
func (e *events) cleared() {
	e.count++
	e.batch = appendText(appendText(append(e.batch, 0x81), "type"), "AllBlocksCleared") // a map of 1
}

// flush publishes the events of a step in one message.
func (e *events) flush(now time.Time) {
	if e.count == 0 {
		return
	}
	b := binary.BigEndian.AppendUint64([]byte{0x93, 0xcb}, math.Float64bits(float64(now.UnixMicro())/1e6)) // an array of 3, a float
	b = append(appendLength(b, e.count), e.batch...)
	b = append(b, 0) // the rank
	e.batch, e.count = e.batch[:0], 0
	e.mu.Lock()
	defer e.mu.Unlock()
	e.publisher.Publish(e.topic, binary.BigEndian.AppendUint64(nil, e.next), b)
	if e.next++; len(e.kept) == KeptMessages {
		e.kept = e.kept[1:]
	}
	e.kept = append(e.kept, b)
}

// MessagePack, in the shortest forms, which the real engine writes.
const packedNil = 0xc0

func appendText(b []byte, text string) []byte {
	switch n := len(text); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n < 1<<8:
		b = append(b, 0xd9, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, text...)
}

// appendLength begins an array.
func appendLength(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}

func appendNumber(b []byte, n uint32) []byte {
	switch {
	case n < 1<<7:
		return append(b, byte(n))
	case n < 1<<8:
		return append(b, 0xcc, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xce), n)
}

func appendName(b []byte, h kv.Hash) []byte {
	return append(append(b, 0xcf), h[len(h)-8:]...)
}

// EventAddresses returns the host:port of the sockets for KV events and for replays; "" = none.
func (e *Engine) EventAddresses() (publish, replay string) {
	ev := e.connector.events
	if ev == nil {
		return "", ""
	}
	if ev.replays != nil {
		replay = ev.replays.Addr().String()
	}
	return ev.listener.Addr().String(), replay
}

// OffloadedBlocks returns what KV events call the blocks that the host's memory has now.
func (e *Engine) OffloadedBlocks() (names map[uint64]bool) {
	names = map[uint64]bool{}
	e.core.Call(func() { e.core.Host().Hashes(func(h kv.Hash) { names[BlockName(h)] = true }) })
	return names
}

// CachedBlocks returns what KV events call the blocks that the prefix cache has now.
func (e *Engine) CachedBlocks() (names map[uint64]bool) {
	names = map[uint64]bool{}
	e.core.Call(func() { e.core.Pool().Hashes(func(h kv.Hash) { names[BlockName(h)] = true }) })
	return names
}
