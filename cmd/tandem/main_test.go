package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// programs is the folder with the real sim and sidecar.
var programs string

// dialVariable is where a child that hangs connects to, so that a test sees it live and die.
const dialVariable = "DEMO_TEST_DIAL"

// TestMain builds the programs that the demo starts, or plays one of them that never gets ready.
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
	if programs, err = os.MkdirTemp("", "tandem"); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-o", programs, "../sim", "../sidecar")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return nil
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

// tandem runs the tool in this process, where leaks and races show.
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
		stdout, stderr string // a part of it
	}{
		{"nothing", nil, 2, "", "tandem: a command is missing: want one of demo"},
		{"help", []string{"--help"}, 0, "run a whole P/D stack", ""},
		{"help as a word", []string{"help"}, 0, "Usage: tandem COMMAND", ""},
		{"version", []string{"--version"}, 0, boot.ReadVersion().Go, ""},
		{"unknown command", []string{"dmeo"}, 2, "", `tandem: unknown command "dmeo", did you mean demo?`},
		{"help of a command", []string{"demo", "--help"}, 0, "Usage: tandem demo [flags]", ""},
		{"unknown flag", []string{"demo", "--jsn"}, 2, "", "did you mean --json?"},
		{"no programs", []string{"demo"}, 4, "", "make build"},
		{"no programs there", []string{"demo", "--bin-dir", t.TempDir()}, 4, "", "sim: no such file or directory (build them with make build"},
		{"unknown fault", []string{"demo", "--bin-dir", programs, "--fault", "bad-hair"}, 2, "", `fault "bad-hair" is not known`},
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

func TestDemo(t *testing.T) {
	got := tandem(t.Context(), "demo", "--bin-dir", programs)
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("exit %d: %s\n%s", got.code, got.stderr, got.stdout)
	}
	for _, want := range []string{
		"\nok      decisions as planned: 8 of 8\n",
		"\nok      tokens equal to an undisturbed engine's: 8 of 8\n",
		"\nok      blocks stranded: 0 still held; 4 hand-offs released, 0 expired\n",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is missing in\n%s", want, got.stdout)
		}
	}
	if n := strings.Count(got.stdout, "\nok "); n != 6 {
		t.Errorf("%d promises, want 6:\n%s", n, got.stdout)
	}
}

// demoReport is what the tests read of --json.
type demoReport struct {
	OK       bool
	Requests []struct {
		Decision      string
		KVBytes       int64 `json:"kv_bytes"`
		WantedKVBytes int64 `json:"kv_bytes_expected"`
		Error         string
	}
	Promises []struct {
		Promise string
		OK      bool
	}
}

func demoJSON(t *testing.T, args ...string) (result, demoReport) {
	t.Helper()
	got := tandem(t.Context(), append([]string{"demo", "--json", "--bin-dir", programs}, args...)...)
	var r demoReport
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatalf("reading the report: %v; exit %d: %s", err, got.code, got.stderr)
	}
	return got, r
}

func (r *demoReport) broken() (names []string) {
	for _, p := range r.Promises {
		if !p.OK {
			names = append(names, p.Promise)
		}
	}
	return names
}

func TestDemoJSON(t *testing.T) {
	got, r := demoJSON(t)
	if got.code != 0 || !r.OK || len(r.Requests) != 8 || r.broken() != nil {
		t.Fatalf("exit %d: %s\n%s", got.code, got.stderr, got.stdout)
	}
	moved := 0
	for _, q := range r.Requests {
		if q.KVBytes != q.WantedKVBytes || q.Decision == "" {
			t.Errorf("%+v", q)
		}
		if q.KVBytes > 0 {
			moved++
		}
	}
	if moved != 4 {
		t.Errorf("KV moved for %d requests, want 4", moved)
	}
}

// A demo that cannot fail proves nothing: each fault of the prefill engine breaks just the promises that it touches.
func TestDemoFails(t *testing.T) {
	const (
		decisions = "decisions as planned"
		tokens    = "tokens equal to an undisturbed engine's"
		bytes     = "KV bytes moved"
		stranded  = "blocks stranded"
	)
	tests := []struct {
		fault  string
		broken []string
	}{
		{"bad-handoff:foreign", []string{tokens}},
		{"stale", []string{tokens, stranded}},
		{"no-handoff", []string{decisions, bytes}},
		{"status:500", []string{decisions, bytes}},
	}
	for _, test := range tests {
		t.Run(test.fault, func(t *testing.T) {
			got, r := demoJSON(t, "--fault", test.fault)
			if got.code != 1 || r.OK {
				t.Errorf("exit %d", got.code)
			}
			if broken := r.broken(); !slices.Equal(broken, test.broken) {
				t.Errorf("broken: %q, want %q\n%s", broken, test.broken, got.stdout)
			}
			if want := "tandem: not proven: " + strings.Join(test.broken, "; "); strings.TrimSpace(got.stderr) != want {
				t.Errorf("stderr %q", got.stderr)
			}
		})
	}
	t.Run("crash", func(t *testing.T) {
		got := tandem(t.Context(), "demo", "--bin-dir", programs, "--fault", "crash")
		if got.code != 1 || !strings.Contains(got.stderr, "prefill engine ended: exit status 1") || !strings.Contains(got.stderr, "crash fault") {
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
	for _, name := range []string{"sim", "sidecar"} {
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
	if got := <-done; got.code != 1 || !strings.Contains(got.stderr, "interrupted, nothing is proven") {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
	if _, err := io.Copy(io.Discard, child); err != nil {
		t.Errorf("the child is not gone: %v", err)
	}
}
