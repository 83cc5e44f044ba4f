package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "leaked goroutines:", err)
		return 1
	}
	return code
}

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"sidecar": func() { boot.Main(run) }})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		// The race detector makes every program wait a second before it ends.
		Setup: func(e *testscript.Env) error { e.Setenv("GORACE", "atexit_sleep_ms=0"); return nil },
		Cmds:  map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits runs a command and checks its exit code: exits CODE COMMAND ARGS…
func exits(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// TestForeignFlags holds the answer to every flag of llm-d's sidecar that means the same here, or does not.
func TestForeignFlags(t *testing.T) {
	same := []string{"--vllm-port=8201", "--model-server-port=8201", "--connector=nixlv2", "--kv-connector=nixlv2", "--secure-proxy=true",
		"--secure-serving=false", "--enable-prefiller-sampling", "--prefill-max-retries=2", "--prefill-retry-backoff=100ms",
		"--max-idle-conns-per-host=64", "--metrics-port=9000", "--port=8001", "--zap-log-level=1"}
	refused := []string{"--data-parallel-size=2", "--ec-connector=ec-nixl", "--mooncake-bootstrap-port=8998", "--p2p-connector-port=7777",
		"--enable-p2p-pull", "--decode-chunk-size=5", "--enable-ssrf-protection", "--inference-pool=ns/pool", "--pool-group=g", "--tracing",
		"--enable-tls=prefiller", "--prefiller-use-tls", "--decoder-use-tls", "--tls-insecure-skip-verify=prefiller", "--configuration={}",
		"--configuration-file=f"}
	for _, f := range same {
		cfg := defaults()
		if _, err := program.Load(boot.IO{Name: "sidecar"}, &cfg, []string{f}); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
	for _, f := range refused {
		cfg := defaults()
		_, err := program.Load(boot.IO{Name: "sidecar"}, &cfg, []string{f})
		if exit, ok := errors.AsType[boot.Exit](err); !ok || exit.Code != boot.CodeUsage {
			t.Errorf("%s: %v, want a refusal with exit code %d", f, err, boot.CodeUsage)
		}
	}
}
