package sim

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// TestStrikes: a fault with a point lets the answer come as far as that, and no further.
func TestStrikes(t *testing.T) {
	whole, stream := ask(prompt(1, 40), 6, nil), streamed(ask(prompt(1, 40), 6, nil))
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
			s := start(t)
			stand(t, s, Fault{Fault: faultTruncate, At: c.at, Count: 1})
			if answer, err := exchange(t, s, c.body); err != nil || !c.check(string(answer)) {
				t.Errorf("truncated to %q, %v", answer, err)
			}
			stand(t, s, Fault{Fault: faultResetAfter, At: c.at, Count: 1})
			if answer, err := exchange(t, s, c.body); !errors.Is(err, syscall.ECONNRESET) || len(answer) > 0 && !c.check(string(answer)) {
				t.Errorf("reset after %q, %v", answer, err)
			}
			settle(t, s, "the end of every request", idle)
			if n := s.Engine.State().Requests; n != 2 {
				t.Errorf("the engine has seen %d requests", n)
			}
			stand(t, s, Fault{Fault: faultCrash, At: c.at})
			if answer, err := exchange(t, s, c.body); !errors.Is(err, syscall.ECONNRESET) || len(answer) > 0 && !c.check(string(answer)) {
				t.Errorf("crashed after %q, %v", answer, err)
			}
			if _, err := exchange(t, s, c.body); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("the port of a dead engine: %v", err)
			}
			if err := s.Wait(); !errors.Is(err, errCrashed) {
				t.Errorf("the engine ended with %v", err)
			}
		})
	}
}

// TestHeld: an answer that is held at a point is complete once it is let go, and the state tells of it meanwhile.
func TestHeld(t *testing.T) {
	for _, at := range []string{"", "headers", "body", "2"} {
		for name, body := range map[string]map[string]any{"whole": ask(prompt(1, 40), 6, nil), "stream": streamed(ask(prompt(1, 40), 6, nil))} {
			t.Run(name+" "+at, func(t *testing.T) {
				s := start(t)
				stand(t, s, Fault{Fault: faultSlow, Arg: forever, At: at, Count: 1})
				answered := make(chan reply, 1)
				go func() { answered <- post(t, s.URL+"/v1/completions", body) }()
				settle(t, s, "the answer to be held", func(st State) bool { return st.Held == 1 })
				clearFaults(t, s)
				if r := <-answered; r.status != http.StatusOK || name == "stream" && strings.Count(string(r.body), "data: ") != 7 {
					t.Errorf("%d %s", r.status, r.body)
				}
				settle(t, s, "nothing to be held", func(st State) bool { return st.Held == 0 })
			})
		}
	}
}

// TestHeldClientLeaves: a client that leaves a held answer ends its request.
func TestHeldClientLeaves(t *testing.T) {
	s := start(t)
	stand(t, s, Fault{Fault: faultSlow, Arg: forever, At: "headers"})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/completions", strings.NewReader(string(encodeJSON(ask(prompt(1, 40), 6, nil)))))
		if err == nil {
			req.Header.Set("Content-Type", "application/json")
			_, err = (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		}
		left <- err
	}()
	settle(t, s, "the answer to be held", func(st State) bool { return st.Held == 1 })
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("left with %v", err)
	}
	settle(t, s, "nothing to be held", func(st State) bool { return st.Held == 0 && st.Blocks.Used == 0 })
}

// TestNotAdmitted: a 503 is the answer of admission, after which the engine lets go of the hand-off it was sent.
func TestNotAdmitted(t *testing.T) {
	p, d := start(t), start(t)
	for code, released := range map[string]bool{"503": true, "500": false} {
		h := prefill(t, p, prompt(1, 40))
		stand(t, d, Fault{Leg: legDecode, Fault: faultStatus, Arg: code, Count: 1})
		if r := post(t, d.URL+"/v1/completions", ask(prompt(1, 40), 4, h)); r.status < 500 {
			t.Errorf("status %d", r.status)
		}
		if released {
			settle(t, p, "the release of the hand-off", idle)
			continue
		}
		if st := p.Engine.State(); st.Blocks.Pinned == 0 {
			t.Errorf("%s: %+v", code, st)
		}
		settle(t, d, "nothing to do", idle)
		post(t, d.URL+"/v1/completions", map[string]any{"model": "unknown", "prompt": "x", "kv_transfer_params": h})
		settle(t, p, "the release of the hand-off", idle)
	}
}
