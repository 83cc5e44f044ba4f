package sidecar

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
)

// mustRelease checks in which way the one hand-off of a test was released, and that no hand-off is stranded.
func (r *rig) mustRelease(t *testing.T, way, result string) {
	t.Helper()
	r.end()
	r.mustCount(t, 1, "tandem_kv_release_total")
	r.mustCount(t, 1, "tandem_kv_release_total", "way", way, "result", result)
	r.mustCount(t, 0, "tandem_kv_stranded_total")
}

// Decode does not learn of a request whose client leaves between the legs.
func TestKeptClientGoneBetweenTheLegs(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		t.Parallel()
		k := newNotifier(t)
		prefill, decode := startSim(t, sim.Config{}), startEngine(t, q.answer())
		late, arrived := withhold(t, prefill)
		spans, recorded := recorder(t)
		s := startRig(t, decode.addr, k.option(), recorded)
		l := startLeaver(t, s.url+completionsPath, simAsk(100, 8, q.stream), pd.HeaderPrefill, late)
		wait(t, arrived, "prefill to finish")
		l.mustLeave(t)
		mustState(t, prefill, "prefill to be free", free)
		s.mustRelease(t, "nixl", "ok")
		k.mustNotify(t, 1)
		decode.mustSee(t)
		if released := decode.releases(); len(released) != 0 {
			t.Errorf("decode was asked to release %d times", len(released))
		}
		if st := prefill.Engine.State(); st.Expired != 0 || st.Released != 1 {
			t.Errorf("%+v", st)
		}
		ways := map[string]string{}
		for _, span := range spans.GetSpans() {
			ways[span.Name] = attributes(span)["tandem.release.way"]
		}
		if way, ok := ways["release"]; !ok || way != "nixl" {
			t.Errorf("the ways of the spans are %v", ways)
		}
	})
}

// The span of a release belongs to the request's trace, and names the way that succeeded.
func TestReleaseSpans(t *testing.T) {
	for _, dead := range []bool{false, true} {
		t.Run("dead="+strconv.FormatBool(dead), func(t *testing.T) {
			t.Parallel()
			k, want := newNotifier(t), "nixl"
			if dead {
				k.fail()
				want = "cancel"
			}
			prefill, decode := startSim(t, sim.Config{}), startEngine(t, says(400, "application/json", "{}"))
			spans, recorded := recorder(t)
			s := startRig(t, decode.addr, k.option(), recorded)
			post(t, s.url+completionsPath, simAsk(100, 8, false), pd.HeaderPrefill, addrOf(prefill)).mustBe(t, 400, servedRemote)
			s.mustRelease(t, want, "ok")
			seen := 0
			for _, span := range spans.GetSpans() {
				if span.Name != "release" {
					continue
				}
				seen++
				if way := attributes(span)["tandem.release.way"]; way != want || !span.Parent.SpanID().IsValid() || span.EndTime.Before(span.StartTime) {
					t.Errorf("way %q, under %v", way, span.Parent)
				}
			}
			if seen != 1 {
				t.Errorf("%d spans of releases", seen)
			}
		})
	}
}

// A decode engine that lost its leg may still be reading: while it lives, only decode may release the hand-off.
func TestKeptDecodeFails(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name     string
		act      act
		stream   bool // only a stream can fail like this
		decision string
		direct   int
	}{
		{"reset", resets, false, transferFailed, 0},
		{"closed", closes, false, transferFailed, 0},
		{"headers and reset", then(chunked(200, "application/json", ""), resets), false, transferFailed, 0},
		{"error event", streams(errorEvent), true, transferFailed, 0},
		{"silence", then(streams(), hangs), true, transferFailed, 0},
		{"not admitted", says(503, "application/json", "{}"), false, servedRemote, 0}, // decode releases it itself
		{"refused", says(404, "application/json", "{}"), false, servedRemote, 1},
		{"failed", says(500, "application/json", "{}"), false, transferFailed, 1},
	}
	for _, c := range cases {
		both(t, func(t *testing.T, q question) {
			if c.stream && !q.stream {
				return
			}
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				k, prefill, decode := newNotifier(t), startSim(t, sim.Config{}), startEngine(t, c.act, q.answer())
				s := startRig(t, decode.addr, k.option(), soon)
				got := post(t, s.url+completionsPath, simAsk(100, 8, q.stream), pd.HeaderPrefill, addrOf(prefill))
				if have := got.header.Get(pd.HeaderDecision); have != c.decision {
					t.Errorf("%d %s, want %s", got.status, have, c.decision)
				}
				switch {
				case got.status == http.StatusServiceUnavailable:
					s.end()
					s.mustCount(t, 0, "tandem_kv_release_total")
				case c.direct > 0:
					s.mustRelease(t, "nixl", "ok")
					mustState(t, prefill, "prefill to be free", free)
				default:
					s.mustRelease(t, "cancel", "ok")
				}
				k.mustNotify(t, c.direct)
				if released := decode.releases(); len(released) > 0 && c.direct > 0 {
					t.Error("decode was asked to release as well")
				}
			})
		})
	}
}

// A decode engine that has died in the middle of its leg reads no more, and the sidecar must notify prefill itself.
func TestKeptDecodeDies(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		t.Parallel()
		var decode *fakeEngine
		dies := func(w http.ResponseWriter, r *asked) {
			decode.server.Listener.Close()
			resets(w, r)
		}
		k, prefill := newNotifier(t), startSim(t, sim.Config{})
		decode = startEngine(t, dies)
		s := startRig(t, decode.addr, k.option())
		got := post(t, s.url+completionsPath, simAsk(100, 8, q.stream), pd.HeaderPrefill, addrOf(prefill))
		got.mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
		mustState(t, prefill, "prefill to be free", free)
		s.mustRelease(t, "nixl", "ok")
		k.mustNotify(t, 1)
	})
}

// The connections of a dying engine may break before its port is closed, also that of the release.
func TestKeptDecodeIsDying(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		t.Parallel()
		k, prefill := newNotifier(t), startSim(t, sim.Config{})
		decode := startEngine(t, resets, q.answer())
		decode.releaseAnswer = func(w http.ResponseWriter, r *asked) {
			decode.server.Listener.Close()
			resets(w, r)
		}
		s := startRig(t, decode.addr, k.option())
		post(t, s.url+completionsPath, simAsk(100, 8, q.stream), pd.HeaderPrefill, addrOf(prefill)) // its redo may or may not come in time
		mustState(t, prefill, "prefill to be free", free)
		s.mustRelease(t, "nixl", "ok")
		k.mustNotify(t, 1)
		if len(decode.releases()) == 0 {
			t.Error("decode was not asked first")
		}
	})
}

// A decode engine that is stopped may resume and read. The release waits 5 s for its answer.
func TestKeptDecodeStandsStill(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		for name, first := range map[string]act{"from the beginning": hangs, "when its leg has failed": resets} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				k, g := newNotifier(t), newGate()
				prefill, decode := startSim(t, sim.Config{}), startEngine(t, then(signal(g), first), then(signal(g), hangs))
				decode.releaseAnswer = hangs
				s := startRig(t, decode.addr, k.option())
				l := startLeaver(t, s.url+completionsPath, simAsk(100, 8, q.stream), pd.HeaderPrefill, addrOf(prefill))
				wait(t, g.arrived, "the decode leg")
				if name != "from the beginning" {
					wait(t, g.arrived, "the redo")
				}
				l.mustLeave(t)
				s.end()
				k.mustNotify(t, 0)
				s.mustCount(t, 0, "tandem_kv_release_total", "way", "nixl")
				s.mustCount(t, 1, "tandem_kv_release_total", "way", "cancel")
				if st := prefill.Engine.State(); st.Blocks.Pinned == 0 {
					t.Errorf("%+v: released although decode may still read", st)
				}
			})
		}
	})
}

// If the notifier has failed, decode is asked to release.
func TestKeeperDiesBeforeTheRelease(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		t.Parallel()
		k, g := newNotifier(t), newGate()
		prefill, decode := startLeasedSim(t), startEngine(t, then(g.act, says(404, "application/json", `{"error":{}}`)))
		s := startRig(t, decode.addr, leased, k.option())
		answer := asking(t, s, simAsk(100, 8, q.stream), addrOf(prefill))
		wait(t, g.arrived, "the decode leg")
		k.await(t, 1)
		k.fail()
		close(g.opened)
		wait(t, answer, "the answer").mustBe(t, 404, servedRemote)
		s.mustRelease(t, "cancel", "ok")
		k.mustNotify(t, 0)
		if released := decode.releases(); len(released) != 1 {
			t.Errorf("decode was asked to release %d times", len(released))
		}
	})
}

// The prefill engine names its side channel. The sidecar dials it only at hosts where prefill legs may go.
func TestSideChannelOutsideTheAllowList(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		t.Parallel()
		trap, err := net.Listen("tcp", "127.0.0.2:0")
		if err != nil {
			t.Skipf("this system has one address of loopback: %v", err)
		}
		defer trap.Close()
		caught := make(chan struct{})
		go func() {
			defer close(caught)
			if conn, err := trap.Accept(); err == nil {
				t.Error("it was dialled")
				conn.Close()
			}
		}()
		_, port, err := net.SplitHostPort(trap.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		offered := strings.NewReplacer("10.9.9.9", "127.0.0.2", "5600", port).Replace(handoffParams)
		k, prefill := newNotifier(t), startEngine(t, offering(offered))
		decode := startEngine(t, q.answer(), says(404, "application/json", "{}"))
		s := startRig(t, decode.addr, k.option())
		if got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr); got.status != 200 || got.body != q.right() {
			t.Errorf("%d %s", got.status, got.body)
		}
		post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr).mustBe(t, 404, servedRemote)
		s.mustRelease(t, "cancel", "ok")
		s.mustCount(t, 0, "tandem_lease_connects_total", "result", "ok")
		if n := s.count(t, "tandem_lease_connects_total", "result", "failed"); n == 0 {
			t.Error("no connection was tried")
		}
		trap.Close()
		wait(t, caught, "the trap to close")
	})
}
