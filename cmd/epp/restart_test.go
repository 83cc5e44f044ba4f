package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// killable is a picker in a process of its own, so that it can be killed.
type killable struct {
	*served
	cmd *exec.Cmd
}

// startReplica starts a picker whose ext-proc port is port, and waits until it is ready.
func startReplica(t *testing.T, port, endpoints string) *killable {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	r := &killable{served: &served{}}
	r.cmd = exec.Command(self, append(localPorts, "--grpc-port="+port, "--endpoints-file="+endpoints)...)
	r.cmd.Args[0] = "epp" // what TestMain knows the program by
	r.cmd.Stderr, r.cmd.Env = &r.stderr, append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	stdout, err := r.cmd.StdoutPipe()
	must(t, err)
	must(t, r.cmd.Start())
	t.Cleanup(func() { _ = r.end(syscall.SIGKILL) }) // how it ends is the test's to look at
	r.stdout = bufio.NewReader(stdout)
	r.awaitReady(t)
	return r
}

// end sends a signal and waits for the end of the process. It may be called again.
func (r *killable) end(signal os.Signal) error {
	if r.cmd.ProcessState != nil {
		return nil
	}
	_ = r.cmd.Process.Signal(signal) // it fails only if the process has just ended
	return r.cmd.Wait()
}

// picks returns the number of requests that the replica has picked for.
func (r *killable) picks(t *testing.T) string {
	t.Helper()
	_, text := r.ask(t, "GET", "metrics", "/metrics", nil)
	return regexp.MustCompile(`(?m)^tandem_pick_seconds_count.* (\d+)$`).FindStringSubmatch(text)[1]
}

// front is an Envoy with two replicas of the picker.
type front struct {
	*envoy.Envoy
	url       string
	endpoints string // file
	replicas  [2]*killable
}

// startFront starts two replicas, an Envoy, and an engine that answers with the length of the body.
func startFront(t *testing.T) *front {
	t.Helper()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err == nil {
			fmt.Fprint(w, n)
		}
	}))
	t.Cleanup(engine.Close)
	host, port, err := net.SplitHostPort(engine.Listener.Addr().String())
	must(t, err)
	f := &front{endpoints: filepath.Join(t.TempDir(), "endpoints.yaml")}
	write(t, f.endpoints, fmt.Sprintf("endpoints: [{name: d, address: %s, port: %s}]\n", host, port))
	options := envoyconf.Defaults()
	options.Listen, options.Admin = "127.0.0.1:0", "127.0.0.1:0"
	for i := range f.replicas {
		f.replicas[i] = startReplica(t, "0", f.endpoints)
		options.Pickers = append(options.Pickers, f.replicas[i].addresses["extproc"])
	}
	var boot bytes.Buffer
	must(t, envoyconf.Bootstrap(&boot, options))
	f.Envoy, err = envoy.Start(t.Context(), boot.Bytes())
	must(t, err)
	t.Cleanup(func() { must(t, f.Stop()) })
	address, err := f.Listener(t.Context(), envoyconf.ListenerName)
	must(t, err)
	f.url = "http://" + address + "/v1/completions"
	return f
}

// awaitBoth waits until Envoy considers both replicas healthy. Envoy has no event for that.
func (f *front) awaitBoth(t *testing.T) {
	t.Helper()
	const gauge = "cluster." + envoyconf.PickerCluster + ".membership_healthy"
	eventually(t, func() bool {
		stats, err := f.Stats(t.Context(), gauge)
		must(t, err)
		return stats[gauge] == int64(len(f.replicas))
	})
}

// replace ends a replica under load and starts another one at the same address. interrupted are the failed requests that a killed
// picker may fail: with a small body, and told to try again.
func (f *front) replace(t *testing.T, i int, signal os.Signal) (failed, interrupted []string) {
	t.Helper()
	f.awaitBoth(t)
	_, port, err := net.SplitHostPort(f.replicas[i].addresses["extproc"])
	must(t, err)
	l := f.press()
	l.await(t, 50)
	l.goOn(func() { err = f.replicas[i].end(signal) })
	if err != nil && signal != syscall.SIGKILL {
		t.Errorf("the replica ended with %v: %s", err, &f.replicas[i].stderr)
	}
	l.await(t, 50)
	l.goOn(func() { f.replicas[i] = startReplica(t, port, f.endpoints) })
	l.await(t, 50)
	return l.end()
}

// load is clients that send one request after the other.
type load struct {
	clients             sync.WaitGroup
	stop                chan struct{}
	served              chan struct{}
	mu                  sync.Mutex
	failed, interrupted []string
}

const (
	clients = 8
	kills   = 3 // of each replica
)

func (f *front) press() *load {
	l := &load{stop: make(chan struct{}), served: make(chan struct{})}
	for i := range clients {
		l.clients.Go(func() {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			l.run(&http.Client{Transport: transport}, f.url, i)
		})
	}
	return l
}

// run sends requests of all sizes until the load stops.
func (l *load) run(client *http.Client, url string, n int) {
	sizes := []int{100, 20_000, 200_000, 1 << 20}
	for ; ; n++ {
		size := sizes[n%len(sizes)]
		if problem, retry := sendPrompt(client, url, size); problem != "" {
			l.mu.Lock()
			problem = fmt.Sprintf("%d bytes: %s", size, problem)
			if retry && size <= 20_000 {
				l.interrupted = append(l.interrupted, problem)
			} else {
				l.failed = append(l.failed, problem)
			}
			l.mu.Unlock()
		}
		select {
		case <-l.stop:
			return
		case l.served <- struct{}{}:
		}
	}
}

// sendPrompt sends a request with a prompt of some size. problem is "" if it was served; retry reports a 503 with Retry-After.
func sendPrompt(client *http.Client, url string, size int) (problem string, retry bool) {
	body := `{"model":"m","prompt":"` + strings.Repeat("x", size) + `"}`
	answer, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error(), false
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode == http.StatusOK && string(text) == fmt.Sprint(len(body)) {
		return "", false
	}
	after := answer.Header.Get("Retry-After")
	return fmt.Sprintf("status %d, Retry-After %q, %s, %v", answer.StatusCode, after, text, err),
		answer.StatusCode == http.StatusServiceUnavailable && after == "1"
}

// goOn lets the clients continue while do runs.
func (l *load) goOn(do func()) {
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	for {
		select {
		case <-l.served:
		case <-done:
			return
		}
	}
}

// await waits for a number of answers. Clients continue only while a caller waits.
func (l *load) await(t *testing.T, answers int) {
	t.Helper()
	for range answers {
		select {
		case <-l.served:
		case <-t.Context().Done():
			t.Fatal("no answer")
		}
	}
}

func (l *load) end() (failed, interrupted []string) {
	close(l.stop)
	l.clients.Wait()
	return l.failed, l.interrupted
}

// TestRestartBehindEnvoy ends one of two replicas under load. SIGTERM fails no request. Nor does SIGKILL, except for a small request
// that the replica was answering at that moment (see package extproc): at most one in all kills. Envoy's ext-proc filter sends
// small requests to the other replica, Envoy's first listener sends large ones.
func TestRestartBehindEnvoy(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	envoy.Require(t)
	f := startFront(t)
	l := f.press()
	l.await(t, 50)
	if failed, interrupted := l.end(); len(failed)+len(interrupted) > 0 {
		t.Errorf("with both replicas: %q %q", failed, interrupted)
	}
	for i, r := range f.replicas {
		if r.picks(t) == "0" {
			t.Errorf("replica %d has picked for no request", i)
		}
	}
	for i := range f.replicas {
		if failed, interrupted := f.replace(t, i, syscall.SIGTERM); len(failed)+len(interrupted) > 0 {
			t.Errorf("SIGTERM to replica %d: %q %q", i, failed, interrupted)
		}
	}
	var all []string
	for i := range f.replicas {
		for range kills {
			failed, interrupted := f.replace(t, i, syscall.SIGKILL)
			if len(failed) > 0 {
				t.Errorf("SIGKILL to replica %d: %q", i, failed)
			}
			all = append(all, interrupted...)
		}
	}
	if len(all) > 1 {
		t.Errorf("%d kills interrupted %d answers, want at most 1: %q", kills*len(f.replicas), len(all), all)
	}
}
