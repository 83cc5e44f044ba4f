package handoff

import (
	"errors"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// probed answers a prober with statuses, one after another and the last again; 0 is no answer, -1 a closed port.
func probed(count *int, statuses ...int) transport.Engine {
	return transport.Engine{URL: "http://prefill", Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		status := statuses[min(*count, len(statuses)-1)]
		*count++
		if status < 0 {
			return nil, syscall.ECONNREFUSED
		}
		if status == 0 {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: http.NoBody}, nil
	})}
}

// startWatch begins to watch a prefill pod.
func startWatch(t *testing.T, e transport.Engine) *legPair {
	x := &Exchange{legs: &Legs{Config: Config{Prefill: func(pd.Target) transport.Engine { return e }}}}
	x.Context = t.Context()
	p := &legPair{x: x, decode: &leg{}}
	p.startWatch(p.watchPrefill)
	return p
}

// A pod is gone if it answers nothing, and not if it drains or missed a probe.
func TestWatchPrefill(t *testing.T) {
	cases := []struct {
		name     string
		statuses []int
		gone     bool
	}{
		{"healthy", []int{200}, false},
		{"draining", []int{200, 503}, false},
		{"stopped", []int{200, 0}, true},
		{"slow twice", []int{0, 0, 200}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				probes := 0
				p := startWatch(t, probed(&probes, c.statuses...))
				defer p.endWatch()
				select {
				case err := <-p.gone:
					var failure *prefillError
					if !c.gone || !errors.As(err, &failure) {
						t.Errorf("gone: %v", err)
					}
				case <-time.After(time.Minute):
					if c.gone {
						t.Error("not noticed in a minute")
					}
				}
			})
		})
	}
}

// The pod is not probed while decode generates.
func TestWatchEndsWithPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := 0
		p := startWatch(t, probed(&probes, 200))
		<-time.After(3 * watchPause / 2)
		if err := p.prefillEnded(prefillResult{status: 200}); err != nil || probes != 1 {
			t.Errorf("%v, %d probes before", err, probes)
		}
		<-time.After(time.Minute)
		if probes != 1 {
			t.Errorf("%d probes after prefill had ended", probes-1)
		}
	})
}

// A prefill pod that has answered is watched until decode begins to answer: closely at first, and not for long if decode's answer is
// whole, since that may be generating.
func TestWatchPush(t *testing.T) {
	cases := []struct {
		name     string
		stream   bool
		statuses []int
		within   time.Duration // until the pod is gone; 0: it is not
		probes   int           // in a minute, at most
	}{
		{"healthy, stream", true, []int{200}, 0, 47},
		{"healthy, whole", false, []int{200}, 0, 20},
		{"killed", true, []int{-1}, pushPause, 1},
		{"killed, whole", false, []int{200, -1}, 2 * pushPause, 2},
		{"stopped", true, []int{0}, 4 * time.Second, 3},
		{"slow twice", true, []int{0, 0, 200}, 0, 50},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				probes, began := 0, time.Now()
				p := startWatch(t, probed(&probes, c.statuses...))
				p.endWatch()
				p.pushes, p.decode.stream = true, c.stream
				p.handedOver()
				defer p.endWatch()
				select {
				case err := <-p.gone:
					if took := time.Since(began); c.within == 0 || took > c.within {
						t.Errorf("gone after %v: %v", took, err)
					}
				case <-time.After(time.Minute):
					if c.within > 0 {
						t.Error("not noticed in a minute")
					}
				}
				p.endWatch()
				if probes > c.probes || probes == 0 {
					t.Errorf("%d probes, want up to %d", probes, c.probes)
				}
			})
		})
	}
}
