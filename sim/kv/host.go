package kv

import "container/list"

// Host is blocks in the memory of the engine's host: copies of those in the pool, which stay when these are taken for other content. When it is
// full, the least recently used one goes.
type Host struct {
	capacity int
	order    list.List // of hostBlock, least recently used first
	byHash   map[Hash]*list.Element

	// Stored is called with the hash of each block that enters, and Dropped with that of each that leaves. nil = they are not called.
	Stored, Dropped func(Hash)
}

type hostBlock struct {
	hash Hash
	data []byte
}

// NewHost makes space for so many blocks.
func NewHost(blocks int) *Host { return &Host{capacity: blocks, byHash: make(map[Hash]*list.Element)} }

// Put adds a block with a copy of its content, unless it is there. A Host without space takes none.
func (h *Host) Put(hash Hash, data []byte) {
	if h.capacity == 0 || h.byHash[hash] != nil {
		return
	}
	if h.order.Len() == h.capacity {
		oldest := h.order.Remove(h.order.Front()).(hostBlock).hash
		delete(h.byHash, oldest)
		if h.Dropped != nil {
			h.Dropped(oldest)
		}
	}
	h.byHash[hash] = h.order.PushBack(hostBlock{hash, append([]byte(nil), data...)})
	if h.Stored != nil {
		h.Stored(hash)
	}
}

// Touch notes that blocks are used, as far as they are there.
func (h *Host) Touch(hashes []Hash) {
	for _, hash := range hashes {
		if e := h.byHash[hash]; e != nil {
			h.order.MoveToBack(e)
		}
	}
}

// Find returns the content of the leading blocks of a chain that are there. It is not to be changed.
func (h *Host) Find(hashes []Hash) (data [][]byte) {
	for _, hash := range hashes {
		e := h.byHash[hash]
		if e == nil {
			break
		}
		data = append(data, e.Value.(hostBlock).data)
	}
	return data
}

// Hashes calls each for the hashes of all blocks, in any order.
func (h *Host) Hashes(each func(Hash)) {
	for hash := range h.byHash {
		each(hash)
	}
}
