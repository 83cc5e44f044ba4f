package doctor

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// sglangEngine is an SGLang engine, as far as the doctor asks it.
type sglangEngine struct {
	name, role string
	mode       string // prefill, decode or null
	sidecar    string // before it: sglang, or a protocol that passes all calls; "" = none
	page       int    // size
	backend    string
	ranks      int
	bootstrap  string // who answers at its bootstrap port: itself, other, another service, none registered; closed = the port is
	address    string
}

// start serves the engine, and its bootstrap server.
func (e *sglangEngine) start(t *testing.T) {
	t.Helper()
	label := map[string]string{"null": "unified"}[e.mode]
	if label == "" {
		label = e.mode
	}
	bootstrap := "1"
	e.address = serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"tiny","root":"tiny","max_model_len":4096}]}`)
		case "/metrics":
			fmt.Fprintf(w, "sglang:page_size{engine_type=%q} %d.0\nsglang:num_pages{engine_type=%q} 1024.0\n", label, e.page, label)
		case "/v1/loads":
			fmt.Fprint(w, `{"version":"0.5.23","loads":[{}]}`)
		case "/model_info":
			fmt.Fprintf(w, `{"disaggregation_mode":%q,"embedding":{"cache":{"radix_cache_disabled":%t}}}`, e.mode, e.mode == "decode")
		case "/server_info":
			if e.sidecar == "sglang" {
				http.Error(w, "{}", http.StatusBadRequest)
				return
			}
			fmt.Fprintf(w, `{"disaggregation_transfer_backend":%q,"disaggregation_bootstrap_port":%s,"dp_size":%d,"load_balance_method":"follow_bootstrap_room"}`,
				e.backend, bootstrap, e.ranks)
		case pd.PathSidecar:
			if e.sidecar == "" {
				http.NotFound(w, r)
				return
			}
			fmt.Fprint(w, pd.SidecarIdentity)
		default:
			http.NotFound(w, r)
		}
	})
	_, own, _ := net.SplitHostPort(e.address)
	if e.mode != "prefill" || e.bootstrap == "closed" {
		return
	}
	_, bootstrap, _ = net.SplitHostPort(serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/health" && e.bootstrap == "another service":
			fmt.Fprint(w, `{"status":"mooncake"}`)
		case r.URL.Path == "/health":
			fmt.Fprint(w, "OK")
		case e.bootstrap == "none registered":
			w.WriteHeader(http.StatusServiceUnavailable)
		case e.bootstrap == "other":
			fmt.Fprint(w, `{"prefill_http_port":1,"dp_size":1}`)
		default:
			fmt.Fprintf(w, `{"prefill_http_port":%s,"dp_size":%d}`, own, e.ranks)
		}
	}))
}

// sglangPool is a pool of one engine of each role, as it should be.
func sglangPool() []*sglangEngine {
	return []*sglangEngine{
		{name: "prefill-0", role: "prefill", mode: "prefill", page: 16, backend: "nixl", ranks: 1},
		{name: "decode-0", role: "decode", mode: "decode", sidecar: "sglang", page: 16, backend: "nixl", ranks: 1},
	}
}

// examine starts the engines and returns the doctor's findings.
func examine(t *testing.T, engines []*sglangEngine, flags ...string) map[string]line {
	t.Helper()
	file := "endpoints:\n"
	for _, e := range engines {
		e.start(t)
		host, port, _ := net.SplitHostPort(e.address)
		file += fmt.Sprintf("- {name: %s, address: %q, port: %q, labels: {llm-d.ai/role: %q}}\n", e.name, host, port, e.role)
	}
	_, found := findings(t, append(flags, "--endpoints-file="+write(t, "endpoints.yaml", file), "--idle-wait=0s")...)
	return found
}

func TestSGLang(t *testing.T) {
	plain := &sglangEngine{name: "plain-0", role: "prefill-decode", mode: "null", page: 16, backend: "nixl", ranks: 1}
	for _, c := range []struct {
		name, check string
		verdict     verdict
		seen, do    string // parts of the finding
		change      func([]*sglangEngine) []*sglangEngine
	}{
		{"no plain engine", "modes", ok, "1 prefill, 1 decode, 0 plain: requests with x-tandem-pd: bypass", "", nil},
		{"decode keeps no prefixes", "modes", ok, "1 decode without a prefix cache", "", nil},
		{"a plain engine", "modes", ok, "1 prefill, 1 decode, 1 plain", "", func(e []*sglangEngine) []*sglangEngine { return append(e, plain) }},
		{"decode runs as a plain engine", "modes", fail, "nothing is prefilled remotely", "--disaggregation-mode decode", func(e []*sglangEngine) []*sglangEngine {
			e[1].mode = "null"
			return e
		}},
		{"labels and modes are mixed up", "modes", fail, "decode-0: labelled decode, and its engine runs in the mode prefill", "--disaggregation-mode",
			func(e []*sglangEngine) []*sglangEngine {
				e[1].mode = "prefill"
				return e
			}},
		{"versions", "version", ok, "all 0.5.23", "", nil},
		{"one backend", "backend", ok, "nixl; 1 behind sidecars do not show theirs", "", nil},
		{"an untested backend", "backend", warn, "mooncake, which Tandem was not tested with", "--probe", func(e []*sglangEngine) []*sglangEngine {
			e[0].backend = "mooncake"
			return e
		}},
		{"two backends", "backend", fail, "mooncake (prefill-1)", "--disaggregation-transfer-backend", func(e []*sglangEngine) []*sglangEngine {
			return append(e, &sglangEngine{name: "prefill-1", role: "prefill", mode: "prefill", page: 16, backend: "mooncake", ranks: 1})
		}},
		{"its bootstrap server", "bootstrap", ok, "prefill-0: port ", "", nil},
		{"no bootstrap server", "bootstrap", fail, "connection refused", "NetworkPolicy", func(e []*sglangEngine) []*sglangEngine {
			e[0].bootstrap = "closed"
			return e
		}},
		{"another service at its port", "bootstrap", fail, "another service than a bootstrap server", "Mooncake", func(e []*sglangEngine) []*sglangEngine {
			e[0].bootstrap = "another service"
			return e
		}},
		{"the server of another engine", "bootstrap", fail, "that of the engine at port 1", "--disaggregation-bootstrap-port", func(e []*sglangEngine) []*sglangEngine {
			e[0].bootstrap = "other"
			return e
		}},
		{"it could not register", "bootstrap", fail, "no prefill engine has registered", "start the engine anew", func(e []*sglangEngine) []*sglangEngine {
			e[0].bootstrap = "none registered"
			return e
		}},
		{"two ranks", "ranks", ok, "prefill-0: 2, follow_bootstrap_room; Tandem's sidecar names the rank", "", func(e []*sglangEngine) []*sglangEngine {
			e[0].ranks = 2
			return e
		}},
		{"equal pages", "block-size", ok, "all 16 tokens", "", nil},
		{"pages of another size", "block-size", fail, "64 (decode-0)", "--page-size", func(e []*sglangEngine) []*sglangEngine {
			e[1].page = 64
			return e
		}},
		{"time-outs", "time-outs", unknown, "the default is 5m0s", "", nil},
		{"its protocol", "protocol", ok, "fits the engine", "", nil},
		{"the sidecar of vLLM's protocol", "protocol", fail, "its engine is SGLang, and its sidecar speaks another protocol", "--kv-connector=sglang",
			func(e []*sglangEngine) []*sglangEngine {
				e[1].sidecar = "nixlv2"
				return e
			}},
		{"a plain engine needs no sidecar", "sidecar", ok, "a plain engine, which needs none", "", func([]*sglangEngine) []*sglangEngine { return []*sglangEngine{plain} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			engines := sglangPool()
			if c.change != nil {
				engines = c.change(engines)
			}
			l := examine(t, engines)[c.check]
			if l.Verdict != c.verdict || !strings.Contains(l.Seen, c.seen) || !strings.Contains(l.Do, c.do) {
				t.Errorf("%s: %s → %s", l.Verdict, l.Seen, l.Do)
			}
		})
	}
}

// TestSGLangPoolHasNoFaults: what is vLLM's alone is not asked of SGLang's engines.
func TestSGLangPoolHasNoFaults(t *testing.T) {
	found := examine(t, sglangPool())
	for name, l := range found {
		if l.Verdict == fail || l.Verdict == warn {
			t.Errorf("%s: %s: %s", name, l.Verdict, l.Seen)
		}
	}
	for _, name := range []string{"kv-cache", "parallelism", "kv-role", "connector", "side-channel"} {
		if l, told := found[name]; told {
			t.Errorf("%s: %s: %s", name, l.Verdict, l.Seen)
		}
	}
}

// TestPlainEnginesAreNotProbed: they take part in no hand-off.
func TestPlainEnginesAreNotProbed(t *testing.T) {
	f := &fleet{}
	for _, e := range []struct {
		name string
		role pd.Role
		mode epp.EngineMode
	}{
		{"prefill-0", pd.RolePrefill, epp.EnginePrefill}, {"plain-0", pd.RolePrefill | pd.RoleDecode, epp.EnginePlain},
		{"decode-0", pd.RoleDecode, epp.EngineDecode}, {"decode-1", pd.RoleDecode, epp.EngineDecode},
	} {
		x := &target{name: e.name, role: e.role}
		x.sg.mode = e.mode
		f.targets = append(f.targets, x)
	}
	if got := fmt.Sprint(f.pairs()); got != "[prefill-0 → decode-0 prefill-0 → decode-1]" {
		t.Error(got)
	}
}

// TestRanksWithForeignSidecar: another sidecar may not name the rank.
func TestRanksWithForeignSidecar(t *testing.T) {
	engines := sglangPool()
	engines[0].ranks = 2
	if l := examine(t, engines, "--sidecar=any")["ranks"]; l.Verdict != warn || !strings.Contains(l.Do, "follow_bootstrap_room") {
		t.Errorf("%s: %s → %s", l.Verdict, l.Seen, l.Do)
	}
}

// TestSGLangPods: what pods of a cluster show, and nothing else does.
func TestSGLangPods(t *testing.T) {
	inPod := func(mode epp.EngineMode, arguments []string, env ...corev1.EnvVar) *fleet {
		p := pod("engine", nil, nil)
		p.Spec.Containers[0].Args, p.Spec.Containers[0].Env = arguments, env
		e := &target{name: "engine", role: pd.RoleDecode, pod: p}
		e.page = append(e.page, seriesNamed("sglang:page_size"))
		e.sg.mode = mode
		return &fleet{how: &lookFlags{Timeout: time.Second, Sidecar: "tandem"}, targets: []*target{e}}
	}
	for _, c := range []struct {
		name    string
		mode    epp.EngineMode
		value   string // of its time-out; "" = not set
		verdict verdict
		seen    string
	}{
		{"the default of a decode engine", epp.EngineDecode, "", warn, waitingTimeout + " is not set, so it waits 5m0s"},
		{"the default of a prefill engine", epp.EnginePrefill, "", warn, bootstrapTimeout + " is not set"},
		{"a long one", epp.EngineDecode, "120", warn, waitingTimeout + " is 2m0s"},
		{"a short one", epp.EngineDecode, "55", ok, "55s"},
	} {
		var env []corev1.EnvVar
		if c.value != "" {
			env = append(env, corev1.EnvVar{Name: waitingTimeout, Value: c.value})
		}
		if got := checkTimeouts(t.Context(), inPod(c.mode, nil, env...)); got.verdict != c.verdict || !strings.Contains(got.seen, c.seen) {
			t.Errorf("%s: %s: %s", c.name, got.verdict, got.seen)
		}
	}
}

func seriesNamed(name string) promtext.Series { return promtext.Series{Name: name} }
