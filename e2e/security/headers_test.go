package security

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// routingHeaders returns the headers that only the picker may send, aimed at an address.
func routingHeaders(to string) [][2]string {
	const plan = "remote;id=0123456789abcdef;reason=forced;strict=1;epp=0.1;report"
	return [][2]string{
		{"x-prefiller-host-port", to}, {"X-PREFILLER-HOST-PORT", to}, {"x-prefiller-hosts-ports", to},
		{"x-encoder-hosts-ports", to}, {"x-encoder-host-port", to},
		{pd.HeaderPrefillNew, to}, {"x-llm-d-encoder-hosts-ports", to}, {"x-llm-d-kv-cache-source-host-port", to},
		{"x-tandem-plan", plan}, {"X-Tandem-Plan", "local;id=0123456789abcdef;reason=bypassed;strict=0;epp=0"},
		{"x-tandem-auth", mark}, {"x-tandem-model", mark}, {"x-tandem-filter", "picker"}, {"x-tandem-retry", "1"},
		{"x-tandem-pd-decision", "local;reason=" + mark}, {"x-tandem-outcome", "done;prompt=1"}, {"x-tandem-", mark},
		{"x-tandem-p", mark}, {"x-tandem-pdx", mark}, {"x-tandem-a-thing-to-come", mark},
		{"x-kv-cache-source-host-port", to}, {"x-data-parallel-host-port", to}, {"x-data-parallel-rank", "7"},
		{"x-gateway-destination-endpoint", to}, {"x-gateway-destination-endpoint-served", to},
		{"x-gateway-destination-endpoint-subset", to},
		{"x-llm-d-model-name-rewrite", mark}, {"x-gateway-model-name-rewrite", mark},
	}
}

// TestSecurityHeadersAtTheFront has a client send every header that only our programs may send, one by one and all together,
// while the picker runs, and all together after it was killed.
func TestSecurityHeadersAtTheFront(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			trap := startDecoy(t)
			f := harness.NewTappedFleet(t, 1)
			f.StartPicker(t)
			f.StartFront(t, l)
			all := routingHeaders(trap.addr)
			for i, h := range append(all, [2]string{}) {
				header := all[min(i, len(all)-1) : min(i, len(all)-1)+1]
				if i == len(all) {
					header = all
				}
				for _, c := range []struct {
					tokens int
					want   string
				}{{harness.Threshold / 2, "local;reason=short-prompt"}, {2 * harness.Threshold, "remote;reason=uncached"}} {
					if i < len(all) && c.tokens > harness.Threshold && !strings.Contains(h[0], "tandem-plan") {
						continue // the last case has all headers
					}
					mustNotBeRouted(t, f, header, f.TokensCall(c.tokens, false), c.want)
				}
			}
			for _, p := range taps(f) {
				mustHaveNothingForged(t, p, trap.addr)
			}
			trap.mustHaveNoConnection(t)

			calls := func() (n int) { // without what the sidecar asks to know the engine
				for _, r := range requestsOf(f.Decode[0].Tap) {
					if r.Body != "" {
						n++
					}
				}
				return n
			}
			before := calls()
			if err := f.Pickers[0].Kill(); err != nil {
				t.Fatal(err)
			}
			q := rawRequest{"POST", pd.APICompletions.Path(), append(slices.Clone(all), [2]string{"Content-Type", "application/json"}),
				string(f.TokensCall(harness.Threshold/2, false).Body(f.Model))}
			if resp, text := q.mustSend(t, f.Front.Addr); resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("without a picker: status %d %s", resp.StatusCode, text)
			}
			if n := calls(); n != before {
				t.Errorf("without a picker %d requests reached the engine", n-before)
			}
			trap.mustHaveNoConnection(t)
		})
	}
}

// mustNotBeRouted sends a call with these headers, and fails unless the decision and the answer are those without them.
func mustNotBeRouted(t *testing.T, f *harness.TappedFleet, header [][2]string, c harness.Call, want string) {
	t.Helper()
	q := rawRequest{"POST", c.API.Path(), append(slices.Clone(header), [2]string{"Content-Type", "application/json"}), string(c.Body(f.Model))}
	resp, text := q.mustSend(t, f.Front.Addr)
	got, _, _ := strings.Cut(resp.Header.Get(pd.HeaderDecision), ";attempts")
	if resp.StatusCode != http.StatusOK || got != want || strings.Contains(text, mark) {
		t.Errorf("%v: status %d, decision %q, want %q: %.300s", header, resp.StatusCode, got, want, text)
	}
	r := harness.Reply{Status: resp.StatusCode}
	if err := r.Take([]byte(text)); err != nil {
		t.Fatal(err)
	}
	harness.MustMatch(t, r, false, f.Want(t, c))
}

// TestSecurityPickerOfAnotherPool has Envoy ask a picker whose endpoints Envoy does not have: requests stay in Envoy's own
// pool, and clients cannot say which endpoint instead.
func TestSecurityPickerOfAnotherPool(t *testing.T) {
	for _, mode := range []string{"pair", "single"} {
		t.Run(mode, func(t *testing.T) {
			trap, elsewhere := startDecoy(t), startDecoy(t)
			f := harness.NewTappedFleet(t, 0)
			own := f.Fleet.Decode[0].Addr()
			f.Fleet.Decode, f.Fleet.Prefill = nil, nil
			f.WriteEndpoints(t, elsewhere.addr)
			f.StartPicker(t)
			f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: mode}, "--pool=static", "--endpoint="+own)
			for _, tokens := range []int{harness.Threshold / 2, 2 * harness.Threshold} {
				q := rawRequest{"POST", pd.APICompletions.Path(), append(routingHeaders(trap.addr), [2]string{"Content-Type", "application/json"}),
					string(f.TokensCall(tokens, false).Body(f.Model))}
				if resp, text := q.mustSend(t, f.Front.Addr); resp.StatusCode >= 500 && resp.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("status %d %s", resp.StatusCode, text)
				}
			}
			mustHaveNothingForged(t, taps(f)[0], trap.addr, elsewhere.addr)
			trap.mustHaveNoConnection(t)
		})
	}
}

// TestSecurityHeadersAtTheSidecar sends the same to a sidecar, past the proxy, as any pod of the cluster may.
func TestSecurityHeadersAtTheSidecar(t *testing.T) {
	f := harness.NewTappedFleet(t, 1)
	engine := f.Decode[0].Tap.Addr
	file := filepath.Join(t.TempDir(), "secret")
	harness.Replace(t, file, "open-sesame\n")
	for _, c := range []struct {
		name     string
		flags    []string
		header   string // that names the target, empty for none
		prefill  string
		status   int
		decision string
	}{
		{"no secret, a target that is not allowed", nil, pd.HeaderPrefill, "169.254.169.254:80", 403, "refused;reason=denied-target"},
		{"no secret, such a target by llm-d's newer name", nil, pd.HeaderPrefillNew, "169.254.169.254:80", 403, "refused;reason=denied-target"},
		{"no secret, and no target", nil, "", "", 503, "refused;reason=no-prefill"}, // the client's plan is strict
		{"secret, and a target", []string{"--auth-file=" + file}, pd.HeaderPrefill, f.Prefill[0].Tap.Addr, 403, "refused;reason=untrusted-peer"},
		{"secret, and a target by llm-d's newer name", []string{"--auth-file=" + file}, pd.HeaderPrefillNew, f.Prefill[0].Tap.Addr, 403, "refused;reason=untrusted-peer"},
		{"secret, and no target", []string{"--auth-file=" + file}, "", "", 200, "local;reason=unplanned"},
		{"secret, and the mode off", []string{"--auth-file=" + file, "--pd-header=off"}, "", "", 200, "local;reason=unplanned"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := harness.StartSidecar(t, engine, c.flags...)
			header := [][2]string{{"Content-Type", "application/json"}}
			plans := 0
			for _, h := range routingHeaders("10.0.0.1:80") {
				isPlan := strings.EqualFold(h[0], pd.HeaderPlan)
				isPrefill := strings.EqualFold(h[0], pd.HeaderPrefill) || h[0] == pd.HeaderPrefillNew
				if isPlan {
					plans++
				}
				toPicker := strings.HasSuffix(h[0], "model-name-rewrite") // means nothing to a sidecar or an engine
				if !isPrefill && !toPicker && (!isPlan || plans == 1) {
					header = append(header, h)
				}
			}
			if c.header != "" {
				header = append(header, [2]string{c.header, c.prefill})
			}
			if len(c.flags) == 0 { // the headers of a trusted sender must be well-formed
				header = slices.DeleteFunc(header, func(h [2]string) bool { return h[0] == pd.HeaderModel })
			}
			calls := func() (n int) { // without what the sidecar asks to know the engine
				for _, r := range requestsOf(f.Decode[0].Tap) {
					if r.Body != "" {
						n++
					}
				}
				return n
			}
			before := calls()
			resp, text := rawRequest{"POST", pd.APICompletions.Path(), header, string(f.TokensCall(harness.Threshold/2, false).Body(f.Model))}.mustSend(t, s.Addr("http"))
			if got := resp.Header.Get(pd.HeaderDecision); resp.StatusCode != c.status || got != c.decision {
				t.Errorf("status %d, decision %q, want %d %q: %s", resp.StatusCode, got, c.status, c.decision, text)
			}
			if n := calls() - before; (n > 0) != (c.status == 200) {
				t.Errorf("%d requests reached the engine", n)
			}
		})
	}
	for _, p := range taps(f) {
		mustHaveNothingForged(t, p, "10.0.0.1:80", "open-sesame")
	}
	if n := len(requestsOf(f.Prefill[0].Tap)); n != 0 {
		t.Errorf("%d requests reached the prefill engine", n)
	}
}

// TestSecurityRequestID has clients send ids that no log, trace or engine may get: both legs have the same well-formed id.
func TestSecurityRequestID(t *testing.T) {
	f := harness.NewTappedFleet(t, 1)
	s := f.Fleet.Decode[0].Sidecar
	for _, c := range []struct {
		name string
		ids  []string
		kept bool
	}{
		{"sane", []string{"0f8fad5b-d9cb.469f:a165_70"}, true},
		{"absent", nil, false},
		{"empty", []string{""}, false},
		{"long", []string{strings.Repeat("a", 129)}, false},
		{"a log line of its own", []string{"a level=ERROR msg=" + mark}, false},
		{"quotes", []string{`a","admin":"` + mark}, false},
		{"no ASCII", []string{"\xff" + mark}, false},
		{"two", []string{"first-id", mark}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			header := [][2]string{{"Content-Type", "application/json"}, {pd.HeaderPrefill, f.Prefill[0].Tap.Addr}}
			for _, id := range c.ids {
				header = append(header, [2]string{pd.HeaderRequestID, id})
			}
			resp, text := rawRequest{"POST", pd.APICompletions.Path(), header, string(f.TokensCall(2*harness.Threshold, false).Body(f.Model))}.mustSend(t, s.Addr("http"))
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("status %d %s", resp.StatusCode, text)
			}
			ids := resp.Header.Values(pd.HeaderRequestID)
			if len(ids) != 1 || len(ids[0]) > 128 || c.kept && ids[0] != c.ids[0] || strings.Contains(ids[0], mark) {
				t.Fatalf("the answer has the ids %q", ids)
			}
			for _, p := range taps(f) {
				if seen := p.Seen(ids[0]); len(seen) != 1 || len(seen[0].Header.Values(pd.HeaderRequestID)) != 1 {
					t.Errorf("a leg's engine saw the id %d times: %v", len(seen), seen)
				}
			}
		})
	}
	for _, p := range taps(f) {
		mustHaveNothingForged(t, p)
	}
	if said := strings.Join(s.Output(), "\n"); strings.Contains(said, mark) {
		t.Errorf("the sidecar's log has what a client made up:\n%s", said)
	}
}

// TestSecuritySecretIsChanged changes the shared secret of a running picker and a running sidecar without an outage.
func TestSecuritySecretIsChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("sesame-first\n")
	f := harness.NewFleet(t, 1, 0)
	decode := harness.StartSim(t, "decode", "--role=decode")
	sidecar := harness.StartSidecar(t, decode.Addr, "--auth-file="+file)
	f.Decode = append(f.Decode, harness.DecodePod{Engine: decode, Sidecar: sidecar})
	f.WriteEndpoints(t)
	f.StartPicker(t, "--auth-file="+file)
	f.StartFront(t, harness.Layout{Proxy: "gateway", Mode: "pair"})
	direct := func(secret string) int {
		q := f.TokensCall(2*harness.Threshold, false).Remote(f.Prefill[0].Addr)
		q.Header[pd.HeaderAuth] = secret
		return harness.MustSend(t, q, sidecar.Addr("http"), f.Model).Status
	}
	for _, step := range []struct{ file, takes, refuses string }{
		{"sesame-first\n", "sesame-first", "sesame-second"}, {"sesame-second\nsesame-first\n", "sesame-second", "sesame-third"}, {"sesame-second\n", "sesame-second", "sesame-first"},
	} {
		write(step.file)
		f.Eventually(t, "the sidecar has read "+step.file, func() (string, bool) {
			takes, refuses := direct(step.takes), direct(step.refuses)
			return http.StatusText(takes) + ", " + http.StatusText(refuses), takes == 200 && refuses == 403
		})
		f.Eventually(t, "the picker sends what is taken", func() (string, bool) {
			got := f.Send(t, f.TokensCall(2*harness.Threshold, false))
			return harness.Planned(got), harness.Planned(got) == "remote;reason=uncached"
		})
	}
	for _, p := range []harness.Program{sidecar, f.Pickers[0]} {
		for _, secret := range []string{"sesame-first", "sesame-second", "sesame-third"} {
			if said := strings.Join(p.Output(), "\n"); strings.Contains(said, secret) {
				t.Errorf("%s has told %q:\n%s", p.Name(), secret, said)
			}
		}
	}
}
