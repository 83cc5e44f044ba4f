package epp_test

import (
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

func isReady(s *epp.Subscription) bool {
	select {
	case <-s.Ready():
		return true
	default:
		return false
	}
}

func TestSubscription(t *testing.T) {
	for _, c := range []struct {
		name      string
		wanted    epp.Changes
		published []epp.Changes
		ready     bool
		want      epp.Changes
	}{
		{"nothing", epp.LoadsChanged, nil, false, 0},
		{"wanted", epp.LoadsChanged, []epp.Changes{epp.LoadsChanged}, true, epp.LoadsChanged},
		{"not wanted", epp.MembersChanged, []epp.Changes{epp.LoadsChanged, epp.HealthChanged}, false, 0},
		{"a part is wanted", epp.HealthChanged, []epp.Changes{epp.LoadsChanged | epp.HealthChanged}, true, epp.HealthChanged},
		{"many are joined", epp.LoadsChanged | epp.HealthChanged, []epp.Changes{epp.LoadsChanged, epp.HealthChanged, epp.LoadsChanged}, true,
			epp.LoadsChanged | epp.HealthChanged},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p epp.Publisher
			s := p.Subscribe(c.wanted)
			for _, changes := range c.published {
				p.Publish(changes)
			}
			if got := isReady(s); got != c.ready || isReady(s) {
				t.Errorf("ready: %v, want %v, once", got, c.ready)
			}
			if got := s.Take(); got != c.want || s.Take() != 0 {
				t.Errorf("took %b, want %b, once", got, c.want)
			}
		})
	}
}

// A subscriber that never reads its changes does not delay the publisher, and neither does one that has closed.
func TestSlowSubscriber(t *testing.T) {
	var p epp.Publisher
	slow, gone, quick := p.Subscribe(epp.LoadsChanged), p.Subscribe(epp.LoadsChanged), p.Subscribe(epp.LoadsChanged)
	gone.Close()
	gone.Close()
	for range 1000 {
		p.Publish(epp.LoadsChanged)
		if !isReady(quick) {
			t.Fatal("the quick subscriber was not told")
		}
	}
	if isReady(gone) || gone.Take() != 0 {
		t.Error("a closed subscription was told")
	}
	if !isReady(slow) || isReady(slow) {
		t.Error("the slow subscriber has to see one value")
	}
}

func TestSubscriptionMissesNothing(t *testing.T) {
	const last = 2000
	var p epp.Publisher
	var mu sync.Mutex
	state := 0
	read := func() int {
		mu.Lock()
		defer mu.Unlock()
		return state
	}
	var subscribers sync.WaitGroup
	for range 4 {
		subscribers.Go(func() {
			s := p.Subscribe(epp.MembersChanged)
			defer s.Close()
			for read() != last {
				<-s.Ready() // one that is missed ends the test
			}
		})
	}
	for range last {
		mu.Lock()
		state++
		mu.Unlock()
		p.Publish(epp.MembersChanged)
	}
	subscribers.Wait()
}

func TestPublishAllocatesNothing(t *testing.T) {
	var p epp.Publisher
	p.Subscribe(epp.LoadsChanged)
	if n := testing.AllocsPerRun(100, func() { p.Publish(epp.LoadsChanged) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
