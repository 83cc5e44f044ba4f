package security

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// Canaries are texts of clients that no program may write to a log, page or metric.
const (
	canary       = "canary-of-a-prompt"
	canaryBearer = "canary-of-a-header"
)

// secretBodies returns request bodies with canaries in every member that takes text, by name of the case.
func secretBodies(model string) map[string]string {
	long := strings.TrimSpace(strings.Repeat(canary+" ", 4*harness.Threshold))
	chat := func(more string) string {
		return `{"model":"` + model + `","max_tokens":4,"temperature":0,"user":"` + canary + `","messages":[{"role":"system","content":"` + canary + `"},{"role":"user","content":"` +
			long + `"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":\"` + canary +
			`\"}"}}]},{"role":"tool","tool_call_id":"1","content":"` + canary + `"}]` + more + `}`
	}
	return map[string]string{
		"chat":              chat(""),
		"chat, stream":      chat(`,"stream":true`),
		"completion":        `{"model":"` + model + `","max_tokens":4,"prompt":"` + long + `"}`,
		"completion, short": `{"model":"` + model + `","max_tokens":4,"prompt":"` + canary + `"}`,
		"several prompts":   `{"model":"` + model + `","max_tokens":4,"prompt":["` + long + `","` + canary + `"]}`,
		"forged":            chat(`,"kv_transfer_params":{"remote_host":"` + canary + `"}`),
		"no such model":     `{"model":"` + canary + `","max_tokens":4,"prompt":"` + canary + `"}`,
		"cut off":           `{"model":"` + model + `","prompt":"` + canary,
		"garbage behind":    `{"model":"` + model + `","prompt":"` + canary + `"} ` + canary,
		"no JSON":           canary,
		"twice":             `{"model":"` + model + `","prompt":"` + canary + `","prompt":"` + canary + `"}`,
		"of another type":   `{"model":"` + model + `","prompt":{"` + canary + `":"` + canary + `"},"max_tokens":"` + canary + `"}`,
		"refused by engine": `{"model":"` + model + `","prompt":"` + long + `","max_tokens":-1,"stop":["` + canary + `"]}`,
		"too long":          `{"model":"` + model + `","prompt":"` + strings.Repeat(canary+" ", 100_000) + `"}`,
		"no UTF-8":          `{"model":"` + model + `","prompt":"` + canary + "\xff\xfe" + `"}`,
	}
}

// TestSecurityPromptsAreInNoLogOrPage sends canaries through successes and failures of the whole stack, with logs of every detail (but
// for Envoy, whose debug log shows whole requests), access logs and traces switched on. No log, page or trace may have one.
func TestSecurityPromptsAreInNoLogOrPage(t *testing.T) {
	r := harness.StartReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+r.Addr())
	f := harness.NewTappedFleet(t, 2)
	f.StartPicker(t, "--body-limit=1MiB")
	bootstrap, err := harness.Output("tandem", "envoy-config", "--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0", "--epp="+f.Pickers[0].Addr("extproc"),
		"--epp-plaintext", "--body-limit=1MiB", "--access-log", "--otlp="+r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	e := harness.LaunchEnvoy(t, bootstrap)
	front := harness.Listener(t, e)
	answered := map[int]int{}
	round := func(state string) {
		t.Helper()
		for name, body := range secretBodies(f.Model) {
			for _, mode := range []string{"auto", "force;fallback", canaryBearer} {
				for _, to := range []string{front, decode0(f)} {
					path := pd.APICompletions.Path()
					if strings.Contains(body, `"messages"`) {
						path = pd.APIChat.Path()
					}
					if name == "no JSON" {
						path = "/tokenize"
					}
					answered[canaryRequest{state + "/" + name, to, path, mode, f.Prefill[0].Tap.Addr, body}.mustSend(t)]++
				}
			}
		}
	}
	round("all is well")
	for _, p := range f.Prefill {
		p.Fault(t, `{"leg":"prefill","fault":"status","arg":"500","count":20}`)
		p.Fault(t, `{"leg":"prefill","fault":"bad-handoff","arg":"wrong-engine","count":20}`)
	}
	f.Decode[0].Fault(t, `{"leg":"decode","fault":"truncate","count":10}`)
	f.Decode[0].Fault(t, `{"leg":"decode","fault":"reset-before","count":10}`)
	round("engines fail")
	if answered[200] < 20 || answered[400] < 10 || answered[413] < 1 {
		t.Errorf("answers by status: %v: the cases are not what they seem", answered)
	}
	seen := operatorPages(t, f, e)
	seen["explain"], err = harness.OutputOf(secretBodies(f.Model)["chat"], "tandem", "explain", "--admin="+f.Pickers[0].Addr("admin"), "--path", pd.APIChat.Path(), "-")
	if err != nil {
		t.Error(err)
	}
	seen["Envoy's log"] = e.Log()
	f.Pickers[0].MustStop(t) // what is left of the traces is sent at the end
	f.Fleet.Decode[0].Sidecar.MustStop(t)
	seen["picker's log"] = strings.Join(f.Pickers[0].Output(), "\n")
	seen["sidecar's log"] = strings.Join(f.Fleet.Decode[0].Sidecar.Output(), "\n")
	for _, s := range r.Spans() {
		seen["spans"] += s.String() + "\n"
	}
	for where, text := range seen {
		if len(text) == 0 {
			t.Errorf("%s is empty: nothing was looked at", where)
		}
		for _, secret := range []string{canary, canaryBearer} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s has the text of a client: %.400q", where, text[max(0, i-200):])
			}
		}
	}
}

// canaryRequest is a request with canaries in its body, sent to an address; what names the case.
type canaryRequest struct{ what, to, path, mode, prefill, body string }

// mustSend sends the request with canaries in its headers too, and returns the status; 0 if an engine broke off.
func (c canaryRequest) mustSend(t *testing.T) (status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "http://"+c.to+c.path, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "Authorization": "Bearer " + canaryBearer, "Cookie": "session=" + canaryBearer,
		"X-API-Key": canaryBearer, "X-Anything": canaryBearer, pd.HeaderMode: c.mode, pd.HeaderPrefill: c.prefill, "Baggage": "user=" + canaryBearer,
		"Proxy-Authorization": canaryBearer} {
		req.Header.Set(name, value)
	}
	resp, err := harness.Client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0
	}
	if resp.StatusCode == http.StatusInternalServerError && !strings.Contains(c.what, "engines fail") {
		t.Errorf("%s: status %d", c.what, resp.StatusCode)
	}
	return resp.StatusCode
}

// operatorPages reads every page that the programs of a stack serve to operators, by URL.
func operatorPages(t *testing.T, f *harness.TappedFleet, e *envoy.Envoy) map[string]string {
	t.Helper()
	seen := map[string]string{}
	sidecar, picker := f.Fleet.Decode[0].Sidecar, f.Pickers[0]
	for base, paths := range map[string][]string{
		sidecar.Addr("metrics"): {"/metrics", "/livez", "/readyz"},
		sidecar.Addr("admin"):   {"/debug/requests", "/debug/pprof/", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline", "/debug/pprof/heap?debug=1"},
		picker.Addr("metrics"):  {"/metrics", "/livez", "/readyz"},
		picker.Addr("admin"): {"/debug/endpoints", "/debug/requests", "/debug/config", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline",
			"/debug/pprof/heap?debug=1"},
		e.Admin(): {"/stats", "/stats/prometheus", "/config_dump", "/clusters", "/listeners", "/server_info", "/memory", "/certs"},
	} {
		for _, path := range paths {
			_, seen[base+path] = harness.FetchPage(t, "http://"+base+path)
		}
	}
	return seen
}

// TestSecurityDebugPagesAreOnLoopback checks that pages for operators are on loopback by default, and on no other port.
func TestSecurityDebugPagesAreOnLoopback(t *testing.T) {
	endpoints := filepath.Join(t.TempDir(), "endpoints.yaml")
	harness.Replace(t, endpoints, "endpoints: []\n")
	for _, c := range []struct {
		program string
		args    []string
		want    string
	}{
		{"sidecar", []string{"--check"}, "admin-address: 127.0.0.1:9096"},
		{"epp", []string{"--check", "--endpoints-file=" + endpoints}, "admin-address: 127.0.0.1:9091"},
		{"tandem", []string{"envoy-config"}, `address: "127.0.0.1", port_value: 9901`},
	} {
		if text, err := harness.Output(c.program, c.args...); err != nil || !strings.Contains(text, c.want) {
			t.Errorf("%s has not %q by default, %v", c.program, c.want, err)
		}
	}
	f := harness.NewStack(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, 1, 1)
	sidecar := f.Decode[0].Sidecar
	for _, base := range []string{sidecar.Addr("metrics"), f.Pickers[0].Addr("metrics"), sidecar.Addr("http"), f.Front.Addr} {
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/endpoints", "/debug/config", "/debug/requests", "/explain", "/config_dump", "/quitquitquit", "/stats"} {
			if status, text := harness.FetchPage(t, "http://"+base+path); status == http.StatusOK {
				t.Errorf("%s%s: status %d %.100s", base, path, status, text)
			}
		}
	}
}

// TestSecurityOnlyTheUserMayWriteFiles checks who may change the files that a stack keeps while it runs.
func TestSecurityOnlyTheUserMayWriteFiles(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	f := harness.NewStack(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, 1, 1)
	f.Send(t, f.TokensCall(10, false))
	entries := 0
	err := filepath.WalkDir(temp, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return nil // it is gone
		}
		entries++
		if info.Mode().Perm()&0o022 != 0 && info.Mode().Type() != os.ModeSymlink {
			t.Errorf("%s may be written by others: %v", path, info.Mode())
		}
		return nil
	})
	if err != nil || entries < 2 {
		t.Errorf("%d files were looked at, %v", entries, err)
	}
}

// TestSecurityMetricsAreBounded sends many values of everything that clients choose: none may become a label or a series.
func TestSecurityMetricsAreBounded(t *testing.T) {
	f := harness.NewStack(t, harness.Layout{Proxy: "gateway", Mode: "pair"}, 1, 1)
	series := func() (n int) {
		for _, p := range []harness.Program{f.Pickers[0], f.Decode[0].Sidecar} {
			_, text := harness.FetchPage(t, "http://"+p.Addr("metrics")+"/metrics")
			n += strings.Count(text, "\n")
		}
		return n
	}
	ask := func(i int) {
		q := f.TokensCall(10, false)
		q.Members = map[string]any{"user": fmt.Sprint("user-", i)}
		q.Header = map[string]string{"X-Llm-D-Inference-Objective": fmt.Sprint("objective-", i), "X-Llm-D-Inference-Fairness-Id": fmt.Sprint("tenant-", i)}
		_ = harness.MustSend(t, q, f.Front.Addr, fmt.Sprint("model-", i%2*i))
		_, _ = harness.FetchPage(t, fmt.Sprintf("http://%s/path-%d", f.Front.Addr, i))
	}
	for i := range 4 {
		ask(i)
	}
	before := series()
	for i := range 60 {
		ask(100 + i)
	}
	if after := series(); after > before+20 {
		_, text := harness.FetchPage(t, "http://"+f.Pickers[0].Addr("metrics")+"/metrics")
		lines := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return !strings.Contains(l, "1") })
		t.Errorf("%d lines of metrics became %d: %.2000s", before, after, strings.Join(lines, "\n"))
	}
}
