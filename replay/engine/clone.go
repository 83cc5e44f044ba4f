package engine

// Clone copies an engine in its present state, with all its requests. What becomes of the copy does not change the engine; l is told of it, and not of
// changes of the prefix cache. The second result returns the copy of a request of the engine, also of one that no list of it has: whose KV cache is on
// its way, or whose blocks are kept until Release.
func (e *Engine) Clone(l Listener) (*Engine, func(*Request) *Request) {
	c := *e
	c.listen, c.sought, c.found, c.passed = l, nil, nil, nil
	c.loaded = append([]string(nil), e.loaded...)
	parts := map[*part]*part{}
	c.cache = e.cache.clone(parts)
	c.host = e.host.clone()
	requests := map[*Request]*Request{}
	of := func(r *Request) *Request {
		if had := requests[r]; had != nil {
			return had
		}
		one := *r
		one.Took = nil
		one.Traced = false
		one.parts = make([]*part, len(r.parts))
		for i, p := range r.parts {
			one.parts[i] = parts[p]
		}
		requests[r] = &one
		return &one
	}
	all := func(of func(*Request) *Request, list []*Request) []*Request {
		copies := make([]*Request, len(list))
		for i, r := range list {
			copies[i] = of(r)
		}
		return copies
	}
	c.running, c.late = all(of, e.running), all(of, e.late)
	c.waiting = queue{all: all(of, e.waiting.all[e.waiting.head:])}
	return &c, of
}

// clone copies the cache, and notes what each part became.
func (c *cache) clone(parts map[*part]*part) *cache {
	copied := *c
	copied.told, copied.parts = nil, make(map[uint64]*part, len(c.parts))
	copied.unused = part{}
	copied.unused.prev, copied.unused.next = &copied.unused, &copied.unused
	for id, p := range c.parts {
		one := &part{id: p.id, requests: p.requests}
		copied.parts[id], parts[p] = one, one
	}
	for p := c.unused.next; p != &c.unused; p = p.next {
		parts[p].append(&copied.unused)
	}
	return &copied
}

func (h *host) clone() *host {
	copied := newHost(h.most, nil)
	for p := h.order.next; p != &h.order; p = p.next {
		one := &part{id: p.id}
		copied.parts[p.id] = one
		one.append(&copied.order)
	}
	return copied
}
