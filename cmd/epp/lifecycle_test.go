package main

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
)

// witness is a plugin that notes what it is told.
type witness struct{ told []string }

func (w *witness) EndpointJoined(e *epp.Endpoint) { w.told = append(w.told, "+"+e.Name) }
func (w *witness) EndpointLeft(e *epp.Endpoint)   { w.told = append(w.told, "-"+e.Name) }

func (w *witness) SnapshotChanged(s *epp.Snapshot, what epp.Changes) {
	if what == epp.LoadsChanged && s != nil {
		w.told = append(w.told, "loads")
	}
}

// changingPool is a pool that changes when it is told to.
type changingPool struct{ epp.Publisher }

func (*changingPool) Snapshot() *epp.Snapshot { return &epp.Snapshot{} }

func TestPluginsFollowThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		endpoint := func(name string, slot int) *epp.Endpoint {
			e := epp.NewEndpoint("default", name, netip.MustParseAddrPort("10.0.0.1:8000"), "", nil)
			e.Slot = slot
			return e
		}
		a, b := endpoint("a", 0), endpoint("b", 1)
		l, pool := &lifecycle{keep: &epp.Keep{}}, &changingPool{}
		kept := epp.Kept(l.keep, "kept", func() *witness { return &witness{} })
		first, second := &witness{}, &witness{}
		ctx, stop := context.WithCancel(t.Context())
		var following sync.WaitGroup
		following.Go(func() { l.follow(ctx, pool) })
		synctest.Wait()

		l.EndpointJoined(a)
		l.use(&config.Built{Instances: []config.Instance{{Name: "first", Value: first}}})
		l.EndpointJoined(b)
		pool.Publish(epp.LoadsChanged)
		synctest.Wait()
		l.EndpointLeft(b)
		l.use(&config.Built{Instances: []config.Instance{{Name: "second", Value: second}}})
		l.EndpointLeft(a)
		pool.Publish(epp.LoadsChanged)
		synctest.Wait()
		stop()
		following.Wait()
		for _, c := range []struct {
			name string
			got  *witness
			want []string
		}{
			{"kept", kept, []string{"+a", "+b", "-b", "-a"}},
			{"first", first, []string{"+a", "+b", "loads", "-b"}},
			{"second", second, []string{"+a", "-a", "loads"}},
		} {
			if !slices.Equal(c.got.told, c.want) {
				t.Errorf("%s was told %v, want %v", c.name, c.got.told, c.want)
			}
		}
	})
}
