package sidecar

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/handoff"
	"github.com/tandem-serving/tandem/sidecar/relay"
)

// mustReleaseByDecode waits for the releases that run after the answer, and checks that decode got as many as wanted, and
// that no hand-off is stranded.
func (r *rig) mustReleaseByDecode(t *testing.T, decode *fakeEngine, releases int) {
	t.Helper()
	r.end()
	released := decode.releases()
	if len(released) != releases {
		t.Errorf("decode was asked for %d releases, want %d", len(released), releases)
	}
	for _, f := range released {
		if f.URL.Path != completionsPath || !strings.Contains(f.body, handoffParams) || f.ContentLength != int64(len(f.body)) {
			t.Errorf("release %s %s", f.URL, f.body)
		}
	}
	r.mustCount(t, float64(releases), "tandem_kv_release_total", "way", "cancel", "result", "ok")
	r.mustCount(t, 0, "tandem_kv_release_total", "result", "failed")
	r.mustCount(t, 0, "tandem_kv_stranded_total")
	r.mustCount(t, 0, "tandem_inflight")
}

const (
	transferFailed = "local;reason=transfer-failed;attempts=1;candidate=0"
	servedRemote   = "remote;reason=external;attempts=1;candidate=0"
)

// soon shortens the silence after which decode is taken for lost.
var soon = set(func(c *Config) { c.Engine.FirstEvent = 200 * time.Millisecond })

// However decode fails before its first byte has gone to the client, the client gets the right answer.
func TestDecodeFails(t *testing.T) {
	cases := []struct {
		name   string
		act    act
		stream bool // a stream can fail like this
		cause  string
	}{
		{"reset", resets, false, "failed"},
		{"closed", closes, false, "failed"},
		{"500", says(500, "application/json", `{"error":{}}`), false, "failed"},
		{"501", says(501, "text/plain", ""), false, "failed"},
		{"502", says(502, "text/plain", ""), false, "failed"},
		{"504", says(504, "text/plain", ""), false, "failed"},
		{"nothing but headers", then(chunked(200, "application/json", ""), closes), false, "failed"},
		{"error event", streams(errorEvent, doneEvent), true, "failed"},
		{"error event after a comment", streams(": hello\n\n", errorEvent), true, "failed"},
		{"error event in two pieces", streams(errorEvent[:20], errorEvent[20:]), true, "failed"},
		{"error event by name", streams("event: error\ndata: {}\n\n"), true, "failed"},
		{"no event", streams(), true, "failed"},
		{"half an event", streams(firstEvent[:20]), true, "failed"},
		{"half an event, reset", then(streams(firstEvent[:20]), resets), true, "failed"},
		{"an endless event", then(streams("data: "+strings.Repeat("x", relay.MaxEvent)), hangs), true, "failed"},
		{"silence after the headers", then(streams(), hangs), true, "timeout"},
		{"silence after a comment", then(streams(": hello\n\n"), hangs), true, "timeout"},
		{"silence after half an event", then(streams(firstEvent[:20]), hangs), true, "timeout"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			both(t, func(t *testing.T, q question) {
				if c.stream && !q.stream {
					return
				}
				prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, c.act, q.answer())
				var options []option
				if c.cause == "timeout" {
					options = append(options, soon)
				}
				s := startRig(t, decode.addr, options...)
				got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr)
				got.mustBe(t, 200, transferFailed)
				if got.body != q.right() {
					t.Errorf("body %s", got.body)
				}
				if want := map[bool]string{true: "recv prefill handoff", false: "recv prefill handoff first"}[q.stream]; got.phases(t) != want {
					t.Errorf("phases %s, want %s", got.phases(t), want)
				}
				decode.mustSee(t, q.decode, q.local)
				s.mustReleaseByDecode(t, decode, 1)
				s.mustCount(t, 1, "tandem_retries_total")
				s.mustCount(t, 1, "tandem_retries_total", "leg", "decode", "cause", c.cause)
				s.mustCount(t, 1, "tandem_requests_total", "decision", "local", "reason", "transfer-failed", "code", "200")
				s.mustCount(t, float64(s.cfg.Fallback.Burst-1), "tandem_fallback_tokens")
			})
		})
	}
}

// A refusal that a local prefill would meet as well is relayed.
func TestDecodeRefuses(t *testing.T) {
	cases := []struct {
		name     string
		status   int
		releases int
	}{
		{"not admitted", 503, 0}, // the engine releases the hand-off itself
		{"too many", 429, 1},     // a proxy before the engine answers so
		{"bad request", 400, 1},
		{"unknown model", 404, 1},
		{"unprocessable", 422, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			both(t, func(t *testing.T, q question) {
				const word = `{"error": {"message":"no"}}`
				prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, says(c.status, "application/json", word))
				s := startRig(t, decode.addr)
				got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr)
				got.mustBe(t, c.status, servedRemote)
				if got.body != word {
					t.Errorf("body %s", got.body)
				}
				if retry := got.header.Get(pd.HeaderRetry); (retry == "1") != (c.status == 503) {
					t.Errorf("%s is %q", pd.HeaderRetry, retry)
				}
				if after := got.header.Get("Retry-After"); (after == "1") != (c.status == http.StatusServiceUnavailable || c.status == http.StatusTooManyRequests) {
					t.Errorf("Retry-After is %q", after)
				}
				decode.mustSee(t, q.decode)
				s.mustReleaseByDecode(t, decode, c.releases)
				s.mustCount(t, 0, "tandem_retries_total")
			})
		})
	}
}

// A redo is a local prefill like any other: strict plans and an empty budget forbid it.
func TestRedoIsForbidden(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		run := func(t *testing.T, o option, header ...string) (reply, *rig, *fakeEngine) {
			prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, says(500, "text/plain", ""), q.answer())
			s := startRig(t, decode.addr, o)
			got := post(t, s.url+completionsPath, q.body, append(header, pd.HeaderPrefill, prefill.addr)...)
			decode.mustSee(t, q.decode)
			return got, s, decode
		}
		t.Run("strict", func(t *testing.T) {
			got, s, decode := run(t, soon, pd.HeaderPlan, strictPlan)
			got.mustRefuse(t, http.StatusBadGateway, pd.PrefillFailed)
			if got.phases(t) != "epp recv prefill handoff first" {
				t.Errorf("phases %s", got.phases(t))
			}
			s.mustReleaseByDecode(t, decode, 1)
		})
		t.Run("no budget", func(t *testing.T) {
			got, s, decode := run(t, noBudget)
			got.mustRefuse(t, http.StatusServiceUnavailable, pd.Budget)
			s.mustReleaseByDecode(t, decode, 1)
		})
	})
}

// An answer that is not streamed may take any time. Only a prefill pod that has died shows that it will never come.
func TestSilentDecode(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		t.Run("prefill alive", func(t *testing.T) {
			g := newGate()
			prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, then(g.act, q.answer()))
			s := startRig(t, decode.addr, set(func(c *Config) { c.Engine.FirstEvent = 10 * time.Millisecond }))
			answers := make(chan reply, 1)
			go func() { answers <- post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr) }()
			for range 3 {
				wait(t, prefill.probed, "a look at the prefill pod")
			}
			close(g.opened)
			got := <-answers
			got.mustBe(t, 200, servedRemote)
			if got.body != q.right() {
				t.Errorf("body %s", got.body)
			}
			decode.mustSee(t, q.decode)
			s.mustReleaseByDecode(t, decode, 0)
		})
		for name, die := range map[string]func(*fakeEngine){"prefill sick": (*fakeEngine).failHealth, "prefill unreachable": (*fakeEngine).crash} {
			t.Run(name, func(t *testing.T) {
				g := newGate()
				prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, g.act, q.answer())
				s := startRig(t, decode.addr, soon)
				answers := make(chan reply, 1)
				go func() { answers <- post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr) }()
				wait(t, g.arrived, "the decode leg")
				die(prefill)
				got := <-answers
				got.mustBe(t, 200, transferFailed)
				if got.body != q.right() {
					t.Errorf("body %s", got.body)
				}
				decode.mustSee(t, q.decode, q.local)
				s.mustReleaseByDecode(t, decode, 1)
				s.mustCount(t, 1, "tandem_retries_total", "leg", "decode", "cause", "timeout")
			})
		}
	})
}

// A hand-off that is too old may point at another request's KV: it is released, never read.
func TestLateHandoff(t *testing.T) {
	t.Parallel()
	const late = "local;reason=handoff-late;attempts=1;candidate=0"
	both(t, func(t *testing.T, q question) {
		t.Run("before the leg is sent", func(t *testing.T) {
			prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, q.answer())
			s := startRig(t, decode.addr, set(func(c *Config) { c.Fallback.Lease = time.Nanosecond }))
			got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr)
			got.mustBe(t, 200, late)
			if got.body != q.right() {
				t.Errorf("body %s", got.body)
			}
			decode.mustSee(t, q.local)
			s.mustReleaseByDecode(t, decode, 1)
			s.mustCount(t, 1, "tandem_retries_total", "leg", "decode", "cause", "late")
		})
		t.Run("while the leg is sent", func(t *testing.T) {
			prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, q.answer())
			s := startRig(t, decode.addr)
			// The hand-off has a second left when the leg begins to be sent, and connecting takes longer than that.
			early := s.legs().Config
			early.Now = func() time.Time { return time.Now().Add(time.Second - s.cfg.Fallback.Lease*2/3) }
			s.ranks[0].legs = handoff.New(early)
			dial, slow := s.local.DialContext, sync.OnceFunc(func() { <-time.After(1100 * time.Millisecond) })
			s.local.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				slow()
				return dial(ctx, network, address)
			}
			got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr)
			got.mustBe(t, 200, late)
			if got.body != q.right() {
				t.Errorf("body %s", got.body)
			}
			decode.mustSee(t, q.decode, q.local)
			s.mustReleaseByDecode(t, decode, 1)
		})
	})
}

// Nothing is prefilled for an unreachable decode engine: no engine could release the hand-off.
func TestNoPrefillForTheDead(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, q.answer())
		s := startRig(t, decode.addr)
		post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr).mustBe(t, 200, "remote;reason=external;attempts=1;candidate=0")
		decode.crash()
		// The next request probes the engine after a leg that failed, however soon it comes, and after some time.
		post(t, s.url+completionsPath, q.body).mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
		for range 3 {
			post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr).mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
		}
		if n := len(prefill.requests()); n != 1 {
			t.Errorf("prefill got %d requests, want 1", n)
		}
		s.end()
		s.mustCount(t, 0, "tandem_kv_stranded_total")
	})
}

// A hand-off is stranded only if no engine could be asked to release it.
func TestStranded(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		t.Run("decode goes down", func(t *testing.T) {
			decode := startEngine(t, q.answer())
			prefill := startEngine(t, func(w http.ResponseWriter, r *asked) {
				decode.crash()
				offering(handoffParams)(w, r)
			})
			s := startRig(t, decode.addr)
			got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr)
			got.mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
			s.end()
			s.mustCount(t, 1, "tandem_kv_stranded_total")
			s.mustCount(t, 1, "tandem_kv_release_total", "way", "cancel", "result", "failed")
		})
		for name, releaseAnswer := range map[string]act{"release accepted as a request": says(200, "application/json", "{}"),
			"release failed": says(500, "text/plain", ""), "release cut": resets} {
			t.Run(name, func(t *testing.T) {
				prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, says(500, "text/plain", ""), q.answer())
				decode.releaseAnswer = releaseAnswer
				s := startRig(t, decode.addr)
				post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr).mustBe(t, 200, transferFailed)
				s.end()
				s.mustCount(t, 1, "tandem_kv_stranded_total")
				s.mustCount(t, 1, "tandem_kv_release_total", "way", "cancel", "result", "failed")
				s.mustCount(t, 0, "tandem_kv_release_total", "result", "ok")
			})
		}
	})
}

// An answer that breaks off in the middle must not look complete, and is not computed again.
func TestWholeAnswerBreaksOff(t *testing.T) {
	for name, header := range map[string][]string{"remote": {}, "local": {pd.HeaderMode, "bypass"}} {
		t.Run(name, func(t *testing.T) {
			for kind, act := range map[string]act{
				"announced": breaks("application/json", wholeAnswer),
				"chunked":   then(chunked(200, "application/json", wholeAnswer), closes),
			} {
				t.Run(kind, func(t *testing.T) {
					prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, act)
					s := startRig(t, decode.addr)
					got := post(t, s.url+completionsPath, ask(false).body, append(header, pd.HeaderPrefill, prefill.addr)...)
					if got.status != 200 || got.err == nil {
						t.Errorf("%d %s, %v: half an answer looks whole", got.status, got.body, got.err)
					}
					if len(decode.requests()) != 1 {
						t.Errorf("decode was asked %d times", len(decode.requests()))
					}
				})
			}
			t.Run("before its first byte", func(t *testing.T) {
				prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, then(chunked(200, "application/json", ""), closes))
				s := startRig(t, decode.addr)
				got := post(t, s.url+completionsPath, ask(false).body, append(header, pd.HeaderPrefill, prefill.addr)...)
				got.mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
				if name == "remote" { // it was redone, and broke off again
					decode.mustSee(t, ask(false).decode, ask(false).body)
				}
			})
		})
	}
}
