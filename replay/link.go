package replay

import (
	"math"
	"time"
)

// Link is the network between engines. Every engine has a port of this bandwidth, which its transfers share evenly.
type Link struct {
	Bandwidth float64       // bytes in a second
	Latency   time.Duration // of every transfer, besides its bytes
	Handshake time.Duration // of the first transfer of a pair, besides its latency
}

// network carries the transfers.
type network struct {
	clock  *clock
	link   Link
	active []*transfer // in the order in which they began
	met    map[[2]*node]bool
	turn   int // of the next end: an earlier one is outdated
	at     time.Duration
	moved  float64 // bytes
}

// transfer is one KV cache on its way.
type transfer struct {
	from, to *node
	left     float64 // bytes
	rate     float64 // bytes in a second
	done     func()
}

// send moves bytes between two engines and calls done.
func (n *network) send(from, to *node, bytes float64, done func()) {
	wait := n.link.Latency
	if pair := [2]*node{from, to}; !n.met[pair] {
		n.met[pair] = true
		wait += n.link.Handshake
	}
	n.moved += bytes
	n.clock.after(wait, func() {
		n.progress()
		n.active = append(n.active, &transfer{from: from, to: to, left: bytes, done: done})
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
		t.rate = 0
		n.clock.after(0, t.done)
	}
	clear(n.active[len(left):])
	n.active = left
}

// share divides the bandwidth of each port evenly. A transfer is as fast as the slower of its two ports lets it be; what it leaves of
// the other one is not given to others.
func (n *network) share() {
	first := time.Duration(math.MaxInt64)
	for _, t := range n.active {
		if t.rate == 0 {
			t.from.sending++
			t.to.receiving++
		}
		t.rate = n.link.Bandwidth
	}
	for _, t := range n.active {
		t.rate = n.link.Bandwidth / float64(max(t.from.sending, t.to.receiving))
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
