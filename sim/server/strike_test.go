package server_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/simtest"
	"github.com/tandem-serving/tandem/sim/web"
)

// TestStrikes: a fault with a point passes the answer on up to that point, and no further.
func TestStrikes(t *testing.T) {
	whole, stream := simtest.Greedy(simtest.Prompt(1, 40), 6, nil), simtest.Streamed(simtest.Greedy(simtest.Prompt(1, 40), 6, nil))
	nothing := func(a string) bool { return a == "" }
	headers := func(a string) bool { return strings.HasPrefix(a, "HTTP/1.1 200") && strings.HasSuffix(a, "\r\n\r\n") }
	events := func(n int) func(string) bool {
		return func(a string) bool { return strings.Count(a, "data: ") == n && !strings.Contains(a, "[DONE]") }
	}
	half := func(a string) bool {
		resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(a)), nil)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return errors.Is(err, io.ErrUnexpectedEOF) && int64(len(b)) == resp.ContentLength/2
	}
	for _, c := range []struct {
		at    string
		body  any
		check func(answer string) bool
	}{
		{"headers", whole, nothing}, {"headers", stream, nothing}, {"body", whole, headers}, {"body", stream, headers},
		{"1", stream, events(1)}, {"3", stream, events(3)}, {"3", whole, half},
	} {
		t.Run(c.at, func(t *testing.T) {
			s := simtest.Start(t)
			addFault(t, s, fault.Fault{Fault: fault.Truncate, At: c.at, Count: 1})
			if answer, err := exchange(t, s, c.body); err != nil || !c.check(string(answer)) {
				t.Errorf("truncated to %q, %v", answer, err)
			}
			addFault(t, s, fault.Fault{Fault: fault.ResetAfter, At: c.at, Count: 1})
			if answer, err := exchange(t, s, c.body); !errors.Is(err, syscall.ECONNRESET) || len(answer) > 0 && !c.check(string(answer)) {
				t.Errorf("reset after %q, %v", answer, err)
			}
			simtest.WaitForState(t, s, "the end of every request", simtest.Idle)
			if n := s.Engine.State().Requests; n != 2 {
				t.Errorf("the engine has seen %d requests", n)
			}
			addFault(t, s, fault.Fault{Fault: fault.Crash, At: c.at})
			if answer, err := exchange(t, s, c.body); !errors.Is(err, syscall.ECONNRESET) || len(answer) > 0 && !c.check(string(answer)) {
				t.Errorf("crashed after %q, %v", answer, err)
			}
			if _, err := exchange(t, s, c.body); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("the port of a dead engine: %v", err)
			}
			if err := s.Wait(); !errors.Is(err, web.ErrCrashed) {
				t.Errorf("the engine ended with %v", err)
			}
		})
	}
}

// TestHeld: an answer that a fault holds back is complete after the fault ends, and the state counts it meanwhile.
func TestHeld(t *testing.T) {
	for _, at := range []string{"", "headers", "body", "2"} {
		for name, body := range map[string]map[string]any{"whole": simtest.Greedy(simtest.Prompt(1, 40), 6, nil), "stream": simtest.Streamed(simtest.Greedy(simtest.Prompt(1, 40), 6, nil))} {
			t.Run(name+" "+at, func(t *testing.T) {
				s := simtest.Start(t)
				addFault(t, s, fault.Fault{Fault: fault.Slow, Arg: fault.Forever, At: at, Count: 1})
				answered := make(chan simtest.Reply, 1)
				go func() { answered <- simtest.Post(t, s.URL+"/v1/completions", body) }()
				simtest.WaitForState(t, s, "the answer to be held", func(st sim.State) bool { return st.Held == 1 })
				clearFaults(t, s)
				if r := <-answered; r.Status != http.StatusOK || name == "stream" && strings.Count(string(r.Body), "data: ") != 7 {
					t.Errorf("%d %s", r.Status, r.Body)
				}
				simtest.WaitForState(t, s, "nothing to be held", func(st sim.State) bool { return st.Held == 0 })
			})
		}
	}
}

// TestHeldClientLeaves: a request that a fault holds back ends when its client leaves.
func TestHeldClientLeaves(t *testing.T) {
	s := simtest.Start(t)
	addFault(t, s, fault.Fault{Fault: fault.Slow, Arg: fault.Forever, At: "headers"})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/completions", strings.NewReader(string(pyjson.Encode(simtest.Greedy(simtest.Prompt(1, 40), 6, nil)))))
		if err == nil {
			req.Header.Set("Content-Type", "application/json")
			_, err = (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		}
		left <- err
	}()
	simtest.WaitForState(t, s, "the answer to be held", func(st sim.State) bool { return st.Held == 1 })
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("left with %v", err)
	}
	simtest.WaitForState(t, s, "nothing to be held", func(st sim.State) bool { return st.Held == 0 && st.Blocks.Used == 0 })
}

// TestNotAdmitted: with 503, which admission answers, the engine releases the hand-off that it got.
func TestNotAdmitted(t *testing.T) {
	p, d := simtest.Start(t), simtest.Start(t)
	for code, released := range map[string]bool{"503": true, "500": false} {
		h := simtest.Prefill(t, p, simtest.Prompt(1, 40))
		addFault(t, d, fault.Fault{Leg: fault.LegDecode, Fault: fault.Status, Arg: code, Count: 1})
		if r := simtest.Post(t, d.URL+"/v1/completions", simtest.Greedy(simtest.Prompt(1, 40), 4, h)); r.Status < 500 {
			t.Errorf("status %d", r.Status)
		}
		if released {
			simtest.WaitForState(t, p, "the release of the hand-off", simtest.Idle)
			continue
		}
		if st := p.Engine.State(); st.Blocks.Pinned == 0 {
			t.Errorf("%s: %+v", code, st)
		}
		simtest.WaitForState(t, d, "nothing to do", simtest.Idle)
		simtest.Post(t, d.URL+"/v1/completions", map[string]any{"model": "unknown", "prompt": "x", "kv_transfer_params": h})
		simtest.WaitForState(t, p, "the release of the hand-off", simtest.Idle)
	}
}
