package replay

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Pool is how many engines there are of each role.
type Pool struct{ Prefill, Decode, Both int }

// Engines returns how many engines the pool has.
func (p Pool) Engines() int { return p.Prefill + p.Decode + p.Both }

// each calls f with the name and the role of each engine, in their order.
func (p Pool) each(f func(name, role string)) {
	for _, group := range []struct {
		n    int
		role string
	}{{p.Prefill, "prefill"}, {p.Decode, "decode"}, {p.Both, "both"}} {
		for i := range group.n {
			f(fmt.Sprintf("%s-%d", group.role, i), group.role)
		}
	}
}

// maxEngines bounds a pool.
const maxEngines = 4096

// UnmarshalText reads a pool such as 4P+12D: numbers of engines that prefill (P), decode (D), or do both (B).
func (p *Pool) UnmarshalText(text []byte) error {
	var read Pool
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), "+") {
		part = strings.TrimSpace(part)
		n, err := strconv.Atoi(strings.TrimRight(part, "PDBpdb"))
		if err != nil || n < 1 || n > maxEngines {
			return fmt.Errorf("%q is not a number of engines with their role, as in 4P+12D (P: prefill, D: decode, B: both)", part)
		}
		switch strings.ToUpper(part[len(part)-1:]) {
		case "P":
			read.Prefill += n
		case "D":
			read.Decode += n
		case "B":
			read.Both += n
		default:
			return fmt.Errorf("%q has no role: write P (prefill), D (decode) or B (both) behind the number, as in 4P+12D", part)
		}
	}
	switch {
	case read.Decode+read.Both == 0:
		return fmt.Errorf("%q has no engine that decodes: add some D or B, as in 4P+12D", text)
	case read.Engines() > maxEngines:
		return fmt.Errorf("%q has more than %d engines", text, maxEngines)
	}
	*p = read
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (p Pool) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String returns the pool as in 4P+12D.
func (p Pool) String() string {
	var parts []string
	for _, one := range []struct {
		n    int
		role string
	}{{p.Prefill, "P"}, {p.Decode, "D"}, {p.Both, "B"}} {
		if one.n > 0 {
			parts = append(parts, strconv.Itoa(one.n)+one.role)
		}
	}
	return strings.Join(parts, "+")
}

// loads are what a picker knows of the endpoints.
type loads struct {
	picker     *picker
	clock      *clock
	random     *rand.Rand
	pages      []*page       // by slot; of a slot whose engine has left, its page
	busy, idle time.Duration // between two readings of a page; 0: pages are not read
	current    *epp.Snapshot
	loads      []epp.Load // by slot
	changed    bool
	moved      bool // endpoints have joined or left since current
}

// page is the metrics page of an engine, as a picker reads it.
type page struct {
	node         *node
	endpoint     *epp.Endpoint // of this picker: no other one knows what it has in flight there
	last, coming time.Duration // readings
	turn         int           // of the coming one: an earlier one is outdated
	left         bool          // the endpoint has left the pool
}

// Snapshot returns what is known now.
func (l *loads) Snapshot() *epp.Snapshot {
	if !l.changed {
		return l.current
	}
	next := &epp.Snapshot{Version: l.current.Version + 1, Endpoints: l.current.Endpoints, Loads: make([]epp.Load, 0, len(l.pages))}
	if l.moved {
		next.Endpoints = nil
		for _, p := range l.pages {
			if !p.left {
				next.Endpoints = append(next.Endpoints, p.endpoint)
			}
		}
	}
	for _, e := range next.Endpoints {
		next.Loads = append(next.Loads, l.loads[e.Slot])
	}
	l.changed, l.moved, l.current = false, false, next
	return next
}

// join adds the page of an engine that joins the pool, in the place of one that had its slot before.
func (l *loads) join(n *node) {
	p := &page{node: n, endpoint: n.newEndpoint()}
	if n.slot < len(l.pages) {
		old := l.pages[n.slot]
		for _, observer := range l.picker.members {
			observer.EndpointLeft(old.endpoint)
		}
		l.pages[n.slot], l.loads[n.slot] = p, epp.Load{}
	} else {
		l.pages, l.loads = append(l.pages, p), append(l.loads, epp.Load{})
	}
	l.changed, l.moved = true, true
	for _, observer := range l.picker.members {
		observer.EndpointJoined(p.endpoint)
	}
}

// leave has the picker send nothing more to an engine.
func (l *loads) leave(n *node) {
	p := l.pages[n.slot]
	p.left, l.changed, l.moved = true, true, true
	for _, observer := range l.picker.members {
		observer.EndpointLeft(p.endpoint)
	}
}

// readFirst has the page of an engine that has just joined read at a random moment of the first interval.
func (l *loads) readFirst(p *page) {
	if l.busy > 0 {
		l.schedule(p, time.Duration(l.random.Float64()*float64(l.busy)))
	}
}

// read reads a page, and schedules the next reading.
func (l *loads) read(p *page) {
	now, n := l.clock.Now(), p.node
	waiting, delayed := n.engine.Waiting()
	load := epp.Load{At: now, Sent: p.endpoint.InFlight(), Cache: n.cache}
	load.Signals.Set(epp.Waiting, float64(waiting))
	load.Signals.Set(epp.Delayed, float64(delayed))
	load.Signals.Set(epp.Running, float64(n.engine.Running()))
	load.Signals.Set(epp.KVUsage, n.engine.Usage(l.clock.now))
	load.Signals.Set(epp.ReadTokens, float64(n.readTokens))
	load.Signals.Set(epp.ReadSeconds, n.readTime.Seconds())
	if most := n.kind.Engine.Adapters; most > 0 {
		running, waiting := n.engine.Adapters()
		load.LoRA = &epp.LoRA{Max: most, Running: running, Waiting: waiting}
	}
	load.LearnBatch(&l.loads[n.slot])
	l.loads[n.slot], l.changed = load, true
	l.picker.capacity()
	p.last = l.clock.now
	pause := l.idle
	if p.endpoint.InFlight().Requests > 0 || waiting+n.engine.Running() > 0 {
		pause = l.busy
	}
	l.schedule(p, l.spread(pause))
}

// woken reads the page of a node sooner, because a request was sent there. As in the picker, a page that is overdue is read at a random
// moment within half the interval.
func (l *loads) woken(n *node) {
	p := l.pages[n.slot]
	if l.busy == 0 || p.coming-p.last <= l.busy+l.busy/10 {
		return
	}
	left := p.last + l.spread(l.busy) - l.clock.now
	if left <= 0 {
		left = time.Duration(l.random.Float64() * float64(l.busy) / 2)
	}
	l.schedule(p, left)
}

func (l *loads) schedule(p *page, d time.Duration) {
	p.turn++
	turn := p.turn
	p.coming = l.clock.now + d
	l.clock.after(d, func() {
		if p.turn == turn && !p.left && l.picker.world.left > 0 {
			l.read(p)
		}
	})
}

// spread varies a time by a tenth, so that pages are not read together.
func (l *loads) spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*l.random.Float64()))
}
