package engine

// cache counts the blocks of an engine's KV cache. A block belongs to one request, or to a part of a prompt that requests share. Parts
// that no request uses stay until their blocks are needed, the least recently used first.
type cache struct {
	total, own int // blocks; own: of requests alone
	each       int // blocks of a part
	parts      map[uint64]*part
	removed    int           // parts that were removed so far
	used       int           // parts that requests use
	told       CacheListener // nil: it tells no one
	unused     part          // head of a ring of the others, the least recently used first
}

// part is a part of a prompt whose KV is in the cache.
type part struct {
	id         uint64
	requests   int
	gone       bool  // it is not in the cache any more
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
		oldest.unlink()
		delete(c.parts, oldest.id)
		oldest.gone = true
		c.removed++
		if c.told != nil {
			c.told.CacheChanged(CacheChange{ID: oldest.id, Removed: true})
		}
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

// find returns the parts that the cache has of the beginning of a prompt. found is what it returned for the same prompt before, so that a
// request that waits is not looked up anew in every step. Of a prompt, later parts are removed first: see leave.
func (c *cache) find(ids []uint64, found []*part) []*part {
	for len(found) > 0 && found[len(found)-1].gone {
		found = found[:len(found)-1]
	}
	for _, id := range ids[len(found):] {
		p := c.parts[id]
		if p == nil {
			break
		}
		found = append(found, p)
	}
	return found
}

// use has a request use parts.
func (c *cache) use(parts []*part) {
	for _, p := range parts {
		if p.requests++; p.requests == 1 {
			p.unlink()
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
			p.append(&c.unused)
		}
	}
}

// append puts a part at the end of a ring, in front of its head.
func (p *part) append(head *part) {
	p.prev, p.next = head.prev, head
	p.prev.next, head.prev = p, p
}

// unlink takes a part out of its ring.
func (p *part) unlink() {
	p.prev.next, p.next.prev = p.next, p.prev
	p.prev, p.next = nil, nil
}
