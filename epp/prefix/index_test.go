package prefix

import (
	"maps"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
)

// slots of tests: first and last of a group, more than 64, 256 and 1,024, and the last of all.
var slots = []int{0, 1, 2, 31, 63, 64, 127, 128, 300, 1100, 4095, MaxSlots - 1}

func TestIndexAgainstModel(t *testing.T) {
	for seed := range uint64(20) {
		talk := newTalk(seed)
		x := new(Index)
		models := make([]model, len(slots))
		c := make([]epp.Candidate, len(slots))
		for i, slot := range slots {
			c[i].Endpoint = &epp.Endpoint{Slot: slot}
		}
		capacity := 40
		for range 1500 {
			i := talk.IntN(len(slots))
			switch talk.IntN(60) {
			case 0:
				x.EndpointLeft(c[i].Endpoint)
				models[i] = model{}
			case 1: // another pod gets the slot
				c[i].Endpoint = &epp.Endpoint{Slot: slots[i]}
				models[i] = model{}
			case 2:
				capacity = talk.IntN(60)
			default:
				chain := talk.next()
				x.Add(c[i].Endpoint, chain, capacity)
				models[i].add(chain, capacity)
			}
			asked := talk.next()
			x.Match(asked, 3, c)
			for i := range c {
				if want := 3 * models[i].match(asked); c[i].Cached != want {
					t.Fatalf("seed %d: slot %d has %d tokens cached, want %d", seed, slots[i], c[i].Cached, want)
				}
			}
		}
		check(t, x)
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte{0x15, 3, 1, 2, 3, 0x25, 2, 1, 2, 0x35, 4, 1, 2, 0, 0})
	f.Add([]byte{0xf1, 0xff, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 0xf1, 2, 9})
	f.Fuzz(func(t *testing.T, ops []byte) {
		x, torn := new(Index), new(Index)
		var models [4]model
		to := endpoints(len(models))
		for len(ops) > 2 {
			i, capacity, n := ops[0]%4, int(ops[0]/4), min(int(ops[1]), len(ops)-2)
			blocks := make([]uint64, n)
			for j := range blocks {
				blocks[j] = uint64(ops[2+j])
			}
			ops = ops[2+n:]
			torn.Add(to[i], blocks, capacity) // hashes that no chain has: anything may match, but nothing may break
			if g, place := torn.group(int(i)); g.tree.slots[place].size > capacity {
				t.Fatalf("%d blocks are held, more than %d", g.tree.slots[place].size, capacity)
			}
			blocks = chain(blocks...)
			x.Add(to[i], blocks, capacity)
			models[i].add(blocks, capacity)
			for j, e := range to {
				if got, want := depth(x, e, blocks), models[j].match(blocks); got != want {
					t.Fatalf("endpoint %d holds %d blocks, want %d", j, got, want)
				}
			}
		}
		check(t, x)
		for _, e := range to {
			x.EndpointLeft(e)
			torn.EndpointLeft(e)
		}
		checkEmpty(t, x)
		checkEmpty(t, torn)
	})
}

func checkEmpty(t testing.TB, x *Index) {
	t.Helper()
	for i := range x.groups {
		if g := x.groups[i].Load(); g != nil && len(g.tree.heads) > 0 {
			t.Errorf("%d segments are left after all was forgotten", len(g.tree.heads))
		}
	}
	if n := x.blocks.Load(); n != 0 {
		t.Errorf("%d blocks are held after all was forgotten", n)
	}
}

func TestForget(t *testing.T) {
	a, b := &epp.Endpoint{Name: "a", Slot: 5}, &epp.Endpoint{Name: "b", Slot: 6}
	next := &epp.Endpoint{Name: "next", Slot: 5}
	prompt := chain(1, 2, 3)
	setup := func() *Index {
		x := new(Index)
		x.Add(a, prompt, 10)
		x.Add(b, prompt[:2], 10)
		return x
	}
	for _, test := range []struct {
		name    string
		do      func(x *Index)
		a, next int
	}{
		{"nothing", func(*Index) {}, 3, 0},
		{"a is forgotten", func(x *Index) { x.EndpointLeft(a) }, 0, 0},
		{"twice", func(x *Index) { x.EndpointLeft(a); x.EndpointLeft(a) }, 0, 0},
		{"another with the same slot is forgotten", func(x *Index) { x.EndpointLeft(next) }, 3, 0},
		{"the slot is reused", func(x *Index) { x.EndpointLeft(a); x.Add(next, prompt[:1], 10) }, 0, 1},
		{"the slot is taken over", func(x *Index) { x.Add(next, prompt[:1], 10) }, 0, 1},
		{"a is forgotten after that", func(x *Index) { x.Add(next, prompt[:1], 10); x.EndpointLeft(a) }, 0, 1},
		{"a is added to once forgotten", func(x *Index) { x.EndpointLeft(a); x.Add(a, prompt, 10); x.Add(next, nil, 10) }, 0, 0},
		{"a slot that was never used", func(x *Index) { x.EndpointLeft(&epp.Endpoint{Slot: 900}) }, 3, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := setup()
			test.do(x)
			got := [...]int{depth(x, a, prompt), depth(x, next, prompt), depth(x, b, prompt)}
			if got != [...]int{test.a, test.next, 2} {
				t.Errorf("a, next and b hold %d blocks, want %d, %d and 2", got, test.a, test.next)
			}
			check(t, x)
		})
	}
}

func TestOutOfBounds(t *testing.T) {
	x := new(Index)
	prompt := chain(1, 2)
	for _, slot := range []int{-1, MaxSlots, 1 << 40} {
		e := &epp.Endpoint{Slot: slot}
		x.Add(e, prompt, 10)
		x.EndpointLeft(e)
		if got := depth(x, e, prompt); got != 0 {
			t.Errorf("slot %d holds %d blocks", slot, got)
		}
	}
	e := &epp.Endpoint{}
	x.Add(e, prompt, -1)
	x.Add(e, nil, 10)
	if got := depth(x, e, nil); got != 0 {
		t.Errorf("%d of no blocks are held", got)
	}
	if x.blocks.Load() != 0 {
		t.Errorf("%d blocks are held of nothing", x.blocks.Load())
	}
	x.Add(e, []uint64{0, 1}, 10) // 0 is a hash as others are
	if got := depth(x, e, []uint64{0, 1}); got != 2 {
		t.Errorf("%d blocks are held, want 2", got)
	}
}

// TestMemoryReturns: after many caches have come and gone, the index takes no more memory than before.
func TestMemoryReturns(t *testing.T) {
	x, c := new(Index), new(chains)
	to := endpoints(8)
	for _, e := range to {
		x.Add(e, c.next(5000), 6000)
		each(1000, func(int) { x.Add(e, c.next(1), 6000) })
		x.Add(e, c.next(1), 3)
	}
	if got := x.blocks.Load(); got != 3*8 {
		t.Errorf("%d blocks are held, want the capacities", got)
	}
	for _, e := range to {
		x.EndpointLeft(e)
	}
	checkEmpty(t, x)
}

func TestMatchAllocatesNothing(t *testing.T) {
	x, c := new(Index), new(chains)
	prompt := c.next(600)
	pool := make([]epp.Candidate, 300)
	for i, e := range endpoints(len(pool)) {
		pool[i].Endpoint = e
		x.Add(e, prompt[:2*i+1], 1000)
	}
	if n := testing.AllocsPerRun(100, func() { x.Match(prompt, 16, pool) }); n >= 1 {
		t.Errorf("Match allocates %v times", n)
	}
	for i := range pool {
		if want := 16 * (2*i + 1); pool[i].Cached != want {
			t.Errorf("endpoint %d has %d tokens cached, want %d", i, pool[i].Cached, want)
		}
	}
}

// TestReadersAmongWriters holds what readers must see while tables are rebuilt and blocks evicted under them: a chain that
// is never given up is never missed, and one that only grows never shrinks.
func TestReadersAmongWriters(t *testing.T) {
	const rounds, capacity = 300, 600
	x, c := new(Index), new(chains)
	to := endpoints(4)
	kept, growing := c.next(200), c.next(rounds)
	x.Add(to[0], kept, capacity)
	var done atomic.Bool
	var writers, readers sync.WaitGroup
	write := func(add func(i int)) { writers.Go(func() { each(rounds, add) }) }
	var churn [2]chains
	churn[0].Seed(1, 1)
	churn[1].Seed(2, 2)
	write(func(int) { // evicts its own blocks all the time, but never those it just requested
		x.Add(to[0], churn[0].next(capacity-len(kept)), capacity)
		x.Add(to[0], kept, capacity)
	})
	write(func(i int) { x.Add(to[1], growing[:i+1], capacity) })
	write(func(i int) {
		x.Add(to[2], churn[1].next(capacity), capacity)
		if i%10 == 0 {
			x.EndpointLeft(to[2])
		}
	})
	for range 2 {
		readers.Go(func() {
			pool := []epp.Candidate{{Endpoint: to[0]}, {Endpoint: to[1]}, {Endpoint: to[2]}, {Endpoint: to[3]}}
			before := 0
			for !done.Load() {
				x.Match(kept, 1, pool)
				if pool[0].Cached != len(kept) || pool[1].Cached+pool[2].Cached+pool[3].Cached != 0 {
					t.Errorf("of %d blocks kept, %d are held, and others hold some", len(kept), pool[0].Cached)
					return
				}
				x.Match(growing, 1, pool)
				if pool[1].Cached < before {
					t.Errorf("%d blocks are held, after %d", pool[1].Cached, before)
					return
				}
				before = pool[1].Cached
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	check(t, x)
}

func each(n int, do func(i int)) {
	for i := range n {
		do(i)
	}
}

// ofProducer collects the metrics of a producer's index.
type ofProducer struct {
	*Index
	name string
}

func (p ofProducer) Collect(ch chan<- prometheus.Metric) { p.CollectAs(p.name, ch) }

func TestMetrics(t *testing.T) {
	x := new(Index)
	e := &epp.Endpoint{}
	x.Add(e, chain(1, 2, 3), 4)
	x.Add(e, chain(4, 5), 4)
	registry := prometheus.NewRegistry()
	registry.MustRegister(ofProducer{x, "mine"})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		if l := m.GetLabel(); len(l) != 1 || l[0].GetName() != "producer" || l[0].GetValue() != "mine" {
			t.Errorf("%s has the labels %v", f.GetName(), l)
		}
	}
	if want := map[string]float64{"tandem_prefix_blocks": 4, "tandem_prefix_evictions_total": 1}; !maps.Equal(got, want) {
		t.Errorf("metrics are %v, want %v", got, want)
	}
}
