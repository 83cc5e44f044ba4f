package docs_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/otlp"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// What the comment above a block of docs/howto says about it. A shell block without one is run to its end.
const (
	markNotRun    = "not run: "              // and why; its commands are checked like those of all pages
	markServer    = "until stopped, at "     // runs in the background; the next block waits for this address
	markWriter    = "until stopped, writes " // runs in the background; the next block waits for a line in this file
	markFile      = "file: "                 // the block is written to a file of this name
	markPrints    = "prints"                 // lines that the block above must have printed, in this order
	markCollector = "in tests, otlp at "     // a collector of the test listens there instead
)

// waitLimit bounds the wait for a server to listen or to end, and for spans to arrive.
const waitLimit = 60 * time.Second

// tracePrefix is what docs/howto/tracing.md sends before the id of its trace.
const tracePrefix = "traceparent: 00-"

// traced are the services that the page says to have spans in it.
var traced = []string{"tandem-gateway", "tandem-epp", "tandem-sidecar"}

// TestHowTos does what each page of docs/howto says, in a folder of its own: it writes the files, starts the servers, runs the
// commands, and compares what they print. Ports of the page are replaced by free ones.
func TestHowTos(t *testing.T) {
	for _, p := range pages(t) {
		if strings.HasPrefix(p.name, "docs/howto/") {
			t.Run(strings.TrimSuffix(filepath.Base(p.name), ".md"), func(t *testing.T) { newReader(t).follow(p) })
		}
	}
}

// isRun reports whether TestHowTos runs a block, or writes it to a file: no other test needs to look at it.
func (p page) isRun(c code) bool {
	return strings.HasPrefix(p.name, "docs/howto/") && !strings.HasPrefix(c.comment, markNotRun)
}

// reader follows one page.
type reader struct {
	t     *testing.T
	dir   string
	ports map[string]string // of the page, and those that stand for them here
	shown string            // what the last block printed, with the ports of the page
}

// newReader makes the folder that a reader has after make build, with Envoy in PATH.
func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{t: t, dir: t.TempDir(), ports: map[string]string{}}
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"bin": filepath.Dir(program(t, "tandem")), "charts": filepath.Join(checkout, "charts"),
		"sim": filepath.Join(checkout, "sim"), ".tools": filepath.Join(checkout, ".tools")} {
		if err := os.Symlink(target, filepath.Join(r.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *reader) follow(p page) {
	for _, c := range p.codes {
		if r.t.Failed() {
			return // the blocks that follow need those before
		}
		name := fmt.Sprintf("%s, line %d", p.name, c.line)
		address, isServer := strings.CutPrefix(c.comment, markServer)
		written, isWriter := strings.CutPrefix(c.comment, markWriter)
		file, isFile := strings.CutPrefix(c.comment, markFile)
		collector, isCollector := strings.CutPrefix(c.comment, markCollector)
		switch {
		case isCollector:
			received := otlp.Start(r.t, r.here(collector))
			defer r.mustTrace(received, p)
		case isFile:
			if err := os.WriteFile(filepath.Join(r.dir, file), []byte(r.here(c.text)), 0o600); err != nil {
				r.t.Fatal(err)
			}
		case c.comment == markPrints:
			r.compare(name, c.text)
		case c.language != "sh" || strings.HasPrefix(c.comment, markNotRun):
		case isServer:
			r.serve(name, c.text, func() bool { return listens(r.here(address)) })
		case isWriter:
			r.serve(name, c.text, func() bool { return hasLine(filepath.Join(r.dir, written)) })
		default:
			r.run(name, c.text)
		}
	}
}

func listens(address string) bool {
	c, err := net.Dial("tcp", address)
	if err == nil {
		c.Close()
	}
	return err == nil
}

func hasLine(file string) bool {
	text, err := os.ReadFile(file)
	return err == nil && bytes.Contains(text, []byte("\n"))
}

// portOf finds a port of this machine in commands, files and output. Ports below 1024 are those of Services.
var portOf = regexp.MustCompile(`(127\.0\.0\.1:|localhost:|port_value: |port: "|-port[ =])(\d{4,5})\b`)

// here returns a text with free ports in place of the page's.
func (r *reader) here(text string) string {
	return portOf.ReplaceAllStringFunc(text, func(found string) string {
		parts := portOf.FindStringSubmatch(found)
		if r.ports[parts[2]] == "" {
			r.ports[parts[2]] = r.freePort()
		}
		return parts[1] + r.ports[parts[2]]
	})
}

// there returns a text with the page's ports.
func (r *reader) there(text string) string {
	return portOf.ReplaceAllStringFunc(text, func(found string) string {
		parts := portOf.FindStringSubmatch(found)
		for page, port := range r.ports {
			if port == parts[2] {
				return parts[1] + page
			}
		}
		return found
	})
}

// freePort returns a port that no process listens on, below those that the system gives to programs that ask for any: none
// of the programs of a page takes it before the one that it is for.
func (r *reader) freePort() string {
	const low, high = 12_000, 32_000
	first := rand.IntN(high - low)
	for i := range high - low {
		port := strconv.Itoa(low + (first+i)%(high-low))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		l.Close()
		if !slices.Contains(slices.Collect(maps.Values(r.ports)), port) {
			return port
		}
	}
	r.t.Fatalf("no port is free between %d and %d", low, high)
	return ""
}

// shell returns a shell in the reader's folder. Ports that the page leaves at their defaults are free ones, on loopback.
func (r *reader) shell(script string) *exec.Cmd {
	if strings.Contains(script, ".tools/envoy") {
		envoy.Require(r.t)
	}
	if strings.Contains(script, "helm ") {
		if _, err := os.Stat(filepath.Join(r.dir, ".tools", "helm")); err != nil && os.Getenv("CI") != "true" {
			r.t.Skip("Helm is missing: make .tools/helm fetches it")
		}
	}
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", r.here(script))
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(r.dir, ".tools")+":"+os.Getenv("PATH"),
		"TANDEM_HOST=127.0.0.1", "TANDEM_METRICS_PORT=0", "TANDEM_GRPC_HEALTH_PORT=0", "TANDEM_ADMIN_ADDRESS=127.0.0.1:0")
	return cmd
}

func (r *reader) run(name, script string) {
	cmd := r.shell(script)
	out, err := cmd.CombinedOutput()
	r.shown = r.there(strings.ReplaceAll(string(out), "\r", ""))
	if err != nil {
		r.t.Errorf("%s: %v\n%s", name, err, r.shown)
	}
}

// serve starts servers that end with the test, and waits until they are ready.
func (r *reader) serve(name, script string, ready func() bool) {
	var out bytes.Buffer
	cmd := r.shell(script)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = waitLimit
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	r.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // the group is gone if all have ended
		select {
		case <-ended:
		case <-time.After(waitLimit):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		}
		if r.t.Failed() {
			r.t.Logf("%s printed\n%s", name, out.String())
		}
	})
	look, late := time.NewTicker(20*time.Millisecond), time.After(waitLimit)
	defer look.Stop()
	for !ready() {
		select {
		case <-ended:
			r.t.Fatalf("%s ended before it was ready", name)
		case <-late:
			r.t.Fatalf("%s is not ready after %v", name, waitLimit)
		case <-look.C:
		}
	}
}

// varies matches what differs from run to run: durations, request ids, times.
var varies = regexp.MustCompile(`dur=[0-9.]+|[0-9a-f]{8}-[0-9a-f-]{27}|"created":\d+|\b[0-9.]+(ms|s)\b`)

// compare finds the lines of a page in what the last block printed, in their order. Lines between them may be left out.
func (r *reader) compare(name, page string) {
	printed := strings.Split(varies.ReplaceAllString(r.shown, "*"), "\n")
	for line := range strings.Lines(page) {
		want := strings.TrimSpace(varies.ReplaceAllString(line, "*"))
		i := slices.IndexFunc(printed, func(got string) bool { return strings.TrimSpace(got) == want })
		if i < 0 {
			r.t.Fatalf("%s: the line %q is not in what was printed, or not in this order:\n%s", name, want, r.shown)
		}
		printed = printed[i+1:]
	}
}

// mustTrace waits until every component on the request path has reported the trace of the page.
func (r *reader) mustTrace(received *otlp.Receiver, p page) {
	_, id, found := strings.Cut(p.text, tracePrefix)
	if !found || r.t.Failed() {
		return
	}
	id, _, _ = strings.Cut(id, "-")
	missing := slices.Clone(traced)
	look, late := time.NewTicker(20*time.Millisecond), time.After(waitLimit)
	defer look.Stop()
	for len(missing) > 0 {
		for _, span := range received.Of(id) {
			missing = slices.DeleteFunc(missing, func(service string) bool { return service == span.Service })
		}
		select {
		case <-late:
			r.t.Fatalf("trace %s has no spans of %v", id, missing)
		case <-look.C:
		}
	}
}
