package engine

// host is the parts of prompts that are in the memory of an engine's host: copies of those in its prefix cache, which stay when these are removed.
// When it is full, the least recently used one goes.
type host struct {
	most  int // parts
	parts map[uint64]*part
	order part          // head of a ring, the least recently used first
	told  CacheListener // nil: it tells no one
}

func newHost(parts int, told CacheListener) *host {
	h := &host{most: parts, parts: map[uint64]*part{}, told: told}
	h.order.prev, h.order.next = &h.order, &h.order
	return h
}

// put copies a part, unless it is there.
func (h *host) put(id uint64) {
	if h.most == 0 || h.parts[id] != nil {
		return
	}
	if len(h.parts) == h.most {
		oldest := h.order.next
		oldest.unlink()
		delete(h.parts, oldest.id)
		h.tell(CacheChange{ID: oldest.id, Removed: true, Host: true})
	}
	p := &part{id: id}
	h.parts[id] = p
	p.append(&h.order)
	h.tell(CacheChange{ID: id, Host: true})
}

func (h *host) tell(c CacheChange) {
	if h.told != nil {
		h.told.CacheChanged(c)
	}
}

// find returns how many of the first parts of a chain are there.
func (h *host) find(ids []uint64) (n int) {
	for n < len(ids) && h.parts[ids[n]] != nil {
		n++
	}
	return n
}

// touch notes that parts of a prompt are used, as far as they are there: when its request is scheduled, and when it ends. The last part becomes the
// least recently used of them: without those before it, it is worth nothing.
func (h *host) touch(ids []uint64) {
	if len(h.parts) == 0 {
		return
	}
	for i := len(ids) - 1; i >= 0; i-- {
		if p := h.parts[ids[i]]; p != nil {
			p.unlink()
			p.append(&h.order)
		}
	}
}
