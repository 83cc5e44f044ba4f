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

// loads are what the picker knows of the endpoints.
type loads struct {
	clock      *clock
	random     *rand.Rand
	nodes      []*node
	busy, idle time.Duration // between two readings of a page; 0: pages are not read
	current    *epp.Snapshot
	loads      []epp.Load
	changed    bool
}

// Snapshot returns what is known now.
func (l *loads) Snapshot() *epp.Snapshot {
	if l.changed {
		l.changed = false
		l.current = &epp.Snapshot{Version: l.current.Version + 1, Endpoints: l.current.Endpoints, Loads: append([]epp.Load(nil), l.loads...)}
	}
	return l.current
}

// read reads the page of a node, and schedules the next reading.
func (l *loads) read(n *node) {
	now := l.clock.Now()
	waiting, delayed := n.engine.Waiting()
	load := epp.Load{At: now, Sent: n.endpoint.InFlight(), Cache: n.cache}
	load.Signals.Set(epp.Waiting, float64(waiting))
	load.Signals.Set(epp.Delayed, float64(delayed))
	load.Signals.Set(epp.Running, float64(n.engine.Running()))
	load.Signals.Set(epp.KVUsage, n.engine.Usage(l.clock.now))
	load.LearnBatch(&l.loads[n.endpoint.Slot])
	l.loads[n.endpoint.Slot], l.changed = load, true
	n.world.capacity()
	n.readAt = l.clock.now
	pause := l.idle
	if n.endpoint.InFlight().Requests > 0 || waiting+n.engine.Running() > 0 {
		pause = l.busy
	}
	l.schedule(n, l.spread(pause))
}

// woken reads the page of a node sooner, because a request was sent there. As in the picker, a page that is overdue is read at a random
// moment within half the interval.
func (l *loads) woken(n *node) {
	if l.busy == 0 || n.readNext-n.readAt <= l.busy+l.busy/10 {
		return
	}
	left := n.readAt + l.spread(l.busy) - l.clock.now
	if left <= 0 {
		left = time.Duration(l.random.Float64() * float64(l.busy) / 2)
	}
	l.schedule(n, left)
}

func (l *loads) schedule(n *node, d time.Duration) {
	n.reading++
	turn := n.reading
	n.readNext = l.clock.now + d
	l.clock.after(d, func() {
		if n.reading == turn && n.world.left > 0 {
			l.read(n)
		}
	})
}

// spread varies a time by a tenth, so that pages are not read together.
func (l *loads) spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*l.random.Float64()))
}
