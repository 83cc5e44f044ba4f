package chat

import (
	"bytes"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/epp/tokens/jinja"
)

// Messages are remembered by their JSON, with what the template gets of them, so that reading the next turn of a conversation only costs what
// is new in it. The template itself goes through all messages each time: what it makes of one may depend on those after it.
const (
	// knownBytes is how much memory a model's template takes at most for the messages that it remembers.
	knownBytes = 32 << 20
	// messageOverhead is about what a message takes besides its text, which is there twice (bytes).
	messageOverhead = 1 << 10
	// shards are locked on their own.
	shards = 16
)

// message is a message that was read. It is not changed.
type message struct {
	text     []byte
	read     *jinja.Dict
	prepared [variants]atomic.Pointer[jinja.Dict] // what a variant of the template gets, nil = it was not prepared yet
}

// known remembers messages. There are two generations: the older one is dropped as a whole when the younger one is full.
type known [shards]struct {
	mu         sync.Mutex
	young, old map[uint64]*message
	bytes      int // of the young
}

var seed = maphash.MakeSeed()

// Find implements jinja.Items.
func (k *known) Find(text []byte) jinja.Value {
	h := maphash.Bytes(seed, text)
	s := &k[h%shards]
	s.mu.Lock()
	m := s.young[h]
	if m == nil {
		if m = s.old[h]; m != nil {
			k.keep(h, m)
		}
	}
	s.mu.Unlock()
	if m == nil || !bytes.Equal(m.text, text) {
		return nil
	}
	return m
}

// Add implements jinja.Items.
func (k *known) Add(text []byte, read *jinja.Dict) jinja.Value {
	m := &message{read: read}
	if len(text) > knownBytes/shards/16 {
		return m
	}
	m.text = bytes.Clone(text)
	h := maphash.Bytes(seed, text)
	s := &k[h%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	k.keep(h, m)
	return m
}

// keep puts a message into the young generation of its shard, which is locked.
func (k *known) keep(h uint64, m *message) {
	s := &k[h%shards]
	size := 2*len(m.text) + messageOverhead
	if s.young == nil || s.bytes+size > knownBytes/shards/2 {
		s.old, s.young, s.bytes = s.young, make(map[uint64]*message), 0
	}
	if s.young[h] == nil {
		s.bytes += size
	}
	s.young[h] = m
}
