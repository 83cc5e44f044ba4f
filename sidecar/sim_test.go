package sidecar

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
)

// startSim serves a simulated engine until the test ends.
func startSim(t *testing.T, cfg sim.Config, fronts ...server.Front) *server.Server {
	t.Helper()
	s, err := server.Start(cfg, fronts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func addrOf(s *server.Server) string { return strings.TrimPrefix(s.URL, "http://") }

var prompts atomic.Int64

// simAsk returns a completion request for a prompt of n tokens that no engine has seen.
func simAsk(n, tokens int, stream bool) string {
	seed := int(prompts.Add(1))
	ids := make([]int, n)
	for i := range ids {
		ids[i] = 20 + (seed*131+i*7)%900
	}
	b, err := json.Marshal(map[string]any{"model": "tiny", "prompt": ids, "max_tokens": tokens, "stream": stream, "temperature": 0})
	if err != nil {
		panic(err) // numbers always marshal
	}
	return string(b)
}

// mustState waits for a state of an engine.
func mustState(t *testing.T, s *server.Server, what string, ok func(sim.State) bool) {
	t.Helper()
	if st, err := s.Engine.WaitState(within(t), ok); err != nil {
		t.Fatalf("waited in vain for %s: %+v, %v", what, st, err)
	}
}

func busy(st sim.State) bool { return st.Blocks.Used > 0 }
func free(st sim.State) bool { return st.Blocks.Used == 0 && st.Blocks.Pinned == 0 }

// mustFree checks that both engines pin nothing, and that no lease had to expire for it.
func mustFree(t *testing.T, prefill, decode *server.Server) {
	t.Helper()
	mustState(t, prefill, "prefill to be free", free)
	mustState(t, decode, "decode to be free", free)
	for _, s := range []*server.Server{prefill, decode} {
		if st := s.Engine.State(); st.Expired != 0 || st.StaleReads != 0 || st.ForeignReads != 0 {
			t.Errorf("%+v", st)
		}
	}
}

func TestSimClientGone(t *testing.T) {
	t.Parallel()
	slow := sim.Config{TimeScale: 20}
	cases := []struct {
		name            string
		prefill, decode sim.Config
		tokens          int
		at              func(t *testing.T, prefill, decode *server.Server, l *leaver)
	}{
		{"during prefill", slow, sim.Config{}, 8, func(t *testing.T, prefill, _ *server.Server, _ *leaver) {
			mustState(t, prefill, "prefill to run", busy)
		}},
		{"during decode", sim.Config{}, slow, 3000, func(t *testing.T, _, decode *server.Server, _ *leaver) {
			mustState(t, decode, "decode to run", busy)
		}},
		{"within the answer", sim.Config{}, sim.Config{TimeScale: 1}, 3000, func(t *testing.T, _, decode *server.Server, l *leaver) {
			mustState(t, decode, "decode to run", busy)
			select {
			case <-l.begun:
			case <-l.ended:
			}
		}},
	}
	for _, c := range cases {
		for _, stream := range []bool{true, false} {
			if !stream && c.name == "within the answer" {
				continue // a whole answer has no middle
			}
			t.Run(fmt.Sprintf("%s/stream=%v", c.name, stream), func(t *testing.T) {
				t.Parallel()
				prefill, decode := startSim(t, c.prefill), startSim(t, c.decode)
				s := startRig(t, addrOf(decode))
				l := startLeaver(t, s.url+completionsPath, simAsk(1000, c.tokens, stream), pd.HeaderPrefill, addrOf(prefill))
				c.at(t, prefill, decode, l)
				l.mustLeave(t)
				mustFree(t, prefill, decode)
				s.end()
				s.mustCount(t, 0, "tandem_kv_stranded_total")
				s.mustCount(t, 0, "tandem_kv_release_total", "result", "failed")
			})
		}
	}
}

// The client leaves when prefill has finished and its answer is on the way: decode sees the request only to release it.
func TestSimClientGoneBetweenTheLegs(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%v", stream), func(t *testing.T) {
			t.Parallel()
			prefill, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{})
			late, arrived := withhold(t, prefill)
			s := startRig(t, addrOf(decode))
			l := startLeaver(t, s.url+completionsPath, simAsk(200, 8, stream), pd.HeaderPrefill, late)
			wait(t, arrived, "prefill to finish")
			if st := prefill.Engine.State(); st.Blocks.Pinned == 0 {
				t.Fatalf("%+v: nothing to release", st)
			}
			l.mustLeave(t)
			mustFree(t, prefill, decode)
			s.end()
			s.mustCount(t, 1, "tandem_kv_release_total", "way", "cancel", "result", "ok")
			s.mustCount(t, 0, "tandem_kv_stranded_total")
		})
	}
}

// withhold serves an engine whose answers come only after the caller has hung up.
func withhold(t *testing.T, engine *server.Server) (addr string, arrived <-chan struct{}) {
	t.Helper()
	to, err := url.Parse(engine.URL)
	if err != nil {
		t.Fatal(err)
	}
	at := make(chan struct{}, 1)
	proxy := httputil.NewSingleHostReverseProxy(to)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	proxy.Transport = transport
	s := httptest.NewServer(silent(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost { // what the sidecar asks to know the engine
			proxy.ServeHTTP(w, r)
			return
		}
		whole := httptest.NewRecorder()
		proxy.ServeHTTP(whole, r)
		at <- struct{}{}
		<-r.Context().Done()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(whole.Body.Bytes())
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), at
}

// Every fault of an engine ends in the right tokens, and in no pinned blocks.
func TestSimFaults(t *testing.T) {
	cases := []struct {
		name            string
		prefill, decode *fault.Fault
		verdict         pd.Verdict
		reason          pd.Reason
		expires         bool // the hand-off came in an answer that could not be read
	}{
		{name: "none", verdict: pd.Remote, reason: pd.External},
		{name: "prefill refuses", prefill: &fault.Fault{Fault: "refuse"}, verdict: pd.Local, reason: pd.PrefillFailed},
		{name: "prefill 503", prefill: &fault.Fault{Leg: "prefill", Fault: "status", Arg: "503"}, verdict: pd.Local, reason: pd.PrefillFailed},
		{name: "prefill without hand-off", prefill: &fault.Fault{Leg: "prefill", Fault: "no-handoff"}, verdict: pd.Local, reason: pd.HandoffInvalid},
		{name: "decode 500", decode: &fault.Fault{Leg: "decode", Fault: "status", Arg: "500", Count: 1}, verdict: pd.Local, reason: pd.TransferFailed},
		{name: "decode reset", decode: &fault.Fault{Leg: "decode", Fault: "reset-before", Count: 1}, verdict: pd.Local, reason: pd.TransferFailed},
		{name: "wrong engine", prefill: &fault.Fault{Leg: "prefill", Fault: "bad-handoff", Arg: "wrong-engine"}, verdict: pd.Local, reason: pd.TransferFailed, expires: true},
		{name: "far blocks", prefill: &fault.Fault{Leg: "prefill", Fault: "bad-handoff", Arg: "far-blocks"}, verdict: pd.Local, reason: pd.TransferFailed},
		{name: "short blocks", prefill: &fault.Fault{Leg: "prefill", Fault: "bad-handoff", Arg: "short-blocks"}, verdict: pd.Local, reason: pd.HandoffInvalid, expires: true},
	}
	for _, c := range cases {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", c.name, stream), func(t *testing.T) {
				if c.prefill == nil || c.prefill.Fault != "refuse" { // the port that refuses is free: an engine of another case may get it
					t.Parallel()
				}
				prefill, decode, plain := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
				for s, f := range map[*server.Server]*fault.Fault{prefill: c.prefill, decode: c.decode} {
					if f == nil {
						continue
					}
					if err := s.Faults.Add(*f); err != nil {
						t.Fatal(err)
					}
				}
				s := startRig(t, addrOf(decode), set(func(c *Config) { c.Prefill.BlockSize = 32 }))
				q := simAsk(100, 8, stream)
				got := post(t, s.url+completionsPath, q, pd.HeaderPrefill, addrOf(prefill))
				if d := got.decision(t); got.status != 200 || d.Verdict != c.verdict || d.Reason != c.reason {
					t.Errorf("%d %v", got.status, d)
				}
				if want := post(t, plain.URL+completionsPath, q); textOf(got.body) != textOf(want.body) || textOf(got.body) == "" {
					t.Errorf("text %q, want %q", textOf(got.body), textOf(want.body))
				}
				s.end()
				if !c.expires {
					mustFree(t, prefill, decode)
					s.mustCount(t, 0, "tandem_kv_stranded_total")
				}
			})
		}
	}
}

// textOf joins the text of an answer, whole or streamed.
func textOf(body string) string {
	var text strings.Builder
	for _, part := range strings.Split(body, `"text":"`)[1:] {
		end, _, _ := strings.Cut(part, `","`)
		text.WriteString(end)
	}
	return text.String()
}

// A sidecar that is not told the block size knows it after some hand-offs, and then does not use one with too few blocks.
func TestSimShortBlocksOfUntoldSize(t *testing.T) {
	t.Parallel()
	prefill, decode, plain := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
	s := startRig(t, addrOf(decode))
	for i := range 32 {
		got := post(t, s.url+completionsPath, simAsk(40+i*20, 1, false), pd.HeaderPrefill, addrOf(prefill))
		got.mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
	}
	if err := prefill.Faults.Add(fault.Fault{Leg: fault.LegPrefill, Fault: fault.BadHandoff, Arg: "short-blocks", Count: 1}); err != nil {
		t.Fatal(err)
	}
	q := simAsk(400, 8, false)
	got, want := post(t, s.url+completionsPath, q, pd.HeaderPrefill, addrOf(prefill)), post(t, plain.URL+completionsPath, q)
	got.mustBe(t, http.StatusOK, "local;reason=handoff-invalid;attempts=1;candidate=0")
	if textOf(got.body) != textOf(want.body) {
		t.Errorf("text %q, want %q", textOf(got.body), textOf(want.body))
	}
}
