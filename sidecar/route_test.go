package sidecar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/intake"
)

const localPlan = "local;id=" + planID + ";reason=below-threshold;strict=0;epp=1.5"

// pool is a sidecar between two engines, for requests that differ in their headers only.
type pool struct {
	*rig
	prefill, decode *fakeEngine
}

func startPool(t *testing.T, options ...option) pool {
	t.Helper()
	p, d := startEngine(t, offering(handoffParams)), startEngine(t, ask(false).answer())
	return pool{startRig(t, d.addr, options...), p, d}
}

func TestRouteHeaders(t *testing.T) {
	p := startPool(t)
	here := p.prefill.addr
	const remote, forced = "remote;reason=external;attempts=1;candidate=0", "remote;reason=uncached;attempts=1;candidate=0"
	cases := []struct {
		name     string
		header   []string
		status   int
		decision string
	}{
		{"nothing", nil, 200, "local;reason=unplanned"},
		{"a candidate", []string{pd.HeaderPrefill, here}, 200, remote},
		{"a candidate by llm-d's newer name", []string{pd.HeaderPrefillNew, here}, 200, remote},
		{"both names, of which the older counts", []string{pd.HeaderPrefillNew, "?", pd.HeaderPrefill, here}, 200, remote},
		{"two lines of candidates", []string{pd.HeaderPrefill, here, pd.HeaderPrefill, here}, 200, remote},

		{"auto", []string{pd.HeaderMode, "auto", pd.HeaderPrefill, here}, 200, remote},
		{"bypass", []string{pd.HeaderMode, "bypass", pd.HeaderPrefill, here}, 200, "local;reason=bypassed"},
		{"bypass without candidates", []string{pd.HeaderMode, "bypass"}, 200, "local;reason=bypassed"},
		{"bypass with garbage for a candidate", []string{pd.HeaderMode, "bypass", pd.HeaderPrefill, "?"}, 200, "local;reason=bypassed"},
		{"force", []string{pd.HeaderMode, "force", pd.HeaderPrefill, here}, 200, remote},
		{"force without candidates", []string{pd.HeaderMode, "force"}, 503, "refused;reason=no-prefill"},
		{"force with fallback", []string{pd.HeaderMode, "force;fallback", pd.HeaderPrefill, here}, 200, remote},
		{"force with fallback, without candidates", []string{pd.HeaderMode, "force; fallback"}, 200, "local;reason=no-prefill"},
		{"an unknown mode", []string{pd.HeaderMode, "maybe", pd.HeaderPrefill, here}, 400, "refused;reason=bad-pd-header"},
		{"an empty mode", []string{pd.HeaderMode, "", pd.HeaderPrefill, here}, 400, "refused;reason=bad-pd-header"},
		{"a mode in capitals", []string{pd.HeaderMode, "Force"}, 400, "refused;reason=bad-pd-header"},
		{"an unknown parameter", []string{pd.HeaderMode, "force;now"}, 400, "refused;reason=bad-pd-header"},
		{"two modes", []string{pd.HeaderMode, "auto", pd.HeaderMode, "auto"}, 400, "refused;reason=bad-pd-header"},

		{"a remote plan", []string{pd.HeaderPlan, remotePlan, pd.HeaderPrefill, here}, 200, forced},
		{"a remote plan without candidates", []string{pd.HeaderPlan, remotePlan}, 200, "local;reason=no-prefill"},
		{"a strict plan without candidates", []string{pd.HeaderPlan, strictPlan}, 503, "refused;reason=no-prefill"},
		{"a local plan", []string{pd.HeaderPlan, localPlan}, 200, "local;reason=below-threshold"},
		{"a local plan with candidates", []string{pd.HeaderPlan, localPlan, pd.HeaderPrefill, here}, 200, "local;reason=below-threshold"},
		{"plan remote, mode bypass", []string{pd.HeaderPlan, remotePlan, pd.HeaderMode, "bypass", pd.HeaderPrefill, here}, 200, forced},
		{"plan local, mode force", []string{pd.HeaderPlan, localPlan, pd.HeaderMode, "force", pd.HeaderPrefill, here}, 200, "local;reason=below-threshold"},
		{"plan remote, mode garbage", []string{pd.HeaderPlan, remotePlan, pd.HeaderMode, "?", pd.HeaderPrefill, here}, 200, forced},
		{"two plans", []string{pd.HeaderPlan, remotePlan, pd.HeaderPlan, remotePlan, pd.HeaderPrefill, here}, 400, "refused;reason=bad-request"},
		{"an empty plan", []string{pd.HeaderPlan, "", pd.HeaderPrefill, here}, 400, "refused;reason=bad-request"},
		{"a plan without members", []string{pd.HeaderPlan, "remote", pd.HeaderPrefill, here}, 400, "refused;reason=bad-request"},
		{"a plan with an unknown reason", []string{pd.HeaderPlan, strings.Replace(remotePlan, "uncached", "mood", 1)}, 400, "refused;reason=bad-request"},
		{"a plan whose reason is of the other kind", []string{pd.HeaderPlan, strings.Replace(remotePlan, "uncached", "bypassed", 1)}, 400, "refused;reason=bad-request"},
		{"a plan with a short id", []string{pd.HeaderPlan, strings.Replace(remotePlan, planID, "0123", 1)}, 400, "refused;reason=bad-request"},
		{"a plan of neither kind", []string{pd.HeaderPlan, strings.Replace(remotePlan, "remote", "both", 1)}, 400, "refused;reason=bad-request"},
	}
	for _, target := range []string{"", ",", here + ",", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:x", "10.0.0.1:65536", "http://10.0.0.1:80", "a@10.0.0.1:80", "::1:80",
		"[fe80::1%25eth0]:80", "10.0.0.1:80/x", "10.0.0:80", "[10.0.0.1]:80", "a b:80", strings.TrimSuffix(strings.Repeat(here+",", 17), ",")} {
		cases = append(cases, struct {
			name     string
			header   []string
			status   int
			decision string
		}{"candidate " + target, []string{pd.HeaderPrefill, target}, 400, "refused;reason=bad-request"})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			prefills, decodes := len(p.prefill.requests()), len(p.decode.requests())
			got := post(t, p.url+completionsPath, ask(false).body, c.header...)
			got.mustBe(t, c.status, c.decision)
			if c.status != 200 {
				got.mustRefuse(t, c.status, got.decision(t).Reason)
			}
			remote := strings.HasPrefix(c.decision, "remote")
			if got := len(p.prefill.requests()) - prefills; (got == 1) != remote {
				t.Errorf("prefill was asked %d times", got)
			}
			if got := len(p.decode.requests()) - decodes; (got == 1) != (c.status == 200) {
				t.Errorf("decode was asked %d times", got)
			}
			if hasEPP := strings.Contains(got.phases(t), "epp"); hasEPP != (c.status != 400 && len(c.header) > 0 && c.header[0] == pd.HeaderPlan) {
				t.Errorf("phases %s", got.phases(t))
			}
		})
	}
}

func TestModeIsIgnoredWhenOff(t *testing.T) {
	p := startPool(t, set(func(c *Config) { c.Trust.PDHeader = "off" }))
	for _, mode := range []string{"bypass", "force", "garbage"} {
		post(t, p.url+completionsPath, ask(false).body, pd.HeaderMode, mode, pd.HeaderPrefill, p.prefill.addr).mustBe(t, 200, servedRemote)
		post(t, p.url+completionsPath, ask(false).body, pd.HeaderMode, mode).mustBe(t, 200, "local;reason=unplanned")
	}
}

func TestDeniedTargets(t *testing.T) {
	private := set(func(c *Config) { c.Trust.Allow = nil })
	_, port, err := net.SplitHostPort(startPool(t).prefill.addr)
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name, target string
		allow        option
		attempts     int
	}{
		{"loopback by default", "127.0.0.1:" + port, private, 0},
		{"loopback in IPv6", "[::1]:" + port, private, 0},
		{"loopback in IPv6's clothes", "[::ffff:127.0.0.1]:" + port, private, 0},
		{"metadata", "169.254.169.254:80", private, 0},
		{"public", "8.8.8.8:80", private, 0},
		{"one of two", "10.255.255.1:1,169.254.169.254:80", private, 0},
		{"a name, when it is dialled", "localhost:" + port, private, 1},
		{"another port", "127.0.0.1:9", set(func(c *Config) {
			c.Trust.Allow = []intake.AllowRule{{Prefix: netip.MustParsePrefix("127.0.0.0/8"), Port: 10}}
		}), 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := startPool(t, c.allow)
			got := post(t, p.url+completionsPath, ask(false).body, pd.HeaderPrefill, c.target)
			got.mustRefuse(t, http.StatusForbidden, pd.DeniedTarget)
			if d := got.decision(t); d.Attempts != c.attempts {
				t.Errorf("%v", d)
			}
			if strings.Contains(got.body, port) || strings.Contains(got.body, "169.") {
				t.Errorf("the answer tells an address: %s", got.body)
			}
			p.decode.mustSee(t)
		})
	}
	t.Run("a name that is allowed", func(t *testing.T) {
		p := startPool(t)
		_, port, err := net.SplitHostPort(p.prefill.addr)
		if err != nil {
			t.Fatal(err)
		}
		post(t, p.url+completionsPath, ask(false).body, pd.HeaderPrefill, "localhost:"+port).mustBe(t, 200, servedRemote)
	})
}

func TestIPv6Target(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("this machine has no IPv6: %v", err)
	}
	engine := &fakeEngine{script: []act{offering(handoffParams)}}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: engine}}
	s.Start()
	defer s.Close()
	p := startPool(t)
	post(t, p.url+completionsPath, ask(false).body, pd.HeaderPrefill, l.Addr().String()).mustBe(t, 200, servedRemote)
	engine.mustSee(t, ask(false).prefill)
}

// anthropicError is the error of an answer in Anthropic's shape.
type anthropicError struct {
	Type  string
	Error struct{ Type, Message string }
}

func TestUnsplittable(t *testing.T) {
	chat, completion := `{"model":"m","messages":[]`, `{"model":"m","prompt":"x"`
	cases := []struct {
		api  pd.API
		body string
	}{
		{pd.APIChat, chat + `,"n":2}`},
		{pd.APICompletions, completion + `,"best_of":2}`},
		{pd.APICompletions, `{"model":"m","prompt":["a","b"]}`},
		{pd.APICompletions, completion + `,"echo":true,"logprobs":1}`},
		{pd.APICompletions, completion + `,"prompt_logprobs":0}`},
		{pd.APIMessages, chat + `,"max_tokens":5,"n":2}`},
		{pd.APIResponses, `{"model":"m","input":"x","background":true}`},
		{pd.APIResponses, `{"model":"m","input":"x","previous_response_id":"resp_1"}`},
		{pd.APIResponses, `{"model":"m","input":"x","tools":[{"type":"web_search_preview"}]}`},
		{pd.APIGenerate, `{"model":"m","token_ids":[1],"sampling_params":{"n":2}}`},
		{pd.APIEmbeddings, chat + "}"},
	}
	for _, c := range cases {
		t.Run(c.api.String()+c.body, func(t *testing.T) {
			p := startPool(t)
			post(t, p.url+c.api.Path(), c.body, pd.HeaderPrefill, p.prefill.addr, pd.HeaderPlan, remotePlan).mustBe(t, 200, "local;reason=not-splittable")
			p.decode.mustSee(t, c.body)
			for _, header := range [][]string{{pd.HeaderPlan, strictPlan}, {pd.HeaderMode, "force"}} {
				got := post(t, p.url+c.api.Path(), c.body, append(header, pd.HeaderPrefill, p.prefill.addr)...)
				got.mustBe(t, 400, "refused;reason=not-splittable")
				var a anthropicError
				if c.api == pd.APIMessages {
					if err := json.Unmarshal([]byte(got.body), &a); err != nil || a.Type != "error" || a.Error.Type != "invalid_request_error" || a.Error.Message == "" {
						t.Errorf("body %s (%v)", got.body, err)
					}
				} else {
					got.mustRefuse(t, 400, pd.NotSplittable)
				}
			}
			p.prefill.mustSee(t)
		})
	}
}

// Refusals of the messages API have Anthropic's shape, from every place that refuses.
func TestRefusalsOfMessages(t *testing.T) {
	cases := []struct {
		name, kind string
		status     int
		header     []string
		options    []option
	}{
		{"denied", "permission_error", 403, []string{pd.HeaderPrefill, "8.8.8.8:80"}, nil},
		{"bad header", "invalid_request_error", 400, []string{pd.HeaderMode, "?"}, nil},
		{"no candidates", "overloaded_error", 503, []string{pd.HeaderMode, "force"}, nil},
		{"too large", "request_too_large", 413, nil, []option{set(func(c *Config) { c.Trust.BodyLimit = 1 })}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := post(t, startPool(t, c.options...).url+pd.APIMessages.Path(), "{}", c.header...)
			var e anthropicError
			if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.status != c.status || e.Type != "error" || e.Error.Type != c.kind || e.Error.Message == "" {
				t.Errorf("%d %s (%v)", got.status, got.body, err)
			}
			if d := got.decision(t); d.Verdict != pd.Refused || got.header.Get(pd.HeaderRetry) == "1" != (c.status == 503) {
				t.Errorf("%v, headers %v", d, got.header)
			}
		})
	}
}

// TestDeniedTargetIsLogged: the operator sees which address was denied; the client does not. A client that tries many does not
// fill the log.
func TestDeniedTargetIsLogged(t *testing.T) {
	for name, target := range map[string]string{"address": "8.8.8.8:80", "name": "localhost:80"} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			p := startPool(t, func(c *Config, to *Telemetry) {
				c.Trust.Allow = nil
				to.Log = slog.New(slog.NewTextHandler(&log, nil))
			})
			for range 3 {
				post(t, p.url+completionsPath, ask(false).body, pd.HeaderPrefill, target).mustRefuse(t, 403, pd.DeniedTarget)
			}
			p.end()
			address := strings.Replace(target, "localhost", "", 1)
			if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="prefill target denied" request_id=`) ||
				!strings.Contains(got, "client=127.0.0.1:") || !strings.Contains(got, address+": address is outside --prefill-allow") {
				t.Errorf("logged %s", got)
			}
		})
	}
}

func withSecrets(t *testing.T, file string) option {
	t.Helper()
	secrets, err := pd.ParseSecrets([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return set(func(c *Config) { c.Trust.Secrets = func() pd.Secrets { return secrets } })
}

func TestSharedSecret(t *testing.T) {
	p := startPool(t, withSecrets(t, "open sesame\nold sesame\n"))
	here := p.prefill.addr
	cases := []struct {
		name     string
		header   []string
		status   int
		decision string
	}{
		{"none", []string{pd.HeaderPrefill, here}, 403, "refused;reason=untrusted-peer"},
		{"wrong", []string{pd.HeaderPrefill, here, pd.HeaderAuth, "open sesam"}, 403, "refused;reason=untrusted-peer"},
		{"empty", []string{pd.HeaderPrefill, here, pd.HeaderAuth, ""}, 403, "refused;reason=untrusted-peer"},
		{"twice", []string{pd.HeaderPrefill, here, pd.HeaderAuth, "open sesame", pd.HeaderAuth, "open sesame"}, 403, "refused;reason=untrusted-peer"},
		{"right", []string{pd.HeaderPrefill, here, pd.HeaderAuth, "open sesame"}, 200, servedRemote},
		{"older", []string{pd.HeaderPrefill, here, pd.HeaderAuth, "old sesame"}, 200, servedRemote},
		{"right, with a plan", []string{pd.HeaderPrefill, here, pd.HeaderAuth, "open sesame", pd.HeaderPlan, remotePlan}, 200, "remote;reason=uncached;attempts=1;candidate=0"},
		{"none, and no candidate", nil, 200, "local;reason=unplanned"},
		{"a stranger's plan", []string{pd.HeaderPlan, localPlan}, 200, "local;reason=unplanned"},
		{"a stranger's garbage", []string{pd.HeaderPlan, "?"}, 200, "local;reason=unplanned"},
		{"a stranger's mode", []string{pd.HeaderMode, "bypass"}, 200, "local;reason=bypassed"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := post(t, p.url+completionsPath, ask(false).body, c.header...)
			got.mustBe(t, c.status, c.decision)
			if c.status == 403 {
				got.mustRefuse(t, 403, pd.UntrustedPeer)
			}
		})
	}
	for _, leg := range append(p.prefill.requests(), p.decode.requests()...) {
		if leg.Header.Get(pd.HeaderAuth) != "" {
			t.Error("an engine got the secret")
		}
	}
}

func TestNewRefuses(t *testing.T) {
	cfg := func(change func(*Config)) Config { c := Defaults(); change(&c); return c }
	for name, c := range map[string]Config{
		"hand-off protocol": cfg(func(c *Config) { c.Engine.Connector = "pigeon" }),
	} {
		if _, err := New(c, Telemetry{Metrics: prometheus.NewRegistry()}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// With sampling any candidate may be the first, and the report names its position in the header.
func TestSampling(t *testing.T) {
	p := startPool(t, set(func(c *Config) { c.Prefill.Sampling = true }))
	other := startEngine(t, offering(handoffParams))
	const tries = 64 // one candidate gets all of them once in 2^63 runs
	asked := [2]int{}
	for range tries {
		got := post(t, p.url+completionsPath, ask(false).body, pd.HeaderPrefill, p.prefill.addr+","+other.addr)
		d := got.decision(t)
		if d.Attempts != 1 {
			t.Fatalf("%v", d)
		}
		asked[d.Candidate]++
	}
	if asked[0] != len(p.prefill.requests()) || asked[1] != len(other.requests()) || asked[0] == 0 || asked[1] == 0 {
		t.Errorf("reported %v, were %d and %d", asked, len(p.prefill.requests()), len(other.requests()))
	}
	failing := startEngine(t, says(500, "text/plain", ""))
	for range 8 {
		got := post(t, p.url+completionsPath, ask(false).body, pd.HeaderPrefill, fmt.Sprintf("%s,%s", failing.addr, other.addr))
		if d := got.decision(t); d.Verdict != pd.Remote || d.Candidate != 1 {
			t.Errorf("%v", d)
		}
	}
}
