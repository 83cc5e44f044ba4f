package engine

// cache counts the blocks of an engine's KV cache. A block belongs to one request, or to a part of a prompt that requests share. Parts
// that no request uses stay until their blocks are needed, the least recently used first.
type cache struct {
	total, own int // blocks; own: of requests alone
	each       int // blocks of a part
	parts      map[uint64]*part
	used       int  // parts that requests use
	unused     part // head of a ring of the others, the least recently used first
}

// part is a part of a prompt whose KV is in the cache.
type part struct {
	id         uint64
	requests   int
	prev, next *part // in the ring, if requests is 0
}

func newCache(blocks, each int) *cache {
	c := &cache{total: blocks, each: each, parts: map[uint64]*part{}}
	c.unused.prev, c.unused.next = &c.unused, &c.unused
	return c
}

// free returns how many blocks can be taken: those that no request uses.
func (c *cache) free() int { return c.total - c.own - c.used*c.each }

// take gives n blocks to a request. The caller has asked free.
func (c *cache) take(n int) {
	c.own += n
	for c.own+len(c.parts)*c.each > c.total {
		oldest := c.unused.next
		c.remove(oldest)
		delete(c.parts, oldest.id)
	}
}

// put takes the blocks of a part back from the request that computed it, which uses the part from now on. It reports false if the
// cache has the part already: then the request keeps its blocks.
func (c *cache) put(id uint64) (*part, bool) {
	if c.parts[id] != nil {
		return nil, false
	}
	p := &part{id: id, requests: 1}
	c.parts[id] = p
	c.own -= c.each
	c.used++
	return p, true
}

// find returns the parts that the cache has of the beginning of a prompt.
func (c *cache) find(ids []uint64, dst []*part) []*part {
	for _, id := range ids {
		p := c.parts[id]
		if p == nil {
			break
		}
		dst = append(dst, p)
	}
	return dst
}

// use has a request use parts.
func (c *cache) use(parts []*part) {
	for _, p := range parts {
		if p.requests++; p.requests == 1 {
			c.remove(p)
			c.used++
		}
	}
}

// leave ends a request's use of parts. The last part becomes the least recently used one, as in vLLM: without the parts before it, it
// is worth nothing.
func (c *cache) leave(parts []*part) {
	for i := len(parts) - 1; i >= 0; i-- {
		p := parts[i]
		if p.requests--; p.requests == 0 {
			c.used--
			p.prev, p.next = c.unused.prev, &c.unused
			p.prev.next, c.unused.prev = p, p
		}
	}
}

func (c *cache) remove(p *part) {
	p.prev.next, p.next.prev = p.next, p.prev
	p.prev, p.next = nil, nil
}
