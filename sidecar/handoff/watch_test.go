package handoff

import (
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

// pairAt is a pair of legs whose prefill pod is this engine.
func pairAt(t *testing.T, e transport.Engine) *legPair {
	x := &Exchange{legs: &Legs{Config: Config{Prefill: func(pd.Target) transport.Engine { return e }}}}
	x.Context = t.Context()
	return &legPair{x: x, decode: &leg{}}
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
				p := pairAt(t, probed(&probes, c.statuses...))
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
