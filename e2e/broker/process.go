package broker

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/realengine"
)

// patience bounds the start of a broker.
const patience = 2 * time.Minute

// tool returns what make .tools/NAME leaves. Where it is missing the test is skipped, or fails with CI=true.
func tool(t testing.TB, name string) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(file), "..", "..", ".tools", name)
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v (make .tools/%s)", err, name)
		}
		t.Skipf("%v (make .tools/%s)", err, name)
	}
	return path
}

// installed returns a program of Debian's. Where it is missing the test is skipped, or fails with CI=true.
func installed(t testing.TB, program, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v (Debian: apt-get install %s)", err, pkg)
		}
		t.Skipf("%v (Debian: apt-get install %s)", err, pkg)
	}
	return path
}

// freePort returns a port of the loopback address that nothing listens on, below those that the system gives to connections: a broker
// that is restarted needs it again, and may not find it taken by a client that tries to reach it meanwhile.
func freePort(t testing.TB) int {
	t.Helper()
	ports, err := realengine.FreePorts(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	return ports[0]
}

// process is a broker that runs.
type process struct {
	log     string
	command *exec.Cmd
	ended   chan struct{}
}

// launch starts a program, whose output is appended to a file of its data directory, and waits until it answers.
func launch(t testing.TB, dir string, answers func() error, program string, args ...string) *process {
	t.Helper()
	p := &process{log: filepath.Join(dir, "log"), command: exec.Command(program, args...), ended: make(chan struct{})}
	// Of its own group, so that Ctrl-C in a terminal does not end it under the test.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.command.Dir = dir
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.command.Stdout, p.command.Stderr = log, log
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.command.Wait() // it is killed
	}()
	late := time.After(patience)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		if err = answers(); err == nil {
			return p
		}
		select {
		case <-poll.C:
		case <-p.ended:
			text, _ := os.ReadFile(p.log) // its end is the reason
			t.Fatalf("%s has ended: %v\n%s", program, p.command.ProcessState, text)
		case <-late:
			p.kill()
			text, _ := os.ReadFile(p.log)
			t.Fatalf("%s does not answer: %v\n%s", program, err, text)
		}
	}
}

// kill kills it, and waits for its end.
func (p *process) kill() {
	if p != nil {
		_ = p.command.Process.Signal(syscall.SIGKILL) // it may have ended
		<-p.ended
	}
}
