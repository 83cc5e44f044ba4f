package kvevents

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/kvindex"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// cutting is a network whose connections end after some reads, so that messages of the engine are lost.
type cutting struct {
	net.Dialer
	mu     sync.Mutex
	random *rand.Rand
	whole  atomic.Bool // connections last from now on
	cuts   atomic.Int64
}

func (n *cutting) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := n.Dialer.DialContext(ctx, network, address)
	n.mu.Lock()
	defer n.mu.Unlock()
	return &cutConn{Conn: conn, network: n, left: 5 + n.random.IntN(30)}, err
}

type cutConn struct {
	net.Conn
	network *cutting
	left    int // reads
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.left--; c.left == 0 && !c.network.whole.Load() {
		c.network.cuts.Add(1)
		c.Close()
	}
	return c.Conn.Read(b)
}

// observer compares, as often as it can, what the index says with what the engine has.
type observer struct {
	e      *engine
	mu     sync.Mutex
	engine *server.Server // nil = it has nothing

	told   map[uint64]bool      // names that the engine had at some comparison
	wrong  map[uint64]time.Time // since when at the latest the index has a block that the engine has not, by name
	lasted []time.Duration
}

// look compares once. An entry counts as wrong from the comparison before the one that finds it.
func (o *observer) look(before time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	cached := map[uint64]bool{}
	if o.engine != nil {
		cached = o.engine.Engine.CachedBlocks()
	}
	for name := range cached {
		o.told[name] = true
	}
	now := time.Now()
	for name := range o.told {
		since, was := o.wrong[name]
		switch is := !cached[name] && o.e.Holder.Has(kvindex.GPU, name); {
		case is && !was:
			o.wrong[name] = before
		case was && !is:
			o.lasted = append(o.lasted, now.Sub(since))
			delete(o.wrong, name)
		}
	}
}

// is notes which process the engine is now.
func (o *observer) is(s *server.Server) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.engine = s
}

// TestHowLongEntriesLast: a simulated engine with a small cache publishes over TCP while clients ask, connections are cut, so that messages are
// lost, and the engine restarts. Once it is quiet, no entry is wrong. How long any was is logged, in milliseconds, with the time between two
// comparisons.
func TestHowLongEntriesLast(t *testing.T) {
	for name, replays := range map[string]bool{"with replay": true, "without replay": false} {
		t.Run(name, func(t *testing.T) {
			publish, replay := "127.0.0.1:0", ""
			if replays {
				replay = "127.0.0.1:0"
			}
			start := func() *server.Server {
				return simtest.Start(t, func(c *sim.Config) {
					c.KV.Blocks, c.MaxModelLen = 100, 1024
					c.Events = sim.EventsConfig{Publish: publish, Replay: replay, Topic: "kv@here"}
				})
			}
			s := start()
			publish, replay = s.Engine.EventAddresses()
			e := newEngine()
			o := &observer{e: e, engine: s, told: map[uint64]bool{}, wrong: map[uint64]time.Time{}}
			n := &cutting{random: rand.New(rand.NewPCG(7, 8))}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			running.Go(func() {
				e.Follow(ctx, n, Source{Events: publish, Replay: replay, Topic: "kv@"}, slog.New(slog.DiscardHandler))
			})
			var apart []time.Duration // between two comparisons
			looking, stop := context.WithCancel(ctx)
			var observing sync.WaitGroup
			observing.Go(func() {
				before := time.Now()
				tick := time.NewTicker(200 * time.Microsecond)
				defer tick.Stop()
				for looking.Err() == nil {
					<-tick.C
					at := time.Now()
					o.look(before)
					apart, before = append(apart, at.Sub(before)), at
				}
			})
			for round := range uint64(3) {
				if round > 0 {
					o.is(nil)
					s.Close()
					s = start()
					o.is(s)
				}
				asks(t, s, round)
			}
			n.whole.Store(true)
			// Only a further message tells that others were lost. The connection may have been cut a moment ago: then those are lost too.
			for tries := 0; !replays && tries < 5 && (tries == 0 || difference(e, s) != ""); tries++ {
				s.Engine.ResetPrefixCache()
				asks(t, s, 9)
			}
			agree(t, e, s)
			stop()
			observing.Wait()
			o.look(time.Now())
			if len(o.wrong) > 0 {
				t.Errorf("%d entries are wrong in the end", len(o.wrong))
			}
			if len(o.lasted) < 20 || n.cuts.Load() < 3 || e.Counts.Restarts.Load() == 0 || !replays && e.Counts.Lost.Load() == 0 {
				t.Errorf("%d entries were wrong, %d connections cut, %s: too few", len(o.lasted), n.cuts.Load(), e.counts())
			}
			slices.Sort(o.lasted)
			slices.Sort(apart)
			ms := func(all []time.Duration, q int) float64 { return 1e3 * all[(len(all)-1)*q/100].Seconds() }
			t.Logf("%d connections cut, %s; %d of the entries of %d blocks were wrong, for p50 %.1f, p99 %.1f, at most %.1f ms; compared every %.1f ms (p50), %.1f (p99)",
				n.cuts.Load(), e.counts(), len(o.lasted), len(o.told), ms(o.lasted, 50), ms(o.lasted, 99), ms(o.lasted, 100), ms(apart, 50), ms(apart, 99))
		})
	}
}
