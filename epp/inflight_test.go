package epp_test

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// An armed endpoint tells of the next request that finds it idle, once.
func TestArm(t *testing.T) {
	for _, c := range []struct {
		name  string
		given func(e *epp.Endpoint) // before the request
		when  func(e *epp.Endpoint)
		want  bool
	}{
		{"not armed", func(*epp.Endpoint) {}, reserve, false},
		{"armed", (*epp.Endpoint).Arm, reserve, true},
		{"armed, reserved anyway", (*epp.Endpoint).Arm, func(e *epp.Endpoint) { epp.ReserveAnyway(claim(e, 1)) }, true},
		{"armed, and it is the one that served", (*epp.Endpoint).Arm, func(e *epp.Endpoint) { epp.ReserveAnyway(claim(pod("picked"), 1)).Served(e) }, true},
		{"armed before the second request", func(e *epp.Endpoint) { reserve(e); e.Arm() }, reserve, false},
		{"armed before another version gets the request", (*epp.Endpoint).Arm, func(e *epp.Endpoint) { reserve(e.With("", nil)) }, true},
		{"armed while busy, then idle", func(e *epp.Endpoint) {
			running := epp.ReserveAnyway(claim(e, 1))
			e.Arm()
			running.End()
		}, reserve, true},
		{"armed before a pick that lost the race", (*epp.Endpoint).Arm, func(e *epp.Endpoint) {
			stale := claim(e, 1)
			stale.Seen.Requests = 1
			if _, ok := tryReserve([]epp.Claim{stale}); ok {
				t.Error("reserved")
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, turned := pod("pod"), make(chan struct{}, 1)
			e.Watch(nil, turned)
			c.given(e)
			c.when(e)
			if got := len(turned) == 1; got != c.want {
				t.Errorf("told: %v, want %v", got, c.want)
			}
			if len(turned) == 1 {
				<-turned
			}
			epp.ReserveAnyway(claim(e, 1)).End()
			if c.want && len(turned) > 0 {
				t.Error("told again without having been armed")
			}
		})
	}
}

func reserve(e *epp.Endpoint) { tryReserve([]epp.Claim{claim(e, 1)}) }

// Whatever takes load off an endpoint is published, and nothing else is.
func TestInFlightFell(t *testing.T) {
	for _, c := range []struct {
		name string
		when func(r *epp.Reservation, of *epp.Endpoint)
		want bool
	}{
		{"nothing", func(*epp.Reservation, *epp.Endpoint) {}, false},
		{"another request", func(_ *epp.Reservation, of *epp.Endpoint) { reserve(of) }, false},
		{"the answer begins", func(r *epp.Reservation, _ *epp.Endpoint) { r.Answered() }, true},
		{"the request ends", func(r *epp.Reservation, _ *epp.Endpoint) { r.End() }, true},
		{"another endpoint served", func(r *epp.Reservation, _ *epp.Endpoint) { r.Served(pod("other")) }, true},
		{"another version served", func(r *epp.Reservation, of *epp.Endpoint) { r.Served(of.With("", nil)) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p epp.Publisher
			e := pod("pod")
			e.Watch(&p, nil)
			r := epp.ReserveAnyway(claim(e, 1))
			s, loads := p.Subscribe(epp.InFlightFell), p.Subscribe(epp.LoadsChanged)
			c.when(r, e)
			if got := isReady(s); got != c.want || isReady(loads) {
				t.Errorf("published: %v, want %v", got, c.want)
			}
		})
	}
}

// What no subscription wants is not even looked for: ends of requests publish to a pool that has no such subscriber.
func TestWantedKinds(t *testing.T) {
	var p epp.Publisher
	s := p.Subscribe(0)
	published := func() bool {
		p.Publish(epp.InFlightFell)
		return isReady(s)
	}
	if published() {
		t.Error("got what it does not want")
	}
	if s.Want(epp.InFlightFell | epp.LoadsChanged); !published() || s.Take() != epp.InFlightFell {
		t.Error("did not get what it wants now")
	}
	if s.Want(epp.LoadsChanged); published() {
		t.Error("got what it does not want any more")
	}
	another := p.Subscribe(epp.InFlightFell)
	if another.Close(); published() {
		t.Error("got what another subscription wanted")
	}
}

// TestUntold: what other pickers do not know of is what this one has sent since they were told, and never less than nothing.
func TestUntold(t *testing.T) {
	e := pod("pod")
	e.ChargeOthers(epp.InFlight{}, epp.InFlight{Requests: 7, Tokens: 70}) // they know of their own
	first := epp.ReserveAnyway(claim(e, 10))
	if got, want := e.Untold(), (epp.InFlight{Requests: 1, Tokens: 10}); got != want {
		t.Errorf("untold is %+v, want %+v", got, want)
	}
	e.SetTold(e.Own())
	second := epp.ReserveAnyway(claim(e, 5))
	if got, want := e.With("", nil).Untold(), (epp.InFlight{Requests: 1, Tokens: 5}); got != want {
		t.Errorf("of another version untold is %+v, want %+v", got, want)
	}
	first.End()
	second.End()
	if got := e.Untold(); got != (epp.InFlight{}) {
		t.Errorf("after all requests have ended, untold is %+v", got)
	}
}
