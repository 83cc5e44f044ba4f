package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"time"
)

// Link is the network between engines. Every engine has a port, which its transfers share evenly.
type Link struct {
	Bandwidth float64       // bytes in a second
	Latency   time.Duration // of every transfer, besides its bytes
	Handshake time.Duration // of the first transfer of a pair, besides its latency
	Loss      float64       // share of the transfers that fail when their bytes have been sent
	Stalls    float64       // share of the transfers that stand still for Stall before their bytes are sent
	Stall     time.Duration
}

// Problem returns why there cannot be such a link; nil if there can.
func (l *Link) Problem() error {
	share := func(v float64) bool { return v >= 0 && v <= 1 }
	switch {
	case !(l.Bandwidth > 0 && l.Bandwidth < math.Inf(1)):
		return fmt.Errorf("a bandwidth of %.4g GB/s is not positive", l.Bandwidth/1e9)
	case l.Latency < 0 || l.Handshake < 0 || l.Stall < 0:
		return fmt.Errorf("a latency of %v, a handshake of %v or a stall of %v is negative", l.Latency, l.Handshake, l.Stall)
	case !share(l.Loss) || !share(l.Stalls):
		return fmt.Errorf("a loss of %v or a share of stalls of %v is no share from 0 to 1", l.Loss, l.Stalls)
	case (l.Stalls > 0) != (l.Stall > 0):
		return fmt.Errorf("a share of stalls of %v and a stall of %v belong together", l.Stalls, l.Stall)
	}
	return nil
}

// Pair says what link leads from some engines to others. Its bandwidth is shared by the transfers of two engines, and is not above that of
// their ports.
type Pair struct {
	From, To string // patterns of path.Match for names of engines such as prefill-0, or zones
	Link     Link
}

// Zone is a place where engines are. The picker sees it as a label of the endpoints.
type Zone struct {
	Name    string
	Engines []string // patterns of names
}

// zoneLabel is the label of endpoints that names their zone.
const zoneLabel = "topology.kubernetes.io/zone"

// matches reports whether a pattern, which checkNetwork has seen, names an engine.
func matches(pattern, name string) bool {
	ok, _ := path.Match(pattern, name)
	return ok
}

// zoneOf returns the zone of an engine, "" if it has none.
func zoneOf(all []Zone, name string) string {
	for _, z := range all {
		if slices.ContainsFunc(z.Engines, func(pattern string) bool { return matches(pattern, name) }) {
			return z.Name
		}
	}
	return ""
}

// Knows reports whether a pattern of a Pair or of a Zone stands for an engine of the pool.
func (o *Options) Knows(pattern string) (known bool) {
	o.Pool.each(func(name, _ string) {
		known = known || matches(pattern, name) || zoneOf(o.Zones, name) == pattern && pattern != ""
	})
	return known
}

// checkNetwork returns why the network cannot be that of any pool; nil if it can.
func (o *Options) checkNetwork() error {
	if err := o.Link.Problem(); err != nil {
		return err
	}
	for _, z := range o.Zones {
		for _, pattern := range z.Engines {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				return fmt.Errorf("zone %s: %q is no pattern of names", z.Name, pattern)
			}
		}
	}
	for i, p := range o.Pairs {
		for _, pattern := range []string{p.From, p.To} {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				return fmt.Errorf("link %d: %q is no zone and no pattern of names", i+1, pattern)
			}
		}
		if err := p.Link.Problem(); err != nil {
			return fmt.Errorf("link %d: %w", i+1, err)
		}
		if p.Link.Bandwidth > o.Link.Bandwidth {
			return fmt.Errorf("link %d has %.4g GB/s, more than the %.4g of an engine's port", i+1, p.Link.Bandwidth/1e9, o.Link.Bandwidth/1e9)
		}
	}
	return nil
}

// network carries the transfers.
type network struct {
	clock  *clock
	random *rand.Rand
	link   Link
	others []Pair
	pairs  map[[2]*node]*pair
	active []*transfer // in the order in which they began
	turn   int         // of the next end: an earlier one is outdated
	at     time.Duration
	moved  float64 // bytes
}

// pair is two engines, of which one has sent something to the other.
type pair struct {
	link   Link
	active int // transfers
}

// transfer is one KV cache on its way.
type transfer struct {
	from, to *node
	pair     *pair
	left     float64 // bytes
	rate     float64 // bytes in a second
	done     func()
}

// between returns the pair of two engines, and whether they have not met before.
func (n *network) between(from, to *node) (p *pair, first bool) {
	if p = n.pairs[[2]*node{from, to}]; p != nil {
		return p, false
	}
	p = &pair{link: n.link}
	for i := range n.others {
		if o := &n.others[i]; from.in(o.From) && to.in(o.To) {
			p.link = o.Link
			break
		}
	}
	n.pairs[[2]*node{from, to}] = p
	return p, true
}

// in reports whether a pattern of a Pair stands for the engine.
func (n *node) in(pattern string) bool {
	return n.zone != "" && n.zone == pattern || matches(pattern, n.name)
}

// send moves bytes between two engines and calls done; ok is false if the transfer has failed.
func (n *network) send(from, to *node, bytes float64, done func(ok bool)) {
	p, first := n.between(from, to)
	wait := p.link.Latency
	if first {
		wait += p.link.Handshake
	}
	if p.link.Stalls > 0 && n.random.Float64() < p.link.Stalls {
		wait += p.link.Stall
	}
	ok := p.link.Loss == 0 || n.random.Float64() >= p.link.Loss
	n.moved += bytes
	n.clock.after(wait, func() {
		n.progress()
		n.active = append(n.active, &transfer{from: from, to: to, pair: p, left: bytes, done: func() { done(ok) }})
		n.share()
	})
}

// progress notes what was moved since the rates changed, and ends what is complete.
func (n *network) progress() {
	elapsed := (n.clock.now - n.at).Seconds()
	n.at = n.clock.now
	left := n.active[:0]
	for _, t := range n.active {
		if t.left -= t.rate * elapsed; t.left > 0.5 {
			left = append(left, t)
			continue
		}
		t.from.sending--
		t.to.receiving--
		t.pair.active--
		t.rate = 0
		n.clock.after(0, t.done)
	}
	clear(n.active[len(left):])
	n.active = left
}

// share divides the bandwidth of each port and of each pair evenly. A transfer is as fast as the slowest of them lets it be; what it leaves
// of the others is not given to others.
func (n *network) share() {
	first := time.Duration(math.MaxInt64)
	for _, t := range n.active {
		if t.rate == 0 {
			t.from.sending++
			t.to.receiving++
			t.pair.active++
		}
		t.rate = n.link.Bandwidth
	}
	for _, t := range n.active {
		t.rate = min(n.link.Bandwidth/float64(max(t.from.sending, t.to.receiving)), t.pair.link.Bandwidth/float64(t.pair.active))
		first = min(first, time.Duration(math.Ceil(t.left/t.rate*1e9)))
	}
	n.turn++
	if turn := n.turn; len(n.active) > 0 {
		n.clock.after(first, func() {
			if n.turn == turn {
				n.progress()
				n.share()
			}
		})
	}
}
