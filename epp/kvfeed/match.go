package kvfeed

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kvevents"
	"github.com/tandem-serving/tandem/epp/kvhash"
	"github.com/tandem-serving/tandem/epp/kvindex"
)

// pendings is how many requests at once find the keys of their prompts again between Match and Presume; others hash them again.
const pendings = 64

// pending is the memory for matching one request.
type pending struct {
	mu      sync.Mutex
	request *epp.Request // whose chains they are; never dereferenced
	chains  []chain
	depths  kvindex.Depths
}

// chain is the keys of a prompt's blocks, of one length.
type chain struct {
	blockTokens int
	keys        []kvindex.Key
}

// slot returns the memory for a request, which is locked.
func (f *Feed) slot(r *epp.Request) *pending {
	p := &f.pending[uintptr(unsafe.Pointer(r))>>6%pendings]
	p.mu.Lock()
	return p
}

// cut cuts a prompt into blocks of the lengths that engines have.
func (f *Feed) cut(p *pending, r *epp.Request, prompt *epp.Prompt) {
	p.request = r
	roots := f.roots.Of(r.Model)
	if len(roots) == 0 {
		tokens := f.options.BlockTokens
		if tokens == 0 {
			tokens = usualBlock
		}
		roots = []kvevents.Root{{BlockTokens: tokens, Key: f.index.Seed().Root(tokens, nil)}}
	}
	if f.hasher != nil {
		f.name(p, roots, prompt)
		return
	}
	var salt uint64
	if prompt.Salt != "" {
		salt = f.index.Seed().Text(0, []byte(prompt.Salt))
	}
	p.chains = slices.Grow(p.chains[:0], len(roots))[:len(roots)]
	for i, root := range roots {
		c := &p.chains[i]
		c.blockTokens = root.BlockTokens
		c.keys = f.index.Seed().Append(c.keys[:0], root.Key, salt, root.BlockTokens, prompt.IDs)
	}
}

// name does the same where keys are the names that engines give to blocks.
func (f *Feed) name(p *pending, roots []kvevents.Root, prompt *epp.Prompt) {
	p.chains = slices.Grow(p.chains[:0], len(roots))[:len(roots)]
	for i, root := range roots {
		c := &p.chains[i]
		c.blockTokens = root.BlockTokens
		c.keys = f.hasher.Append(c.keys[:0], &kvhash.Prompt{Tokens: prompt.IDs, BlockTokens: root.BlockTokens, HashTokens: root.HashTokens,
			Adapter: root.Adapter, Salt: prompt.Salt})
	}
}

// Match sets Cached of every candidate: how many tokens of the prompt's beginning its engine has, as it has told, or will soon have; and Loads:
// those that are not in the accelerator's memory. It goes by the rank that has most, and by whole blocks. An engine always computes the last token, so it never uses the block that ends with it.
// Match returns how many tokens a candidate can have at most.
func (f *Feed) Match(r *epp.Request, prompt *epp.Prompt, c []epp.Candidate) (whole int) {
	p := f.slot(r)
	defer p.mu.Unlock()
	f.cut(p, r, prompt)
	for i := range c {
		c[i].Cached, c[i].Loads = 0, epp.Loads{}
	}
	members, now := *f.bySlot.Load(), int64(0)
	if f.options.Presume > 0 {
		now = f.now()
	}
	for k := range p.chains {
		chain := &p.chains[k]
		most := usable(prompt, chain)
		whole = max(whole, most*chain.blockTokens)
		if most == 0 {
			continue
		}
		f.index.Measure(chain.keys[:most], &p.depths)
		for i := range c {
			slot := c[i].Slot
			if slot >= len(members) || members[slot] == nil || !members[slot].Is(c[i].Endpoint) {
				continue
			}
			if has, _ := f.blocks(members[slot], &p.depths, now); has.all()*chain.blockTokens > c[i].Cached {
				c[i].Cached, c[i].Loads = has.tokens(chain.blockTokens)
			}
		}
	}
	return whole
}

// usable returns how many blocks of a prompt an engine can have: all but one that ends with the last token.
func usable(prompt *epp.Prompt, c *chain) int {
	return min(len(c.keys), (max(prompt.Tokens, len(prompt.IDs))-1)/c.blockTokens)
}

// TierOf returns the tier that a kind of memory is, in the words of engines.
func TierOf(medium string) (tier epp.Tier, known bool) {
	t, shared, known := kvevents.Medium([]byte(medium))
	if shared {
		return epp.SharedTier, true
	}
	return epp.Tier(t), known && medium != ""
}

// upTo is how many leading blocks an engine has in a tier or in a faster one.
type upTo [epp.Tiers]int

func (u *upTo) all() int { return u[epp.Tiers-1] }

// tokens returns how many tokens those are, and how many of them the engine must load.
func (u *upTo) tokens(each int) (cached int, loads epp.Loads) {
	for t := epp.CPUTier; t < epp.Tiers; t++ {
		loads.Set(t, (u[t]-u[t-1])*each)
	}
	return u.all() * each, loads
}

// blocks returns what a rank has of a prompt itself.
func (s *source) blocks(d *kvindex.Depths) (has upTo) {
	for t := range kvindex.Tiers {
		has[t] = d.UpTo(s.stream.Holder, t)
	}
	has[epp.SharedTier] = has[epp.DiskTier]
	return has
}

// blocks returns what a member has of a prompt: as its engine has told or, of what is in its accelerator's memory, as was presumed when prompts
// were sent there. presumed says that there is more of the latter.
func (f *Feed) blocks(m *member, d *kvindex.Depths, now int64) (has upTo, presumed bool) {
	shares := false
	for _, s := range *m.sources.Load() {
		one := s.blocks(d)
		if one.all() > has.all() || one.all() == has.all() && one[epp.GPUTier] > has[epp.GPUTier] {
			has = one
		}
		shares = shares || s.counts.Shared.Load()
	}
	if shares { // it has a connector to the store
		has[epp.SharedTier] = max(has[epp.SharedTier], d.Of(f.shared))
	}
	if f.options.Presume > 0 {
		soon := m.presumed.blocks(d, now, f.options.Presume)
		presumed = soon > has[epp.GPUTier]
		for t := range has {
			has[t] = max(has[t], soon)
		}
	}
	return has, presumed
}

// Presume notes that a request's prompt is sent to an endpoint: until its engine tells of the blocks, it is taken to have them.
func (f *Feed) Presume(r *epp.Request, prompt *epp.Prompt, e *epp.Endpoint) {
	if f.options.Presume == 0 {
		return
	}
	m := f.of(e)
	if m == nil {
		return
	}
	p := f.slot(r)
	defer p.mu.Unlock()
	if p.request != r { // another request has used the memory since Match
		f.cut(p, r, prompt)
	}
	now := f.now()
	for i := range p.chains {
		if len(p.chains[i].keys) > 0 {
			m.presumed.add(p.chains[i].keys, now, f.options.Presume)
		}
	}
}

// presumed is what an endpoint is taken to have because it was sent there. Blocks cannot be forgotten one by one, so they are in two
// generations: the older one is dropped as a whole.
type presumed struct {
	mu          sync.Mutex // held to add
	generations [2]*kvindex.Holder
	current     atomic.Int32
	since       atomic.Int64 // when the current generation began, as Feed.now tells
}

// longAgo is before all times that Feed.now tells.
const longAgo = math.MinInt64 / 2

// add adds the blocks of a prompt.
func (p *presumed) add(chain []kvindex.Key, now int64, presume time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if age := now - p.since.Load(); age >= int64(presume) {
		next := 1 - p.current.Load()
		p.generations[next].Clear()
		if age >= 2*int64(presume) {
			p.generations[1-next].Clear()
		}
		p.since.Store(now)
		p.current.Store(next)
	}
	p.generations[p.current.Load()].Claim(chain)
}

// clear forgets everything: the engine has restarted.
func (p *presumed) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.generations {
		g.Clear()
	}
}

// blocks returns how many leading blocks there are.
func (p *presumed) blocks(d *kvindex.Depths, now int64, presume time.Duration) (n int) {
	current, age := p.current.Load(), now-p.since.Load()
	if age < 2*int64(presume) {
		n = d.Of(p.generations[current])
	}
	if age < int64(presume) {
		n = max(n, d.Of(p.generations[1-current]))
	}
	return n
}

// How says how it is known what an endpoint has of a request's prompt: events, presumed, or "" if its engine has told nothing yet.
func (f *Feed) How(r *epp.Request, e *epp.Endpoint) string {
	m := f.of(e)
	if m == nil || len(r.Prompt.IDs) == 0 {
		return ""
	}
	p := f.slot(r)
	defer p.mu.Unlock()
	f.cut(p, r, &r.Prompt)
	most, soon := 0, false
	for i := range p.chains {
		c := &p.chains[i]
		f.index.Measure(c.keys[:usable(&r.Prompt, c)], &p.depths)
		if has, presumed := f.blocks(m, &p.depths, f.now()); has.all()*c.blockTokens > most {
			most, soon = has.all()*c.blockTokens, presumed
		}
	}
	if soon {
		return "presumed"
	}
	for _, s := range *m.sources.Load() {
		if s.heard.Load() > 0 {
			return "events"
		}
	}
	return ""
}
