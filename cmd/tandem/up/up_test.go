package up_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/cmd/tandem/up"
	"github.com/tandem-serving/tandem/e2e/programs"
	"github.com/tandem-serving/tandem/stack/envoy"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"up": func() { boot.Main(up.Run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// TestUp runs whole stacks, from programs that are built once.
func TestUp(t *testing.T) {
	dir, err := programs.Build(programs.All()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	model := awkwardModel(t)
	for _, proxy := range []string{"envoy", "gateway"} {
		t.Run(proxy, func(t *testing.T) {
			useProxy(t, proxy)
			t.Run("page", func(t *testing.T) { testPage(t, dir, proxy, model) })
			t.Run("Ctrl-C during an answer", func(t *testing.T) { testInterrupt(t, dir) })
			t.Run("killed", func(t *testing.T) { testKilled(t, dir) })
			t.Run("dead engine", func(t *testing.T) { testDeadEngine(t, dir) })
			if proxy == "envoy" {
				t.Run("dead Envoy", func(t *testing.T) { testDeadEnvoy(t, dir) })
			}
		})
	}
	t.Run("doctor", func(t *testing.T) { testDoctor(t, dir) })
	t.Run("no prefill engine", func(t *testing.T) { testNoPrefill(t, dir) })
	t.Run("engines with an API key", func(t *testing.T) { testKey(t, dir) })
	t.Run("port taken", func(t *testing.T) { testPortTaken(t, dir) })
	t.Run("in front of running engines", func(t *testing.T) { testOwnEngines(t, dir) })
	t.Run("SGLang", func(t *testing.T) { testSGLang(t, dir) })
	t.Run("TensorRT-LLM", func(t *testing.T) { testTRTLLM(t, dir) })
}

// useProxy sets whether the machine has an Envoy.
func useProxy(t *testing.T, proxy string) {
	t.Helper()
	if proxy == "envoy" {
		envoy.Require(t)
		return
	}
	t.Chdir(t.TempDir())
	t.Setenv("ENVOY_BIN", "")
	t.Setenv("PATH", withoutEnvoy(os.Getenv("PATH")))
}

func withoutEnvoy(path string) string {
	dirs := slices.DeleteFunc(filepath.SplitList(path), func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "envoy"))
		return err == nil
	})
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// running is a running tandem up.
type running struct {
	cmd   *exec.Cmd
	out   *bufio.Reader // of stdout and stderr
	page  string        // its output until it is ready
	files string        // folder for its files
}

// start runs the command until it has printed the page.
func start(t *testing.T, dir string, args ...string) *running {
	t.Helper()
	r := run(t, dir, args...)
	for !strings.Contains(r.page, "Ctrl-C ends everything.\n") {
		line, err := r.out.ReadString('\n')
		r.page += line
		if err != nil {
			t.Fatalf("ended with %v before it was ready:\n%s", err, r.page)
		}
	}
	return r
}

func run(t *testing.T, dir string, args ...string) *running {
	t.Helper()
	r := &running{cmd: exec.Command("up", append([]string{"--bin-dir", dir, "--listen=127.0.0.1:0"}, args...)...), files: t.TempDir()}
	r.cmd.Env = append(os.Environ(), "TMPDIR="+r.files, "GORACE=atexit_sleep_ms=0")
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = out, out
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	r.out = bufio.NewReader(in)
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // it has already ended unless the test failed
		_ = r.cmd.Wait()
		in.Close()
	})
	return r
}

// end waits for the end, and returns the exit code and the output after the page.
func (r *running) end(t *testing.T) (code int, said string) {
	t.Helper()
	rest, err := io.ReadAll(r.out)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := errors.AsType[*exec.ExitError](r.cmd.Wait()); !ok && !r.cmd.ProcessState.Success() {
		t.Fatal(r.cmd.ProcessState)
	}
	return r.cmd.ProcessState.ExitCode(), string(rest)
}

func (r *running) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// addresses are those of the ready line.
func (r *running) addresses(t *testing.T) map[string]string {
	t.Helper()
	var ready struct {
		Ready     string
		Addresses map[string]string
	}
	line, _, _ := strings.Cut(r.page, "\n")
	if err := json.Unmarshal([]byte(line), &ready); err != nil || ready.Ready != "up" {
		t.Fatalf("the first line is not a ready line: %s", r.page)
	}
	return ready.Addresses
}

var portLine = regexp.MustCompile(`(?m)^  .* (127\.0\.0\.1:\d+)  `)

// ports returns all addresses on the page.
func (r *running) ports(t *testing.T) (ports []string) {
	t.Helper()
	for _, found := range portLine.FindAllStringSubmatch(r.page, -1) {
		ports = append(ports, found[1])
	}
	if len(ports) < 10 {
		t.Fatalf("%d ports in\n%s", len(ports), r.page)
	}
	return ports
}

// interrupt ends it as Ctrl-C does, without errors.
func (r *running) interrupt(t *testing.T) {
	t.Helper()
	pids := children(t, r.cmd.Process.Pid)
	r.signal(t, syscall.SIGINT)
	if code, said := r.end(t); code != 0 || said != "\nending\n" {
		t.Errorf("exit %d: %s", code, said)
	}
	mustBeGone(t, pids)
	if left, err := os.ReadDir(r.files); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

var proxyNames = map[string]string{"envoy": "Envoy 1.", "gateway": "embedded gateway)"}

// testPage runs the command of the page in a shell.
func testPage(t *testing.T, dir, proxy, model string) {
	r := start(t, dir, "--prefill=1", "--decode=2", "--threshold=64", "--model-file="+model)
	addresses := r.addresses(t)
	for _, want := range []string{
		"Tandem is up at http://" + addresses["http"] + " (" + proxyNames[proxy], "1 prefill and 2 decode engines (simulated) that serve it's a \"model\".\n",
		"with 64 or more tokens", "over Tandem's own TCP (--transport).\n", "--admin " + addresses["admin"],
		"tandem why --up FILE ID", "\n  " + proxy, "\n  decode-1 sidecar  127.0.0.1:",
	} {
		if !strings.Contains(r.page, want) {
			t.Errorf("%q is missing in\n%s", want, r.page)
		}
	}
	command := regexp.MustCompile(`(?s)\n  (curl .*?'\n)`).FindStringSubmatch(r.page)
	if command == nil {
		t.Fatalf("no command in\n%s", r.page)
	}
	shell := exec.Command("sh", "-c", command[1])
	shell.Stderr = t.Output()
	answer, err := shell.Output()
	for _, want := range []string{"HTTP/1.1 200", "x-tandem-pd-decision: local;reason=short-prompt", "\nServer-Timing: ", `"role":"assistant"`} {
		if err != nil || !strings.Contains(strings.ToLower(string(answer)), strings.ToLower(want)) {
			t.Errorf("%v: %q is missing in\n%s", err, want, answer)
		}
	}
	r.interrupt(t)
}

// awkwardModel returns the file of a model whose name has shell metacharacters.
func awkwardModel(t *testing.T) string {
	t.Helper()
	tiny, err := os.ReadFile(filepath.Join("..", "..", "..", "sim", "model", "models", "tiny.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "model.yaml")
	if err := os.WriteFile(file, bytes.Replace(tiny, []byte("name: tiny"), []byte(`name: "it's a \"model\""`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// testInterrupt ends a stack while it answers.
func testInterrupt(t *testing.T, dir string) {
	r := start(t, dir, "--prefill=1", "--decode=1")
	body := `{"model":"tiny","prompt":"go on","max_tokens":4000,"stream":true}`
	resp, err := http.Post("http://"+r.addresses(t)["http"]+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	r.interrupt(t)
}

func testPortTaken(t *testing.T, dir string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	code, said := run(t, dir, "--listen="+l.Addr().String()).end(t)
	want := fmt.Sprintf("up: listening on %v: address already in use (choose another with --listen, or 0 as port for any free one)\n", l.Addr())
	if code != 4 || said != want {
		t.Errorf("exit %d: %s", code, said)
	}
}

// at returns the first address that the page has for a program.
func (r *running) at(t *testing.T, name string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^  ` + name + ` +(127\.0\.0\.1:\d+)  `).FindStringSubmatch(r.page)
	if found == nil {
		t.Fatalf("no %s in\n%s", name, r.page)
	}
	return found[1]
}

// forced sends a request that must be prefilled remotely, with an API key if it is not "", and returns the decision.
func forced(t *testing.T, address, key string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+address+"/v1/completions", strings.NewReader(`{"model":"tiny","prompt":"hello"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "X-Tandem-Pd": {"force"}, "Connection": {"close"}}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.Header.Get("x-tandem-pd-decision")
}

// testDoctor runs the doctor that the page names on the ready line.
func testDoctor(t *testing.T, dir string) {
	r := start(t, dir, "--prefill=2", "--decode=1")
	ready, _, _ := strings.Cut(r.page, "\n")
	file := filepath.Join(t.TempDir(), "up.json")
	if err := os.WriteFile(file, []byte(ready+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`: tandem (doctor --up) FILE, `).FindStringSubmatch(r.page)
	if command == nil {
		t.Fatalf("no doctor in\n%s", r.page)
	}
	out, err := exec.Command(filepath.Join(dir, "tandem"), append(strings.Fields(command[1]), file, "--idle-wait=0s")...).Output()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{`ok +side-channel +all 2: answers`, `ok +keeper +`} {
		if !regexp.MustCompile(`(?m)^ *` + want).Match(out) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	r.interrupt(t)
}

// testNoPrefill: a stack without prefill engines promises no remote prefill.
func testNoPrefill(t *testing.T, dir string) {
	r := start(t, dir, "--prefill=0", "--decode=1")
	if !strings.Contains(r.page, "There is no prefill engine: every prompt is prefilled by its decode engine") || strings.Contains(r.page, "prefilled remotely") {
		t.Error(r.page)
	}
	if got := forced(t, r.addresses(t)["http"], ""); got != "refused;reason=no-prefill" {
		t.Errorf("decision %q", got)
	}
	r.interrupt(t)
}

// testTRTLLM runs simulated engines of TensorRT-LLM: a long prompt is handed off, a short one stays local, and the picker reads the
// metrics page where these engines have it.
func testTRTLLM(t *testing.T, dir string) {
	r := start(t, dir, "--engine=trtllm", "--prefill=1", "--decode=1")
	if !strings.Contains(r.page, "kv_transfer_timeout_ms") || !strings.Contains(r.page, "1 prefill and 1 decode engines (simulated)") {
		t.Error(r.page)
	}
	long := strings.Repeat("the quick brown fox ", 100)
	for _, c := range []struct{ name, path, body, want string }{
		{"completion", "/v1/completions", `{"model":"tiny","prompt":"` + long + `","max_tokens":4}`, "remote;reason=uncached"},
		{"streamed chat", "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"` + long + `"}],"max_tokens":4,"stream":true}`, "remote;reason=uncached"},
		{"short", "/v1/completions", `{"model":"tiny","prompt":"hello","max_tokens":4}`, "local;reason=short-prompt"},
	} {
		resp, err := http.Post("http://"+r.addresses(t)["http"]+c.path, "application/json", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got := resp.Header.Get("x-tandem-pd-decision"); err != nil || resp.StatusCode != 200 || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, %q, %v: %s", c.name, resp.Status, got, err, answer)
		}
	}
	code, said := run(t, dir, "--engine=sglang", "--decode-engine="+r.at(t, "decode-0")).end(t)
	if want := "is one of trtllm, and the sidecars would speak the protocol of sglang: choose the engine trtllm"; code == 0 || !strings.Contains(said, want) {
		t.Errorf("exit %d: %s", code, said)
	}
	r.interrupt(t)
}

// testSGLang: every prompt is prefilled remotely, of SGLang's own call too. Engines say what they are: sidecars of another protocol are
// not put in front of them.
func testSGLang(t *testing.T, dir string) {
	r := start(t, dir, "--engine=sglang", "--prefill=1", "--decode=1")
	if !strings.Contains(r.page, "SGLang's decode engines compute no prompts") {
		t.Error(r.page)
	}
	for path, body := range map[string]string{
		"/v1/completions":      `{"model":"tiny","prompt":["hello","bye"],"max_tokens":2,"n":2}`,
		"/v1/chat/completions": `{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":2,"stream":true}`,
		"/v1/messages":         `{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":2}`,
		"/v1/responses":        `{"model":"tiny","input":"hello","max_output_tokens":4}`,
		"/generate":            `{"text":"hello","sampling_params":{"max_new_tokens":2}}`,
	} {
		resp, err := http.Post("http://"+r.addresses(t)["http"]+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got := resp.Header.Get("x-tandem-pd-decision"); err != nil || resp.StatusCode != 200 || !strings.HasPrefix(got, "remote;reason=decode-only") {
			t.Errorf("%s: %s, %q, %v: %s", path, resp.Status, got, err, answer)
		}
	}
	code, said := run(t, dir, "--prefill-engine="+r.at(t, "prefill-0"), "--decode-engine="+r.at(t, "decode-0")).end(t)
	if want := "is one of sglang, and the sidecars would speak the protocol of vllm: choose the engine sglang"; code == 0 || !strings.Contains(said, want) {
		t.Errorf("exit %d: %s", code, said)
	}
	r.interrupt(t)
	r = start(t, dir, "--engine=sglang", "--prefill=1", "--decode=1", "--plain=1")
	if !strings.Contains(r.page, "1 prefill, 1 decode and 1 plain engines") || !strings.Contains(r.page, "requests that stay local go to plain engines") {
		t.Error(r.page)
	}
	r.at(t, "plain-0 sidecar")
	own := start(t, dir, "--engine=sglang", "--prefill-engine="+r.at(t, "prefill-0"), "--decode-engine="+r.at(t, "decode-0"), "--plain-engine="+r.at(t, "plain-0"))
	if want := "1 prefill, 1 decode and 1 plain engines (yours)"; !strings.Contains(own.page, want) {
		t.Errorf("%q is missing in\n%s", want, own.page)
	}
	resp, err := http.Post("http://"+own.addresses(t)["http"]+"/v1/completions", "application/json", strings.NewReader(`{"model":"tiny","prompt":"hello","max_tokens":4}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("x-tandem-pd-decision"); resp.StatusCode != http.StatusOK || got != "local;reason=short-prompt" {
		t.Errorf("a short prompt: %s, decision %q", resp.Status, got)
	}
	own.interrupt(t)
	r.interrupt(t)
}

// testKey starts a stack in front of engines that want an API key.
func testKey(t *testing.T, dir string) {
	engines := start(t, dir, "--prefill=1", "--decode=1")
	var locked []string
	for _, name := range []string{"prefill-0", "decode-0"} {
		engine := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: engines.at(t, name)})
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/") && r.Header.Get("Authorization") != "Bearer sesame" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			engine.ServeHTTP(w, r)
		}))
		t.Cleanup(s.Close)
		locked = append(locked, s.Listener.Addr().String())
	}
	flags := []string{"--prefill-engine=" + locked[0], "--decode-engine=" + locked[1]}
	code, said := run(t, dir, flags...).end(t)
	if want := "GET /v1/models: 401 Unauthorized (name a file with the engines' API key by --engine-api-key-file)\n"; code != 4 || !strings.HasSuffix(said, want) {
		t.Errorf("without: exit %d: %s", code, said)
	}
	file := filepath.Join(t.TempDir(), "the key")
	if err := os.WriteFile(file, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, dir, append(flags, "--engine-api-key-file="+file)...)
	if want := ` -H "Authorization: Bearer $(cat '` + file + `')"`; !strings.Contains(r.page, want) {
		t.Errorf("%s is missing in\n%s", want, r.page)
	}
	if got := forced(t, r.addresses(t)["http"], "sesame"); !strings.HasPrefix(got, "remote;reason=forced") {
		t.Errorf("decision %q", got)
	}
	r.interrupt(t)
	engines.interrupt(t)
}

// testOwnEngines starts a stack in front of the engines of another one.
func testOwnEngines(t *testing.T, dir string) {
	engines := start(t, dir, "--prefill=1", "--decode=1")
	at := func(name string) string { return engines.at(t, name) }
	// For a decode pod, the page has first the sidecar and then the engine.
	r := start(t, dir, "--prefill-engine="+at("prefill-0"), "--decode-engine="+at("decode-0"), "--threshold=0")
	for _, want := range []string{"with 1 prefill and 1 decode engines (yours) that serve tiny.", "prefilled by their decode engine", "Decode engines release unused hand-offs"} {
		if !strings.Contains(r.page, want) {
			t.Errorf("%q is missing in\n%s", want, r.page)
		}
	}
	if got := forced(t, r.addresses(t)["http"], ""); !strings.HasPrefix(got, "remote;reason=forced") {
		t.Errorf("decision %q", got)
	}
	prefill := at("prefill-0")
	engines.interrupt(t)
	code, said := run(t, dir, "--decode-engine="+prefill).end(t)
	if want := "up: decode engine " + prefill + " is not ready: connection refused\n"; code != 4 || said != want {
		t.Errorf("exit %d: %s", code, said)
	}
	r.interrupt(t) // the end of its engines is no failure
}
