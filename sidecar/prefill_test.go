package sidecar

import (
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

const (
	planID     = "0123456789abcdef"
	remotePlan = "remote;id=" + planID + ";reason=uncached;strict=0;epp=0.8"
	strictPlan = "remote;id=" + planID + ";reason=forced;strict=1;epp=0.8"
)

// prefillFault is a way in which a prefill pod can fail.
type prefillFault struct {
	name     string
	act      act // nil: connecting is refused
	cause    string
	reason   pd.Reason
	releases int // of the hand-off that came with it
}

var prefillFaults = []prefillFault{
	{"refused", nil, "connection", pd.PrefillFailed, 0},
	{"reset before the answer", resets, "connection", pd.PrefillFailed, 0},
	{"closed before the answer", closes, "connection", pd.PrefillFailed, 0},
	{"reset after the headers", then(chunked(200, "application/json", ""), resets), "connection", pd.PrefillFailed, 0},
	{"truncated", breaks("application/json", offer(handoffParams)), "connection", pd.PrefillFailed, 0},
	{"truncated in chunks", then(chunked(200, "application/json", offer(handoffParams)[:60]), closes), "connection", pd.PrefillFailed, 0},
	{"slow", hangs, "timeout", pd.PrefillFailed, 0},
	{"slow body", then(chunked(200, "application/json", "{"), hangs), "timeout", pd.PrefillFailed, 0},
	{"no JSON", says(200, "text/html", "<html>"), "invalid", pd.HandoffInvalid, 0},
	{"empty", says(200, "application/json", ""), "invalid", pd.HandoffInvalid, 0},
	{"half JSON", says(200, "application/json", `{"kv_transfer_params":`), "invalid", pd.HandoffInvalid, 0},
	{"no params", says(200, "application/json", wholeAnswer), "invalid", pd.HandoffInvalid, 0},
	{"params null", offering("null"), "invalid", pd.HandoffInvalid, 0},
	{"params a string", offering(`"x"`), "invalid", pd.HandoffInvalid, 0},
	{"params empty", offering("{}"), "invalid", pd.HandoffInvalid, 0},
	{"params of a prefill leg", offering(primed), "invalid", pd.HandoffInvalid, 0},
	{"params without blocks", offering(strings.Replace(handoffParams, "[3, 1, 2]", "[]", 1)), "invalid", pd.HandoffInvalid, 0},
	{"params with flat blocks", offering(strings.Replace(handoffParams, "[[3, 1, 2]]", "[3, 1, 2]", 1)), "invalid", pd.HandoffInvalid, 0},
	{"params without engine", offering(strings.Replace(handoffParams, "remote_engine_id", "engine_id", 1)), "invalid", pd.HandoffInvalid, 0},
	{"params with port 0", offering(strings.Replace(handoffParams, "5600", "0", 1)), "invalid", pd.HandoffInvalid, 0},
	{"params with too few blocks", offering(strings.Replace(handoffParams, "[3, 1, 2]", "[3, 1]", 1)), "invalid", pd.HandoffInvalid, 1},
	{"params twice", says(200, "application/json", `{"kv_transfer_params":`+handoffParams+`,"kv_transfer_params":`+handoffParams+`}`), "invalid", pd.HandoffInvalid, 0},
	{"compressed", zips, "invalid", pd.HandoffInvalid, 0},
	{"too large", announcesTooMuch, "too-large", pd.HandoffInvalid, 0},
	{"too large, unannounced", chunked(200, "application/json", `"`+strings.Repeat("x", 16<<20)+`"`), "too-large", pd.HandoffInvalid, 0},
	{"redirect", says(307, "text/plain", "", "Location", "/elsewhere"), "status", pd.PrefillFailed, 0},
	{"no content", func(w http.ResponseWriter, _ *asked) { w.WriteHeader(204) }, "status", pd.PrefillFailed, 0},
	{"408", says(408, "text/plain", "late"), "status", pd.PrefillFailed, 0},
	{"425", says(425, "text/plain", "early"), "status", pd.PrefillFailed, 0},
	{"429", says(429, "text/plain", "busy"), "status", pd.PrefillFailed, 0},
	{"500", says(500, "text/plain", "oops"), "status", pd.PrefillFailed, 0},
	{"502", says(502, "text/plain", "oops"), "status", pd.PrefillFailed, 0},
	{"503", says(503, "text/plain", "oops"), "status", pd.PrefillFailed, 0},
}

// zips compresses although the request asks for identity.
func zips(w http.ResponseWriter, _ *asked) {
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	_, _ = z.Write([]byte(offer(handoffParams)))
	_ = z.Close()
}

// announcesTooMuch announces more bytes than the sidecar accepts.
func announcesTooMuch(w http.ResponseWriter, _ *asked) {
	w.Header().Set("Content-Length", "16777217")
	w.WriteHeader(http.StatusOK)
	flush(w)
}

// options returns the settings under which the fault shows: a short timeout, if the pod is silent.
func (f prefillFault) options() option {
	return set(func(c *Config) {
		c.Prefill.BlockSize = 16
		if f.cause == "timeout" {
			c.Prefill.Timeout = 500 * time.Millisecond
		}
	})
}

// start serves a pod with the fault.
func (f prefillFault) start(t *testing.T) (addr string, e *fakeEngine) {
	t.Helper()
	if f.act == nil {
		return refusingAddr(t), nil
	}
	e = startEngine(t, f.act)
	return e.addr, e
}

func TestPrefillFails(t *testing.T) {
	for _, f := range prefillFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			t.Run("second candidate", func(t *testing.T) { testSecondCandidate(t, f) })
			t.Run("local", func(t *testing.T) { both(t, func(t *testing.T, q question) { testFallback(t, f, q) }) })
			t.Run("strict", func(t *testing.T) { testStrict(t, f) })
			t.Run("no budget", func(t *testing.T) { testNoBudget(t, f) })
		})
	}
}

func testSecondCandidate(t *testing.T, f prefillFault) {
	q := ask(false)
	first, bad := f.start(t)
	second, decode := startEngine(t, offering(handoffParams)), startEngine(t, q.answer())
	s := startRig(t, decode.addr, f.options())
	got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, first+", "+second.addr)
	got.mustBe(t, 200, "remote;reason=external;attempts=2;candidate=1")
	if got.body != wholeAnswer {
		t.Errorf("body %s", got.body)
	}
	if bad != nil {
		bad.mustSee(t, q.prefill)
	}
	second.mustSee(t, q.prefill)
	decode.mustSee(t, q.decode)
	s.mustCount(t, 1, "tandem_retries_total")
	s.mustCount(t, 1, "tandem_retries_total", "leg", "prefill", "cause", f.cause)
	s.mustCount(t, 1, "tandem_requests_total", "component", "sidecar", "decision", "remote", "reason", "external", "code", "200")
	s.mustCount(t, 2, "tandem_leg_seconds", "leg", "prefill")
	s.end()
	s.mustCount(t, float64(f.releases), "tandem_kv_release_total")
	if n := len(decode.releases()); n != f.releases {
		t.Errorf("decode was asked for %d releases, want %d", n, f.releases)
	}
}

func testFallback(t *testing.T, f prefillFault, q question) {
	first, _ := f.start(t)
	decode := startEngine(t, q.answer())
	s := startRig(t, decode.addr, f.options(), set(func(c *Config) { c.Fallback.Burst = 2 }))
	got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, first, pd.HeaderPlan, remotePlan)
	got.mustBe(t, 200, "local;reason="+string(f.reason)+";attempts=1;candidate=0")
	if got.body != q.right() {
		t.Errorf("body %s", got.body)
	}
	if want := map[bool]string{true: "epp recv prefill", false: "epp recv prefill first"}[q.stream]; got.phases(t) != want {
		t.Errorf("phases %s, want %s", got.phases(t), want)
	}
	decode.mustSee(t, q.local)
	s.mustCount(t, 1, "tandem_requests_total", "decision", "local", "reason", string(f.reason), "code", "200")
	s.mustCount(t, 1, "tandem_fallback_tokens")
}

func testStrict(t *testing.T, f prefillFault) {
	first, _ := f.start(t)
	decode := startEngine(t, ask(false).answer())
	s := startRig(t, decode.addr, f.options())
	got := post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, first, pd.HeaderPlan, strictPlan)
	got.mustRefuse(t, http.StatusBadGateway, pd.PrefillFailed)
	got.mustBe(t, 502, "refused;reason=prefill-failed;attempts=1;candidate=0")
	decode.mustSee(t)
	s.mustCount(t, float64(s.cfg.Fallback.Burst), "tandem_fallback_tokens")
	s.mustCount(t, 1, "tandem_requests_total", "decision", "refused", "reason", "prefill-failed", "code", "502")
}

func testNoBudget(t *testing.T, f prefillFault) {
	first, _ := f.start(t)
	decode := startEngine(t, ask(false).answer())
	s := startRig(t, decode.addr, f.options(), noBudget)
	got := post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, first)
	got.mustRefuse(t, http.StatusServiceUnavailable, pd.Budget)
	got.mustBe(t, 503, "refused;reason=budget;attempts=1;candidate=0")
	if got.phases(t) != "recv prefill" {
		t.Errorf("phases %s", got.phases(t))
	}
	decode.mustSee(t)
	s.mustCount(t, 1, "tandem_requests_total", "decision", "refused", "reason", "budget", "code", "503")
}

// A client's error is final: no other candidate is tried, and nothing is computed locally.
func TestPrefillRefusesTheClient(t *testing.T) {
	for _, status := range []int{400, 401, 404, 413, 422} {
		for _, form := range []string{"json", "text", "chunked", "compressed"} {
			t.Run(http.StatusText(status)+"/"+form, func(t *testing.T) {
				const word = "{\"error\": {\"message\":\"no\\u0020 such <model>\"}}\n"
				answers := map[string]act{
					"json":       says(status, "application/json", word, "X-Engine", "1", "X-Engine", "2", "Server-Timing", "e;dur=1", "X-Tandem-Retry", "1"),
					"text":       says(status, "text/plain", word),
					"chunked":    chunked(status, "application/json", word),
					"compressed": says(status, "application/json", word, "Content-Encoding", "br"),
				}
				first, second, decode := startEngine(t, answers[form]), startEngine(t, offering(handoffParams)), startEngine(t, ask(false).answer())
				s := startRig(t, decode.addr)
				got := post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, first.addr+","+second.addr)
				got.mustBe(t, status, "refused;reason=bad-request;attempts=1;candidate=0")
				if got.body != word {
					t.Errorf("body %q", got.body)
				}
				if kind := got.header.Get("Content-Type"); (kind == "text/plain") != (form == "text") {
					t.Errorf("content type %s", kind)
				}
				if form == "json" && (len(got.header["X-Engine"]) != 2 || got.header.Get(pd.HeaderRetry) != "" || strings.Contains(got.header.Get("Server-Timing"), "e;")) {
					t.Errorf("headers %v", got.header)
				}
				if form == "compressed" && got.header.Get("Content-Encoding") != "br" {
					t.Errorf("headers %v", got.header)
				}
				first.mustSee(t, ask(false).prefill)
				second.mustSee(t)
				decode.mustSee(t)
			})
		}
	}
}

// The prefill leg sets a limit of one token, which some engines refuse together with a forced tool call: the client did
// nothing wrong.
func TestForcedToolIsServedLocally(t *testing.T) {
	for _, choice := range []string{`"required"`, `{"type":"function","function":{"name":"f"}}`} {
		for _, status := range []int{400, 422} {
			body := `{"model":"m","messages":[],"tool_choice":` + choice + `}`
			prefill, decode := startEngine(t, says(status, "application/json", "{}")), startEngine(t, ask(false).answer())
			s := startRig(t, decode.addr)
			got := post(t, s.url+chatPath, body, pd.HeaderPrefill, prefill.addr)
			got.mustBe(t, 200, "local;reason=prefill-failed;attempts=1;candidate=0")
			decode.mustSee(t, body)

			got = post(t, s.url+chatPath, body, pd.HeaderPrefill, prefill.addr, pd.HeaderPlan, strictPlan)
			got.mustRefuse(t, http.StatusBadGateway, pd.PrefillFailed)
		}
	}
	t.Run("not forced", func(t *testing.T) {
		prefill, decode := startEngine(t, says(400, "application/json", "{}")), startEngine(t, ask(false).answer())
		s := startRig(t, decode.addr)
		post(t, s.url+chatPath, `{"model":"m","messages":[],"tool_choice":"auto"}`, pd.HeaderPrefill, prefill.addr).
			mustBe(t, 400, "refused;reason=bad-request;attempts=1;candidate=0")
	})
}

func TestPrefillRetriesTheSameCandidate(t *testing.T) {
	twice := set(func(c *Config) { c.Prefill.MaxRetries = 2 })
	cases := []struct {
		name     string
		act      act
		again    bool // on the same candidate
		decision string
	}{
		{"502", says(502, "text/plain", ""), true, "remote;reason=external;attempts=3;candidate=0"},
		{"503", says(503, "text/plain", ""), true, "remote;reason=external;attempts=3;candidate=0"},
		{"504", says(504, "text/plain", ""), true, "remote;reason=external;attempts=3;candidate=0"},
		{"reset", resets, true, "remote;reason=external;attempts=3;candidate=0"},
		{"500", says(500, "text/plain", ""), false, "remote;reason=external;attempts=2;candidate=1"},
		{"429", says(429, "text/plain", ""), false, "remote;reason=external;attempts=2;candidate=1"},
		{"invalid", offering("null"), false, "remote;reason=external;attempts=2;candidate=1"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			first, second := startEngine(t, c.act, c.act, offering(handoffParams)), startEngine(t, offering(handoffParams))
			decode := startEngine(t, ask(false).answer())
			s := startRig(t, decode.addr, twice)
			post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, first.addr+","+second.addr).mustBe(t, 200, c.decision)
			if c.again {
				first.mustSee(t, ask(false).prefill, ask(false).prefill, ask(false).prefill)
				second.mustSee(t)
				return
			}
			first.mustSee(t, ask(false).prefill)
			second.mustSee(t, ask(false).prefill)
		})
	}
	t.Run("all tries used up", func(t *testing.T) {
		first, second := startEngine(t, resets), startEngine(t, offering(handoffParams))
		s := startRig(t, startEngine(t, ask(false).answer()).addr, twice)
		post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, first.addr+","+second.addr).
			mustBe(t, 200, "remote;reason=external;attempts=4;candidate=1")
		s.mustCount(t, 3, "tandem_retries_total", "leg", "prefill", "cause", "connection")
	})
}

func TestPrefillOverTLS(t *testing.T) {
	for _, trusting := range []bool{true, false} {
		t.Run(fmt.Sprintf("verified=%v", !trusting), func(t *testing.T) {
			prefill, decode := &fakeEngine{script: []act{offering(handoffParams)}}, startEngine(t, ask(false).answer())
			server := httptest.NewUnstartedServer(prefill)
			server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshake that the sidecar breaks off
			server.StartTLS()
			defer server.Close()
			s := startRig(t, decode.addr, set(func(c *Config) {
				c.Prefill.TLS = func() *tls.Config { return &tls.Config{InsecureSkipVerify: trusting} }
			}))
			got := post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, server.Listener.Addr().String())
			if trusting {
				got.mustBe(t, 200, servedRemote)
				prefill.mustSee(t, ask(false).prefill)
				return
			}
			got.mustBe(t, 200, "local;reason=prefill-failed;attempts=1;candidate=0")
			prefill.mustSee(t)
			s.mustCount(t, 1, "tandem_retries_total", "leg", "prefill", "cause", "tls")
		})
	}
}

// The budget is a share of all requests: other requests earn back what a burst has spent.
func TestBudgetIsEarned(t *testing.T) {
	prefill, decode := startEngine(t, says(500, "text/plain", "")), startEngine(t, ask(false).answer())
	s := startRig(t, decode.addr, set(func(c *Config) { c.Fallback.Burst, c.Fallback.Ratio = 1, 0.5 }))
	remote := func() reply { return post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, prefill.addr) }
	remote().mustBe(t, 200, "local;reason=prefill-failed;attempts=1;candidate=0")
	remote().mustBe(t, 503, "refused;reason=budget;attempts=1;candidate=0")
	remote().mustBe(t, 200, "local;reason=prefill-failed;attempts=1;candidate=0")
	post(t, s.url+completionsPath, ask(false).body).mustBe(t, 200, "local;reason=unplanned")
	post(t, s.url+completionsPath, ask(false).body).mustBe(t, 200, "local;reason=unplanned")
	remote().mustBe(t, 200, "local;reason=prefill-failed;attempts=1;candidate=0")
}

// A picker that sends no plan, as llm-d's, reads no results, and goes on naming a prefill pod that has died. Its requests are not
// refused for the fallback budget, while those of Tandem's picker, which soon plans others, are.
func TestDeadPrefillOfAForeignPicker(t *testing.T) {
	dead := refusingAddr(t)
	for _, c := range []struct {
		name   string
		header []string
		burst  int
		want   []string
	}{
		{"foreign", []string{pd.HeaderPrefill, dead}, 3, []string{
			"200 local;reason=prefill-failed;attempts=1;candidate=0", "200 local;reason=prefill-failed;attempts=1;candidate=0",
			"200 local;reason=prefill-failed;attempts=1;candidate=0", // now the pod is down
			"200 local;reason=prefill-failed", "200 local;reason=prefill-failed", "200 local;reason=prefill-failed"}},
		{"foreign, no fallback allowed", []string{pd.HeaderPrefill, dead}, 0, []string{
			"503 refused;reason=budget;attempts=1;candidate=0", "503 refused;reason=budget;attempts=1;candidate=0",
			"503 refused;reason=budget;attempts=1;candidate=0", "503 refused;reason=budget"}},
		{"foreign, forced", []string{pd.HeaderPrefill, dead, pd.HeaderMode, "force"}, 3, []string{
			"502 refused;reason=prefill-failed;attempts=1;candidate=0", "502 refused;reason=prefill-failed;attempts=1;candidate=0",
			"502 refused;reason=prefill-failed;attempts=1;candidate=0", "502 refused;reason=prefill-failed;attempts=1;candidate=0"}},
		{"ours", []string{pd.HeaderPrefill, dead, pd.HeaderPlan, remotePlan}, 3, []string{
			"200 local;reason=prefill-failed;attempts=1;candidate=0", "200 local;reason=prefill-failed;attempts=1;candidate=0",
			"200 local;reason=prefill-failed;attempts=1;candidate=0", "503 refused;reason=budget", "503 refused;reason=budget"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			decode := startEngine(t, ask(false).answer())
			s := startRig(t, decode.addr, set(func(cfg *Config) {
				cfg.Fallback.Ratio, cfg.Fallback.Burst = 0, c.burst
				cfg.Prefill.MaxRetries = 0
			}))
			for i, want := range c.want {
				got := post(t, s.url+completionsPath, ask(false).body, c.header...)
				// A request that comes a second after the last attempt makes one more, and tells of it.
				if text := fmt.Sprintf("%d %s", got.status, got.header.Get(pd.HeaderDecision)); !strings.HasPrefix(text, want) {
					t.Errorf("request %d: %s, want %s", i+1, text, want)
				}
			}
		})
	}
}

// A pod that is down is not the first choice of a request that names others.
func TestDeadPrefillIsSkipped(t *testing.T) {
	for _, mode := range []string{"auto", "force"} {
		t.Run(mode, func(t *testing.T) {
			dead, prefill := refusingAddr(t), startEngine(t, offering(handoffParams))
			s := startRig(t, startEngine(t, ask(false).answer()).addr, set(func(c *Config) { c.Prefill.MaxRetries = 0 }))
			decision := func() string {
				return post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, dead+","+prefill.addr, pd.HeaderMode, mode).
					header.Get(pd.HeaderDecision)
			}
			for i := range 3 {
				if got := decision(); got != "remote;reason=external;attempts=2;candidate=1" {
					t.Errorf("request %d: %s", i+1, got)
				}
			}
			for range 10 { // all of them a second after the last attempt, which tries the pod again, are unlikely
				if decision() == "remote;reason=external;attempts=1;candidate=1" {
					return
				}
			}
			t.Error("the pod is tried first, although it is down")
		})
	}
}

// If the decode engine dies while one candidate fails, the next one is not tried: no engine could release its hand-off.
func TestNoSecondCandidateForADeadEngine(t *testing.T) {
	decode := startEngine(t, ask(false).answer())
	first := startEngine(t, func(w http.ResponseWriter, r *asked) {
		decode.crash()
		over := time.NewTimer(200 * time.Millisecond) // twice as long as the sidecar takes a connection as a sign of life
		defer over.Stop()
		<-over.C
		says(http.StatusInternalServerError, "text/plain", "oops")(w, r)
	})
	second := startEngine(t, offering(handoffParams))
	s := startRig(t, decode.addr)
	post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, first.addr+", "+second.addr).
		mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
	if n := len(second.requests()); n != 0 {
		t.Errorf("the second candidate was asked %d times", n)
	}
}
