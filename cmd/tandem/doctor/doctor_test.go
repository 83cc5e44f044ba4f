package doctor

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/sim"
)

// rewrite passes an engine's answers on, with a text in them replaced.
func rewrite(path, from, to string) func(http.Handler) http.Handler {
	return func(engine http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != path {
				engine.ServeHTTP(w, r)
				return
			}
			rec := httptest.NewRecorder()
			engine.ServeHTTP(rec, r)
			for name, values := range rec.Header() {
				if name != "Content-Length" {
					w.Header()[name] = values
				}
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(bytes.ReplaceAll(rec.Body.Bytes(), []byte(from), []byte(to)))
		})
	}
}

// dated shifts the Date header of answers.
func dated(by time.Duration) func(http.Handler) http.Handler {
	return func(engine http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec := httptest.NewRecorder()
			engine.ServeHTTP(rec, r)
			for name, values := range rec.Header() {
				w.Header()[name] = values
			}
			w.Header().Set("Date", time.Now().Add(by).UTC().Format(http.TimeFormat))
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes())
		})
	}
}

// serverInfoOf answers /server_info as a vLLM in developer mode does.
func serverInfoOf(role string, tensor int) func(http.Handler) http.Handler {
	return func(engine http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/server_info" && r.URL.Query().Get("config_format") == "json" {
				fmt.Fprintf(w, `{"vllm_config":{"kv_transfer_config":{"kv_connector":"NixlConnector","kv_role":%q},"parallel_config":{"tensor_parallel_size":%d}},"vllm_env":{}}`, role, tensor)
				return
			}
			engine.ServeHTTP(w, r)
		})
	}
}

// told makes all engines show their arguments.
func told(p *testPool) {
	for i := range p.members {
		role := "kv_producer"
		if p.members[i].role == "decode" {
			role = "kv_consumer"
		}
		p.members[i].front = serverInfoOf(role, 2)
	}
}

func TestHealthy(t *testing.T) {
	p := healthy()
	told(p)
	flags := p.start(t)
	p.loads(t, 4)
	got, found := findings(t, flags...)
	for name, l := range found {
		want := ok
		if name == "proxy" || name == "link-speed" {
			want = unknown // there is no keeper, and no KV cache was read
		}
		if l.Verdict != want {
			t.Errorf("%s: %s: %s", name, l.Verdict, l.Seen)
		}
	}
	if got.code != 0 || len(found) < 20 {
		t.Errorf("exit %d: %s\n%s", got.code, got.stderr, got.stdout)
	}
}

// TestCountsNothing: without --probe, the doctor sends no generate call, so no component counts one, refused or not.
func TestCountsNothing(t *testing.T) {
	p := healthy()
	var generates atomic.Int64
	for i := range p.members {
		p.members[i].metrics = boot.NewRegistry(boot.IO{})
		p.members[i].front = func(engine http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					generates.Add(1)
				}
				engine.ServeHTTP(w, r)
			})
		}
	}
	flags := append(p.start(t), "--probe=false", "--idle-wait=0s")
	p.loads(t, 4)
	if got, found := findings(t, flags...); found["sidecar"].Verdict != ok {
		t.Errorf("exit %d: %s\n%s", got.code, got.stderr, got.stdout)
	}
	if n := generates.Load(); n != 0 {
		t.Errorf("engines got %d generate calls", n)
	}
	for _, m := range p.members {
		families, err := m.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == "tandem_requests_total" {
				t.Errorf("a sidecar counted %v", family)
			}
		}
	}
}

// Each case breaks one part, and only the checks of that part complain.
func TestBroken(t *testing.T) {
	const prefill0, decode0, decode1 = 0, 2, 3
	tests := []struct {
		name    string
		check   string
		verdict verdict
		seen    string // part of the finding
		do      string // part of the advice
		also    string // other checks that may complain about the same fault
		breaks  func(t *testing.T, p *testPool)
	}{
		{"engine gone", "endpoints", fail, "prefill-0: 127.0.0.1:1: connection refused", "start the engine", "", func(_ *testing.T, p *testPool) {
			p.members[prefill0].at = "127.0.0.1:1"
		}},
		{"engine not healthy", "endpoints", fail, "it answers 503", "", "", func(t *testing.T, p *testPool) {
			p.members[prefill0].at = serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
		}},
		{"role misspelt", "roles", fail, `prefill-0: "prefil" is not a role`, "prefill, decode, encode", "", func(_ *testing.T, p *testPool) {
			p.members[prefill0].role = "prefil"
		}},
		{"no prefill", "roles", fail, "0 prefill, 2 decode", "set the label", "probe", func(_ *testing.T, p *testPool) {
			p.members = p.members[2:]
			p.flags = append(p.flags, "--probe=false")
		}},
		{"another page", "metrics", fail, "prefill-0: its metrics page is not that of an engine", "metricsHost", "freshness", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = rewrite("/metrics", "vllm:", "other:")
		}},
		{"no page", "metrics", fail, "prefill-0: it answers 404", "metricsHost", "freshness", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = missing("/metrics")
		}},
		{"two versions", "version", warn, "0.31.0 (prefill-0, decode-1), 0.32.0 (prefill-1, decode-0)", "one version", "pairs", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = rewrite("/version", "0.32.0", "0.31.0")
			p.members[decode1].front = rewrite("/version", "0.32.0", "0.31.0")
		}},
		{"untested version", "version", warn, "all 0.99.0", "try it with --probe", "", func(_ *testing.T, p *testPool) {
			for i := range p.members {
				p.members[i].front = rewrite("/version", "0.32.0", "0.99.0")
			}
		}},
		{"another model string", "model", fail, "tiny from other (prefill-0)", "--model", "", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = rewrite("/v1/models", `"root":"tiny"`, `"root":"other"`)
		}},
		{"another model length", "model-length", fail, "2048 (prefill-0)", "--max-model-len", "", func(_ *testing.T, p *testPool) {
			p.members[prefill0].cfg.MaxModelLen = 2048
		}},
		{"another block size", "block-size", warn, "64 (prefill-0)", "--block-size", "", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = rewrite("/metrics", `block_size="32"`, `block_size="64"`)
		}},
		{"another block size in the picker", "block-size", warn, "all engines 32 tokens, but the prefix index of the picker 64", "to 32", "", func(_ *testing.T, p *testPool) {
			p.config = strings.Replace(pickerConfig, "{BLOCK}", "64", 1)
		}},
		{"another KV type", "kv-cache", fail, "cache_dtype fp8 (prefill-0)", "--kv-cache-dtype", "", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = rewrite("/metrics", `cache_dtype="auto"`, `cache_dtype="fp8"`)
		}},
		{"no prefix caching", "kv-cache", warn, "prefill-0 has prefix caching off", "--enable-prefix-caching", "", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = rewrite("/metrics", `enable_prefix_caching="True"`, `enable_prefix_caching="False"`)
		}},
		{"no connector", "connector", fail, "prefill-0: its metrics page has no metrics", "NixlConnector", "probe", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = rewrite("/metrics", "vllm:nixl_", "vllm:other_")
		}},
		{"wrong KV role", "kv-role", fail, "prefill-0: it is labelled prefill and started as kv_consumer", "kv_producer for prefill", "", func(_ *testing.T, p *testPool) {
			told(p)
			p.members[prefill0].front = serverInfoOf("kv_consumer", 2)
		}},
		{"prefill wider than decode", "parallelism", warn, "prefill 4, decode 2", "KV heads", "", func(_ *testing.T, p *testPool) {
			told(p)
			p.members[prefill0].front = serverInfoOf("kv_producer", 4)
		}},
		{"a prefill engine of another version", "pairs", fail, "no decode engine reads KV caches of prefill-0", "start one of both", "version", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = rewrite("/version", "0.32.0", "0.31.0")
		}},
		{"two versions in both roles", "pairs", warn, "2 of 4 pairs are refused: prefill-0 → decode-0: version: prefill 0.31.0, decode 0.32.0", epp.LabelEngineVersion, "version", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = rewrite("/version", "0.32.0", "0.31.0")
			p.members[decode1].front = rewrite("/version", "0.32.0", "0.31.0")
		}},
		{"tensor parallelism of 2 and 3", "pairs", fail, "tensor-parallel ranks: prefill 3, decode 2", "start one of both", "parallelism", func(_ *testing.T, p *testPool) {
			told(p)
			for i := range 2 {
				p.members[i].front = serverInfoOf("kv_producer", 3)
			}
		}},
		{"a version by a label only", "pairs", fail, "no decode engine reads KV caches of prefill-0", "start one of both", "", func(_ *testing.T, p *testPool) {
			for i := range p.members {
				p.members[i].front = missing("/version")
			}
			p.members[prefill0].labels = ", " + epp.LabelEngineVersion + ": 0.31.0"
			p.members[decode0].labels = ", " + epp.LabelEngineVersion + ": 0.32.0"
			p.members[decode1].labels = ", " + epp.LabelEngineVersion + ": 0.32.0"
		}},
		{"labels that are not true", "labels", warn, "prefill-0: " + epp.LabelEngineVersion + " is 0.31.0, the engine's is 0.32.0; prefill-0: " +
			epp.LabelTensorParallel + " is 4, the engine's is 2", "remove the label", "", func(_ *testing.T, p *testPool) {
			told(p)
			p.members[prefill0].labels = ", " + epp.LabelEngineVersion + ": 0.31.0, " + epp.LabelTensorParallel + `: "4", ` + epp.LabelCacheType + ": auto"
		}},
		{"side channel closed", "side-channel", fail, "127.0.0.1:1: connection refused", "VLLM_NIXL_SIDE_CHANNEL_HOST", "", func(_ *testing.T, p *testPool) {
			p.side = "127.0.0.1:1"
		}},
		{"side channel of something else", "side-channel", fail, "another service than a side channel", "", "", func(t *testing.T, p *testPool) {
			p.side = greeter(t, "SSH-2.0-x\r\n")
		}},
		{"side channel that sends nothing", "side-channel", warn, "accepts connections and sends nothing", "VLLM_NIXL_SIDE_CHANNEL_HOST", "", func(t *testing.T, p *testPool) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			p.side, p.flags = l.Addr().String(), append(p.flags, "--timeout=3s")
		}},
		{"side channel that closes connections", "side-channel", fail, "accepts connections and closes them", "", "", func(t *testing.T, p *testPool) { p.side = greeter(t, "") }},
		{"hand-offs refused", "probe", fail, "prefill-0 → decode-0: 404 Not Found, refused;reason=bad-request", "comes from the sidecar", "", func(_ *testing.T, p *testPool) {
			p.members[prefill0].front = missing("/v1/completions")
		}},
		{"keeper without a library", "keeper", fail, "it is not running, and was started 40 times in 20m0s", "--probe", "", func(_ *testing.T, p *testPool) {
			p.keeper = keeperPage(0, 40, 20*time.Minute, "")
		}},
		{"keeper that is killed", "keeper", fail, "started 12 times in 1h0m0s", "cause of death", "", func(_ *testing.T, p *testPool) {
			p.keeper = keeperPage(1, 12, time.Hour, "")
		}},
		{"keeper that died", "keeper", warn, "started 2 times in 1h0m0s", "cause of death", "", func(_ *testing.T, p *testPool) {
			p.keeper = keeperPage(1, 2, time.Hour, "")
		}},
		{"side channels closed to decode", "leases", fail, "connecting to a side channel of a prefill engine failed all 7 times", "NetworkPolicy; port 5600", "", func(_ *testing.T, p *testPool) {
			p.keeper = keeperPage(1, 1, time.Hour, `tandem_lease_connects_total{result="failed"} 7`)
		}},
		{"a side channel closed to decode", "leases", warn, "connecting to a side channel of a prefill engine failed 7 of 10 times", "NetworkPolicy; port 5600", "", func(_ *testing.T, p *testPool) {
			p.keeper = keeperPage(1, 1, time.Hour, "tandem_lease_connects_total{result=\"failed\"} 7\ntandem_lease_connects_total{result=\"ok\"} 3")
		}},
		{"heartbeats lost", "leases", fail, "no heartbeat arrived, of 9", "UCX_NET_DEVICES", "", func(_ *testing.T, p *testPool) {
			p.keeper = keeperPage(1, 1, time.Hour, "tandem_lease_connects_total{result=\"ok\"} 3\ntandem_lease_heartbeats_total{result=\"failed\"} 9")
		}},
		{"releases lost", "leases", fail, "no release arrived, of 2", "UCX_NET_DEVICES", "", func(_ *testing.T, p *testPool) {
			p.keeper = keeperPage(1, 1, time.Hour, "tandem_kv_release_total{way=\"nixl\",result=\"unsure\"} 2\n"+
				"tandem_kv_release_total{way=\"cancel\",result=\"ok\"} 2")
		}},
		{"no sidecar", "sidecar", fail, "decode-1: no Tandem sidecar answers at ", "start a sidecar", "probe", func(_ *testing.T, p *testPool) {
			p.members[decode1].naked = true
		}},
		{"sidecar before prefill", "sidecar", fail, "prefill-0: labelled prefill, but a sidecar answers at ", "correct the label", "probe", func(_ *testing.T, p *testPool) {
			p.members[prefill0].fronted = true
		}},
		{"picker gone", "picker", fail, "connection refused", "its log", "tls", func(t *testing.T, p *testPool) {
			p.flags = append(p.flags, "--epp=127.0.0.1:1", "--epp-health=127.0.0.1:1", "--epp-metrics=127.0.0.1:1", "--epp-admin=127.0.0.1:1")
		}},
		{"broken endpoints file of the picker", "picker-config", fail, "its source of endpoints is invalid, or partly so", "tandem check", "", func(t *testing.T, p *testPool) {}},
		{"another pool", "picker-pool", fail, "it does not know ", "the same endpoints file", "freshness", func(_ *testing.T, p *testPool) {
			p.picker = "endpoints:\n- {name: other, address: 127.0.0.1, port: 1}\n"
		}},
		{"TLS without HTTP/2", "tls", fail, "speaks TLS, but not h2", "ext-proc", "", func(t *testing.T, p *testPool) {
			p.flags = append(p.flags, "--epp="+serveTLS(t, certificate(t, time.Now().Add(time.Hour*24*365)), nil, http.NotFoundHandler()))
		}},
		{"certificate over", "tls", fail, "its certificate was valid until ", "renew", "", func(t *testing.T, p *testPool) {
			p.flags = append(p.flags, "--epp="+serveTLS(t, certificate(t, time.Now().Add(-time.Hour)), []string{"h2"}, http.NotFoundHandler()))
		}},
		{"certificate ends soon", "tls", warn, "its certificate is valid until ", "renew", "", func(t *testing.T, p *testPool) {
			p.flags = append(p.flags, "--epp="+serveTLS(t, certificate(t, time.Now().Add(24*time.Hour)), []string{"h2"}, http.NotFoundHandler()))
		}},
		{"signed by an unknown authority", "tls", fail, "certificate signed by unknown authority", "--ca-file", "", func(t *testing.T, p *testPool) {
			p.flags = append(p.flags, "--ca-file="+pemOf(t, certificate(t, time.Now().Add(time.Hour*24*365))))
		}},
		{"TLS port closed", "tls", fail, "127.0.0.1:1: connection refused", "correct the address", "", func(_ *testing.T, p *testPool) {
			p.flags = append(p.flags, "--epp=127.0.0.1:1")
		}},
		{"certificate of an engine over", "tls", fail, "prefill-0: its certificate was valid until ", "renew", "freshness probe", func(t *testing.T, p *testPool) {
			cert := certificate(t, time.Now().Add(-time.Hour))
			p.members[prefill0].cert = &cert
		}},
		{"clock behind", "clock", warn, "prefill-0: 1m", "NTP", "", func(_ *testing.T, p *testPool) { p.members[prefill0].front = dated(-90 * time.Second) }},
		{"clock far ahead", "clock", fail, "prefill-0: 10m", "NTP", "", func(_ *testing.T, p *testPool) { p.members[prefill0].front = dated(10*time.Minute + 30*time.Second) }},
		{"prefill closes too soon", "keep-alive", fail, "prefill-0: closes idle connections after 0.", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "probe", func(_ *testing.T, p *testPool) {
			p.members[prefill0].cfg.KeepAlive = 100 * time.Millisecond
		}},
		{"decode closes too soon", "keep-alive", fail, "decode-1: closes idle connections after 0.", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "probe", func(_ *testing.T, p *testPool) {
			p.members[decode1].idle = 100 * time.Millisecond
		}},
		{"proxy gone", "proxy", fail, "connection refused", "envoy-config", "", func(_ *testing.T, p *testPool) { p.flags = append(p.flags, "--proxy=127.0.0.1:1") }},
		{"proxy of another pool", "proxy", fail, "it serves large, but the pool serves tiny", "this pool's picker", "", func(t *testing.T, p *testPool) {
			p.flags = append(p.flags, "--proxy="+serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[{"id":"large"}]}`) }))
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := healthy()
			test.breaks(t, p)
			flags := p.start(t)
			if test.name == "broken endpoints file of the picker" {
				p.breakFile(t)
			} else if p.picker == "" && !strings.Contains(test.also, "freshness") {
				p.loads(t, len(p.members)-count(p.members, func(m member) bool { return m.at != "" }))
			}
			got, found := findings(t, flags...)
			l := found[test.check]
			if l.Verdict != test.verdict || !strings.Contains(l.Seen, test.seen) || !strings.Contains(l.Do, test.do) || l.Do == "" {
				t.Errorf("%s: %s → %s", l.Verdict, l.Seen, l.Do)
			}
			for name, other := range found {
				if name != test.check && !slices.Contains(strings.Fields(test.also), name) && (other.Verdict == warn || other.Verdict == fail) {
					t.Errorf("%s complains too: %s", name, other.Seen)
				}
			}
			if want := map[verdict]int{warn: 0, fail: 1}[test.verdict]; got.code != want {
				t.Errorf("exit %d, want %d: %s", got.code, want, got.stderr)
			}
		})
	}
}

func count[T any](items []T, is func(T) bool) (n int) {
	for _, i := range items {
		if is(i) {
			n++
		}
	}
	return n
}

func missing(path string) func(http.Handler) http.Handler {
	return func(engine http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == path {
				http.NotFound(w, r)
				return
			}
			engine.ServeHTTP(w, r)
		})
	}
}

// pickerConfig is a P/D configuration whose prefix index has blocks of a fixed size.
const pickerConfig = `
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefill-filter
- type: decode-filter
- type: approx-prefix-cache-producer
  parameters: {autoTune: false, blockSizeTokens: {BLOCK}}
- type: prefix-cache-scorer
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: 64}
- type: disagg-profile-handler
  parameters:
    deciders: {prefill: prefix-based-pd-decider}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer}]
`

// breakFile breaks the picker's endpoints file while the picker runs, and waits until it has read the change.
func (p *testPool) breakFile(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(p.file, []byte("endpoints: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.until(t, "the file is broken", func(f *fleet) bool {
		page, err := f.user().metrics(t.Context(), "http://"+p.addrs["metrics"])
		trouble, _ := page.Sum("tandem_discovery_trouble")
		return err == nil && trouble > 0
	})
}

// If nothing answers, no check reports ok, and unknown only where nothing can be seen.
func TestNothingAnswers(t *testing.T) {
	const gone = "127.0.0.1:1"
	file := write(t, "endpoints.yaml", `endpoints:
- {name: p, address: 127.0.0.1, port: "1", labels: {llm-d.ai/role: prefill}}
- {name: d, address: 127.0.0.1, port: "2", labels: {llm-d.ai/role: decode}}
`)
	_, found := findings(t, "--endpoints-file="+file, "--epp="+gone, "--epp-health="+gone, "--epp-metrics="+gone, "--epp-admin="+gone, "--idle-wait=0s")
	for name, want := range map[string]string{
		"picker":        "the picker: its metrics port: connection refused",
		"picker-config": "the picker: its metrics port: connection refused",
		"picker-pool":   "the picker: its admin port: connection refused",
		"freshness":     "the picker: its metrics port: connection refused",
		"sidecar":       "no engine that decodes answers",
		"side-channel":  "no engine that prefills answers",
	} {
		if l := found[name]; l.Verdict == ok || l.Seen != want || strings.Contains(l.Do, "--epp") {
			t.Errorf("%s: %s: %s → %s", name, l.Verdict, l.Seen, l.Do)
		}
	}
}

func TestEmptyPool(t *testing.T) {
	admin := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"endpoints":[]}`) })
	got, found := findings(t, "--epp-admin="+admin, "--idle-wait=0s")
	for name, l := range found {
		if l.Verdict == ok {
			t.Errorf("%s: %s", name, l.Seen)
		}
	}
	if got.code != 1 || found["endpoints"].Verdict != fail {
		t.Errorf("exit %d: %+v", got.code, found["endpoints"])
	}
}

func TestOneLine(t *testing.T) {
	const text = "file cannot be used: no entry is valid:\n  line 1: a\n\n  line 2: b\n"
	if got := oneLine(text); got != "file cannot be used: no entry is valid: line 1: a; line 2: b" {
		t.Errorf("%q", got)
	}
}

// The ready line of a running tandem up has the addresses of all parts.
func TestUp(t *testing.T) {
	p := healthy()
	p.start(t)
	p.loads(t, 4)
	proxy := proxyHandler(t, "http://"+p.members[2].listens)
	ready := fmt.Sprintf(`{"ready":"up","addresses":{"http":%q,"extproc":%q,"health":%q,"metrics":%q,"admin":%q,"prefill-0/side-channel":%q}}`+"\n",
		serve(t, proxy.ServeHTTP), p.addrs["extproc"], p.addrs["health"], p.addrs["metrics"], p.addrs["admin"], greeter(t, zmq))
	_, found := findings(t, "--up="+write(t, "up.json", ready), "--idle-wait=0s")
	for _, name := range []string{"endpoints", "roles", "proxy", "picker", "picker-pool", "freshness", "tls", "sidecar", "side-channel"} {
		if found[name].Verdict != ok {
			t.Errorf("%s: %+v", name, found[name])
		}
	}
	for _, name := range []string{"probe", "keep-alive"} {
		if found[name].Verdict != unknown {
			t.Errorf("%s: %+v", name, found[name])
		}
	}
	if got := doctor(t.Context(), "--up="+write(t, "up.json", "Tandem is up\n")); got.code != 3 || !strings.Contains(got.stderr, "ready line") {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
}

// The engines' key is sent only to engines, and to the proxy in front of them.
func TestKey(t *testing.T) {
	needsKey := func(engine http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/") && r.Header.Get("Authorization") != "Bearer sesame" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			engine.ServeHTTP(w, r)
		})
	}
	p := healthy()
	for i := range p.members {
		p.members[i].front = needsKey
	}
	admin := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("the picker gets the key, at %s", r.URL)
		}
		http.NotFound(w, r)
	})
	flags := append(p.start(t), "--epp-admin="+admin, "--epp-metrics="+admin, "--probe=false", "--idle-wait=0s")
	if _, found := findings(t, flags...); found["model"].Verdict != unknown || !strings.Contains(found["model"].Do, "--api-key-file") {
		t.Errorf("without: %+v", found["model"])
	}
	if _, found := findings(t, append(flags, "--api-key-file="+write(t, "key", "sesame\n"))...); found["model"].Verdict != ok {
		t.Errorf("with: %+v", found["model"])
	}
}

// Another product's sidecar cannot be told from an engine; --sidecar=any accepts it.
func TestForeignSidecar(t *testing.T) {
	p := healthy()
	p.members[3].naked = true
	flags := append(p.start(t), "--sidecar=any", "--probe=false", "--idle-wait=0s")
	p.loads(t, 4)
	if got, found := findings(t, flags...); got.code != 0 || found["sidecar"].Verdict != unknown || !strings.HasPrefix(found["sidecar"].Seen, "decode-1: ") {
		t.Errorf("exit %d: %+v", got.code, found["sidecar"])
	}
}

// Items with the same text are listed together.
func TestWorst(t *testing.T) {
	pool := []clock{{of: "a"}, {of: "b"}, {of: "c"}, {of: "d"}, {of: "e"}, {of: "f"}}
	saw := func(texts ...string) (found []finding) {
		for _, text := range texts {
			v, seen, _ := strings.Cut(text, " ")
			found = append(found, finding{verdict: verdict(v), seen: seen, do: "do " + seen})
		}
		return found
	}
	tests := []struct {
		name  string
		found []finding
		want  finding
	}{
		{"all fine", saw("ok x", "ok x"), finding{ok, "all 2: x", "do x"}},
		{"one", saw("ok x"), finding{ok, "a: x", "do x"}},
		{"fine in two ways", saw("ok x", "ok y", "ok x"), finding{ok, "a, c: x; b: y", "do x"}},
		{"one is bad", saw("ok x", "FAIL y", "warn z"), finding{fail, "b: y", "do y"}},
		{"unknown is no trouble", saw("unknown x", "ok y"), finding{unknown, "a: x", "do x"}},
		{"many", saw("ok x", "FAIL y", "FAIL y", "FAIL y", "FAIL y", "FAIL y"), finding{fail, "b, c, d, e, and 1 more: y", "do y"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := worst(pool[:len(test.found)], test.found); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:8000")
	f := &fleet{targets: []*target{{name: "a", addr: at}, {name: "b", addr: netip.MustParseAddrPort("10.0.0.1:8001")}}}
	if got := checkAddresses(t.Context(), f); got.verdict != ok {
		t.Errorf("%+v", got)
	}
	f.targets = append(f.targets, &target{name: "c", addr: at})
	if got := checkAddresses(t.Context(), f); got.verdict != fail || got.seen != "a and c have the same address, 10.0.0.1:8000" {
		t.Errorf("%+v", got)
	}
}

func TestText(t *testing.T) {
	p := healthy()
	p.members[1].cfg = sim.Config{MaxModelLen: 2048}
	flags := p.start(t)
	p.loads(t, 4)
	got := doctor(t.Context(), flags...)
	want := "  FAIL     model-length   4096 (prefill-0, decode-0, decode-1), 2048 (prefill-1) → start all engines with the same --max-model-len"
	if got.code != 1 || !strings.HasPrefix(got.stderr, "reading ") || !strings.Contains(got.stdout, want) || !strings.Contains(got.stdout, "\nengines\n") || strings.Contains(got.stdout, "\x1b") {
		t.Errorf("exit %d: %s\n%s", got.code, got.stderr, got.stdout)
	}
	if !strings.Contains(got.stdout, " 1 FAIL, ") || strings.Contains(got.stdout, probePrompt) {
		t.Errorf("%s", got.stdout)
	}
}

func TestCommandLine(t *testing.T) {
	key := write(t, "key", "secret\n")
	tests := []struct {
		name string
		args []string
		code int
		said string
	}{
		{"no pool", nil, 3, "where is the pool?"},
		{"two pools", []string{"--up=-", "--namespace=x"}, 3, "give only one of"},
		{"bad addresses", []string{"--epp-admin=x", "--epp=y", "--side-channel=z"}, 3, `"z" is not HOST:PORT`},
		{"bad address of a sidecar", []string{"--epp-admin=127.0.0.1:1", "--sidecar-metrics=x"}, 3, `"x" is not HOST:PORT`},
		{"release without a cluster", []string{"--epp-admin=127.0.0.1:1", "--release=x"}, 3, "release: needs --namespace"},
		{"selector", []string{"--namespace=x", "--selector=a=b=c"}, 3, "selector: "},
		{"idle too long", []string{"--epp-admin=127.0.0.1:1", "--idle-wait=2h"}, 3, "want 0 to 1m"},
		{"no such key", []string{"--epp-admin=127.0.0.1:1", "--api-key-file=nowhere"}, 3, "api-key-file: open nowhere"},
		{"no certificate", []string{"--epp-admin=127.0.0.1:1", "--ca-file=" + key}, 3, "has no certificate"},
		{"no such file", []string{"--endpoints-file=nowhere.yaml"}, 3, "nowhere.yaml"},
		{"two at one address", []string{"--endpoints-file=" + write(t, "e.yaml",
			"endpoints:\n- {name: a, address: 10.0.0.1, port: 1}\n- {name: b, address: 10.0.0.1, port: 1}\n")}, 3, "is the address of the entry in line 2 too"},
		{"no picker", []string{"--epp-admin=127.0.0.1:1"}, 4, "is it running, and is 127.0.0.1:1 its admin address?"},
		{"no such kubeconfig", []string{"--namespace=x", "--kubeconfig=nowhere"}, 3, "kubeconfig: "},
		{"unknown flag", []string{"--jsn"}, 2, "did you mean --json?"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := doctor(t.Context(), test.args...); got.code != test.code || !strings.Contains(got.stderr, test.said) {
				t.Errorf("exit %d, want %d: %s", got.code, test.code, got.stderr)
			}
		})
	}
}

// The table is the manual: each row has what it checks and what to do.
func TestTable(t *testing.T) {
	var names []string
	for _, c := range checks {
		if c.looks == "" || c.do == "" || c.run == nil || slices.Contains(names, c.name) || len(c.name) > 13 {
			t.Errorf("the row %q is incomplete or a duplicate", c.name)
		}
		names = append(names, c.name)
	}
}

// An engine may close an idle connection just when a request goes out. That is no fault of the engine.
func TestRequestIsRepeatedOnAClosedConnection(t *testing.T) {
	var asked atomic.Int32
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if _, marked := r.Header["Idempotency-Key"]; marked {
			t.Error("the header that makes net/http retry was sent")
		}
		if asked.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
	})
	direct := newDirect()
	defer direct.http.CloseIdleConnections()
	for range 2 {
		if a, err := (asker{client: direct.http}).ask(t.Context(), http.MethodPost, "http://"+server, nil, "{}"); err != nil || a.status != http.StatusOK {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	if n := asked.Load(); n != 3 {
		t.Errorf("asked %d times, want 3", n)
	}
}
