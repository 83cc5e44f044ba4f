package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	testprograms "github.com/tandem-serving/tandem/e2e/programs"
	"github.com/tandem-serving/tandem/stack"
)

// programs is the folder of the real programs.
var programs string

// dialVariable names the address that a hanging child connects to, so that a test can tell whether it runs.
const dialVariable = "DEMO_TEST_DIAL"

// TestMain builds the programs that the demo starts, or plays one of them that never becomes ready.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "sim" {
		os.Exit(hang())
	}
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(programs)
		os.Exit(code)
	}))
}

func build() (err error) {
	programs, err = testprograms.Build(testprograms.All()...)
	return err
}

func hang() int {
	c, err := net.Dial("tcp", os.Getenv(dialVariable))
	if err != nil {
		return 1
	}
	io.Copy(io.Discard, c)
	return 1
}

type result struct {
	code           int
	stdout, stderr string
}

// tandem runs the tool in this process, so that leaks and races are detected.
func tandem(ctx context.Context, args ...string) result {
	var stdout, stderr bytes.Buffer
	code := boot.Run(ctx, boot.IO{Name: "tandem", Stdout: &stdout, Stderr: &stderr}, args, run)
	return result{code, stdout.String(), stderr.String()}
}

func TestCommandLine(t *testing.T) {
	tests := []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string // part of it
	}{
		{"nothing", nil, 2, "", "tandem: a command is missing: use one of up, demo, check"},
		{"help", []string{"--help"}, 0, "run a whole P/D stack", ""},
		{"help as a word", []string{"help"}, 0, "Usage: tandem COMMAND", ""},
		{"version", []string{"--version"}, 0, boot.ReadVersion().Go, ""},
		{"unknown command", []string{"dmeo"}, 2, "", `tandem: unknown command "dmeo", did you mean demo?`},
		{"help of a command", []string{"demo", "--help"}, 0, "Usage: tandem demo [flags]", ""},
		{"unknown flag", []string{"demo", "--jsn"}, 2, "", "did you mean --json?"},
		{"no programs", []string{"demo"}, 4, "", "make build"},
		{"folder without programs", []string{"demo", "--bin-dir", t.TempDir()}, 4, "", "sim: no such file or directory (build them with make build"},
		{"unknown fault", []string{"demo", "--bin-dir", programs, "--fault", "bad-hair"}, 2, "", `fault "bad-hair" is not known`},
		{"no NIXL", []string{"demo", "--bin-dir", programs, "--transport=nixl", "--nixl-library", filepath.Join(t.TempDir(), "no.so")}, 4, "", "make nixl"},
		{"library without transport nixl", []string{"demo", "--nixl-library=x"}, 3, "", "nixl-library: has no effect with --transport tcp"},
		{"unknown engine", []string{"demo", "--engine=triton"}, 2, "", "vllm, sglang, trtllm"},
		{"NIXL between engines of SGLang", []string{"demo", "--engine=sglang", "--transport=nixl"}, 3, "", "transport: NIXL moves the KV of vLLM's simulated engines only"},
		{"a fault of another engine", []string{"demo", "--engine=sglang", "--fault=bad-handoff:foreign"}, 3, "", "fault: engines of sglang do not have the fault bad-handoff"},
		{"NIXL between engines of TensorRT-LLM", []string{"demo", "--engine=trtllm", "--transport=nixl"}, 3, "", "leave it out with --engine trtllm"},
		{"a fault that TensorRT-LLM does not have", []string{"demo", "--engine=trtllm", "--fault=no-handoff"}, 3, "", "fault: engines of trtllm do not have the fault no-handoff"},
		{"unknown transport", []string{"demo", "--transport=rdma"}, 2, "", "tcp, nixl"},
		{"no rounds", []string{"demo", "--rounds=0"}, 3, "", "rounds: must be from 1 to 1000, got 0"},
		{"too many pairs", []string{"demo", "--pairs=101"}, 3, "", "pairs: must be from 0 to 100, got 101"},
		{"unknown proxy", []string{"demo", "--proxy=nginx"}, 2, "", "auto, envoy, gateway"},
		{"page cannot be written", []string{"demo", "--report", filepath.Join(t.TempDir(), "no", "page.html")}, 3, "", "report: the page cannot be written"},
		{"negative time", []string{"demo", "--timeout=-1s"}, 3, "", "timeout: -1s is not a positive time"},
		{"no time", []string{"demo", "--bin-dir", programs, "--timeout", "1ns"}, 1, "", "it took longer than 1ns (see --timeout)"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := tandem(t.Context(), test.args...)
			if got.code != test.code || !strings.Contains(got.stdout, test.stdout) || !strings.Contains(got.stderr, test.stderr) {
				t.Errorf("exit %d, stdout:\n%s\nstderr:\n%s", got.code, got.stdout, got.stderr)
			}
		})
	}
}

var advertised = regexp.MustCompile(`environment variable \(--(\S+) by`)

// TestHelp checks that each help page advertises only flags of its command.
func TestHelp(t *testing.T) {
	for _, c := range commands {
		page := tandem(t.Context(), c.name, "--help").stdout
		flag := advertised.FindStringSubmatch(page)
		if flag == nil && c.name != "check" && c.name != "replay" && c.name != "advise" { // these have no settings
			t.Errorf("%s: no example of a flag in\n%s", c.name, page)
		}
		if flag != nil && !strings.Contains(page, "\n  --"+flag[1]) {
			t.Errorf("%s: it has no flag --%s", c.name, flag[1])
		}
	}
}

// checks lists what the demo checks, in its order.
var checks = []string{"every request answered", "prefilled where expected", "pods of each request known", "tokens equal to the reference engine's",
	"KV bytes moved as expected", "no blocks stranded", "hand-off of a failed decode leg released at once",
	"phases add up to the time in the sidecar", "all programs ended"}

func TestDemo(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	got := tandem(t.Context(), "demo", "--bin-dir", programs, "--rounds=3", "--pairs=0", "--report", page)
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("exit %d: %s\n%s", got.code, got.stderr, got.stdout)
	}
	for _, name := range checks {
		if !strings.Contains(got.stdout, "\nok      "+name+": ") {
			t.Errorf("%q has not passed in\n%s", name, got.stdout)
		}
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(html, []byte("<!DOCTYPE html>")) && !bytes.HasPrefix(html, []byte("<!doctype html>")) || !strings.Contains(got.stdout, page) {
		t.Errorf("the page begins with %.40q; stdout:\n%s", html, got.stdout)
	}
}

// sglangChecks lists what the demo checks of SGLang's engines.
var sglangChecks = []string{"every request answered", "prefilled where expected", "pods of each request known", "tokens equal to the reference engine's",
	"KV bytes moved as expected", "no leg waits, no page is held", "failed decode leg: prefill aborted at once, and a new hand-off",
	"phases add up to the time in the sidecar", "all programs ended"}

// TestDemoOnSGLang runs the demo on a pool of prefill, decode and plain engines, whose legs are sent at once.
func TestDemoOnSGLang(t *testing.T) {
	capture := filepath.Join(t.TempDir(), "demo.jsonl")
	got, d := demoJSON(t, "--engine=sglang", "--rounds=2", "--capture", capture)
	if got.code != 0 || failedChecks(&d) != nil {
		t.Fatalf("exit %d: %s\n%s", got.code, got.stderr, got.stdout)
	}
	for i, c := range d.Checks {
		if c.Name != sglangChecks[i] {
			t.Errorf("check %d is %q, want %q", i, c.Name, sglangChecks[i])
		}
	}
	pods := map[string]map[string]int{}
	for i, r := range d.Requests {
		if pods[r.Class] == nil {
			pods[r.Class] = map[string]int{}
		}
		role, _, _ := strings.Cut(r.DecodePod, "-")
		pods[r.Class][role+" "+r.Decision]++
		_, overlap := r.Phases["overlap"]
		_, handoff := r.Phases["handoff"]
		if overlap != (r.Decision == "remote") || handoff || (r.TTFT > 0) != r.Stream || r.Prompt == 0 || r.Completion < 16 {
			t.Errorf("request %d: %+v", i+1, r)
		}
	}
	const pair, alone = "decode remote", "plain local"
	for class, want := range map[string]map[string]int{
		"short chat": {alone: 2}, "short completion": {alone: 2}, "long chat": {pair: 2}, "long completion": {pair: 2}, "short chat, forced": {pair: 2},
		"long, bypassed": {alone: 2}, "long, SGLang's own call": {pair: 2}, "chat, first turn": {pair: 2}, "chat, later turns": {pair: 6},
	} {
		if !maps.Equal(pods[class], want) {
			t.Errorf("%s went to %v, want %v", class, pods[class], want)
		}
	}
	endpoints := map[string]bool{}
	for _, s := range d.Load {
		endpoints[s.Endpoint+" "+s.Role] = true
	}
	if len(endpoints) != 5 || !endpoints["default/plain-0 prefill-decode"] {
		t.Errorf("the load is of %v", endpoints)
	}
	if got := tandem(t.Context(), "replay", capture); got.code != 0 {
		t.Errorf("replaying the capture: exit %d: %s", got.code, got.stderr)
	}
}

// trtllmChecks lists what the demo checks of TensorRT-LLM's engines.
var trtllmChecks = []string{"every request answered", "prefilled where expected", "pods of each request known", "tokens equal to the reference engine's",
	"KV bytes moved as expected", "no block is held, no hand-off waits", "hand-off of a failed decode leg read at once, which frees it",
	"phases add up to the time in the sidecar", "all programs ended"}

// TestDemoOnTRTLLM runs the demo on context and generation engines, whose legs are sent one after the other.
func TestDemoOnTRTLLM(t *testing.T) {
	got, d := demoJSON(t, "--engine=trtllm", "--rounds=2")
	if got.code != 0 || failedChecks(&d) != nil || d.KVMoved == 0 {
		t.Fatalf("exit %d: %s\n%s", got.code, got.stderr, got.stdout)
	}
	for i, c := range d.Checks {
		if c.Name != trtllmChecks[i] {
			t.Errorf("check %d is %q, want %q", i, c.Name, trtllmChecks[i])
		}
	}
	for i, r := range d.Requests {
		_, overlap := r.Phases["overlap"]
		_, handoff := r.Phases["handoff"]
		if overlap || handoff != (r.Decision == "remote") || !strings.HasPrefix(r.DecodePod, "decode-") || r.Prompt == 0 || r.Completion < 16 {
			t.Errorf("request %d: %+v", i+1, r)
		}
	}
}

// TestDemoOverNIXL runs the demo with KV that the real library moves, between programs built with it.
func TestDemoOverNIXL(t *testing.T) {
	switch library := stack.NIXLLibrary(); {
	case library != "":
	case os.Getenv("CI") == "true":
		t.Fatal("the NIXL library is missing: make .tools/nixl")
	default:
		t.Skip("the NIXL library is missing: make .tools/nixl fetches it, or TANDEM_NIXL_LIB names another")
	}
	build := exec.Command("go", "build", "-tags=nixl", "-o", stack.NIXLDir(programs)+"/", "../sim", "../keeper")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the programs: %v\n%s", err, out)
	}
	got, d := demoJSON(t, "--rounds=2", "--transport=nixl")
	if got.code != 0 || len(d.Checks) != len(checks) || d.KVMoved == 0 {
		t.Errorf("exit %d: %s\n%+v", got.code, got.stderr, d.Checks)
	}
	if !slices.ContainsFunc(d.Stack, func(line string) bool { return strings.Contains(line, "NIXL") }) {
		t.Errorf("the stack was %q", d.Stack)
	}
}

func demoJSON(t *testing.T, args ...string) (result, report.Data) {
	t.Helper()
	got := tandem(t.Context(), append([]string{"demo", "--json", "--bin-dir", programs, "--proxy=gateway", "--pairs=0"}, args...)...)
	var d report.Data
	if err := json.Unmarshal([]byte(got.stdout), &d); err != nil {
		t.Fatalf("reading the report: %v; exit %d: %s", err, got.code, got.stderr)
	}
	return got, d
}

func failedChecks(d *report.Data) (names []string) {
	for _, c := range d.Checks {
		if !c.Passed {
			names = append(names, c.Name)
		}
	}
	return names
}

func TestDemoJSON(t *testing.T) {
	got, d := demoJSON(t, "--rounds=2")
	if got.code != 0 || len(d.Checks) != len(checks) || failedChecks(&d) != nil {
		t.Fatalf("exit %d: %s\n%s", got.code, got.stderr, got.stdout)
	}
	classes := map[string]int{}
	for i, r := range d.Requests {
		classes[r.Class]++
		if r.Number != i+1 || r.Decision == "" || r.Failure != "" || (r.TTFT > 0) != r.Stream || r.Total < r.TTFT || r.Prompt == 0 || r.Completion < 16 {
			t.Errorf("request %d: %+v", i+1, r)
		}
		if _, ok := r.Phases["epp"]; !ok || r.Stream != (len(r.ITL) > 0) {
			t.Errorf("request %d: phases %v, ITL %v", i+1, r.Phases, r.ITL)
		}
	}
	if len(classes) != 8 || classes["chat, later turns"] != 6 {
		t.Errorf("classes %v", classes)
	}
	endpoints := map[string]bool{}
	for _, s := range d.Load {
		endpoints[s.Endpoint] = true
	}
	if len(endpoints) != 4 || len(d.Load) < 2*len(endpoints) {
		t.Errorf("%d samples of the load of %v", len(d.Load), endpoints)
	}
	if len(d.Why) != 3 {
		t.Fatalf("%d decisions are explained", len(d.Why))
	}
	for _, w := range d.Why {
		if r := d.Requests[w.Request-1]; w.Explanation.Decision != r.Decision || string(w.Explanation.Reason) != r.Reason || w.Explanation.Trace == nil {
			t.Errorf("%s %+v does not explain %+v", w.Question, w.Explanation, r)
		}
	}
}

func TestDemoCompares(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		t.Run(engine, func(t *testing.T) { compares(t, engine) })
	}
}

func compares(t *testing.T, engine string) {
	got, d := demoJSON(t, "--engine="+engine, "--rounds=1", "--pairs=1")
	if got.code != 0 || failedChecks(&d) != nil || len(d.Checks) != len(checks)+1 {
		t.Fatalf("exit %d: %s\n%+v", got.code, got.stderr, d.Checks)
	}
	var kinds [2]map[string]int
	for i, side := range d.Comparison.Sides {
		if len(side.Rounds) != 1 {
			t.Fatalf("%d rounds of %s", len(side.Rounds), side.Name)
		}
		kinds[i] = map[string]int{}
		for _, x := range side.Rounds[0].Samples {
			kinds[i][x.Kind]++
			if x.TTFT <= 0 || len(x.ITL) < 2 {
				t.Errorf("%s: %+v", side.Name, x)
			}
		}
	}
	if !maps.Equal(kinds[0], kinds[1]) || len(kinds[0]) != 2 {
		t.Errorf("one side got %v, the other %v", kinds[0], kinds[1])
	}
}

// Each fault of the prefill engines fails only the checks that it affects.
func TestDemoFails(t *testing.T) {
	const answers, decisions, pods, tokens, bytes, stranded, lost = 0, 1, 2, 3, 4, 5, 6
	tests := []struct {
		engine, fault string
		failed        []int
	}{
		{"vllm", "bad-handoff:foreign", []int{tokens}},
		{"vllm", "stale", []int{tokens, bytes, stranded, lost}},
		{"vllm", "no-handoff", []int{answers, decisions, bytes, lost}},
		{"vllm", "status:500", []int{answers, decisions, bytes, lost}},
		{"sglang", "status:500", []int{answers, pods, bytes, lost}}, // decode engines got legs for which there is no answer
		{"trtllm", "status:500", []int{answers, decisions, bytes, lost}},
	}
	for _, test := range tests {
		t.Run(test.engine+" "+test.fault, func(t *testing.T) {
			got, d := demoJSON(t, "--engine="+test.engine, "--rounds=1", "--fault", test.fault)
			names := map[string][]string{"vllm": checks, "sglang": sglangChecks, "trtllm": trtllmChecks}[test.engine]
			var want []string
			for _, i := range test.failed {
				want = append(want, names[i])
			}
			if found := failedChecks(&d); got.code != 1 || !slices.Equal(found, want) {
				t.Errorf("exit %d, failed: %q, want %q\n%+v", got.code, found, want, d.Checks)
			}
			if line := "tandem: checks failed: " + strings.Join(want, "; "); strings.TrimSpace(got.stderr) != line {
				t.Errorf("stderr %q", got.stderr)
			}
		})
	}
	t.Run("crash", func(t *testing.T) {
		got := tandem(t.Context(), "demo", "--bin-dir", programs, "--rounds=1", "--proxy=gateway", "--fault", "crash")
		if got.code != 1 || !strings.Contains(got.stderr, " ended: exit status 1") || !strings.Contains(got.stderr, "crash fault") ||
			!strings.Contains(got.stderr, "running the demo: prefill-") {
			t.Errorf("exit %d: %s", got.code, got.stderr)
		}
	})
}

func TestInterrupt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv(dialVariable, l.Addr().String())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"sim", "keeper", "sidecar", "epp", "tandem"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan result)
	go func() { done <- tandem(context.Background(), "demo", "--bin-dir", dir) }()
	child, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer child.Close()
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil { // as Ctrl-C does
		t.Fatal(err)
	}
	if got := <-done; got.code != 1 || !strings.Contains(got.stderr, "interrupted, nothing was checked") {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
	if _, err := io.Copy(io.Discard, child); err != nil {
		t.Errorf("the child is not gone: %v", err)
	}
}
