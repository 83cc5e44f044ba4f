package chat

import (
	"bytes"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/epp/tokens/jinja"
)

// Messages are remembered by their JSON, with what the template gets of them, and so are tools, so that reading the next turn of a conversation only costs what
// is new in it. The template itself goes through all messages each time: what it makes of one may depend on those after it.
const (
	// knownBytes is how much memory a model's template takes at most for the messages that it remembers, and again for the tools.
	knownBytes = 32 << 20
	// messageOverhead is about what a message takes besides its text, which is there twice, and its values (bytes).
	messageOverhead = 512
	// valueBytes is about what a value in a message takes besides its text (bytes): an empty dictionary with its place in a list, or a member
	// of a dictionary with its key and its place in a map.
	valueBytes = 128
	// longest is how large a message may be, read or prepared (bytes): larger ones are not remembered.
	longest = knownBytes / shards / 16
	// shards are locked on their own.
	shards = 16
)

// message is a message, or a tool, that was read. It is not changed.
type message struct {
	by       *known // nil: it is not remembered
	text     []byte
	hash     uint64
	size     int // in memory (bytes), guarded by its shard
	read     *jinja.Dict
	prepared [variants]atomic.Pointer[jinja.Dict] // what a variant of the template gets, all of them of a tool, nil = it was not prepared yet
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
	m := &message{read: read, size: 2*len(text) + messageOverhead + valueBytes*values(read)}
	if m.size > longest {
		return m
	}
	m.by, m.text, m.hash = k, bytes.Clone(text), maphash.Bytes(seed, text)
	s := &k[m.hash%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	k.keep(m.hash, m)
	return m
}

// remember keeps what a variant of the template gets of a message that is remembered. It may be larger than what was read: arguments of tool
// calls are texts there, and objects here.
func (m *message) remember(variant int, prepared *jinja.Dict) {
	if m.by == nil {
		return
	}
	size := valueBytes*values(prepared) + 2*len(m.text) // JSON of a tool may be kept, with spaces
	if size > longest {
		return
	}
	s := &m.by[m.hash%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.prepared[variant].Swap(prepared) != nil {
		return
	}
	m.size += size
	if s.young[m.hash] == m {
		s.bytes += size
	}
}

// values returns how many values a value consists of.
func values(v jinja.Value) int {
	n := 1
	switch v := v.(type) {
	case *jinja.Dict:
		for _, key := range v.Keys() {
			member, _ := v.Get(key)
			n += values(member)
		}
	case *jinja.List:
		for _, item := range v.Items {
			n += values(item)
		}
	}
	return n
}

// keep puts a message into the young generation of its shard, which is locked.
func (k *known) keep(h uint64, m *message) {
	s := &k[h%shards]
	if s.young == nil || s.bytes+m.size > knownBytes/shards/2 {
		s.old, s.young, s.bytes = s.young, make(map[uint64]*message), 0
	}
	if before := s.young[h]; before != nil {
		s.bytes -= before.size
	}
	s.bytes += m.size
	s.young[h] = m
}
