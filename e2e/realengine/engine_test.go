package realengine

import (
	"context"
	"net"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tree returns an engine whose processes are shells, which need no minute to start.
func tree(t *testing.T) *Engine {
	t.Helper()
	family := stack.Program{Name: "family", Path: "sh", Args: []string{"-c", "(sleep 1000 & wait) & wait"}}
	e := &Engine{command: Command{Name: family.Name}}
	family.Probe = func(context.Context) error { return nil }
	p, err := stack.Start(t.Context(), family)
	if err != nil {
		t.Fatal(err)
	}
	e.process = p
	t.Cleanup(func() {
		if err := e.Kill(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestPauseReachesAllProcesses(t *testing.T) {
	e := tree(t)
	if err := e.Pause(); err != nil {
		t.Fatal(err)
	}
	if group := e.current().PID(); !all(group, stopped) || all(group, ended) {
		t.Error("something of a paused engine runs, or nothing is left of it")
	}
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := e.await("go on", "S"); err != nil {
		t.Error(err)
	}
}

func TestKillEndsAllProcesses(t *testing.T) {
	for name, end := range map[string]func(*Engine) error{"kill": (*Engine).Kill, "stop": (*Engine).Stop} {
		for _, paused := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " a paused one"}[paused], func(t *testing.T) {
				e := tree(t)
				if paused {
					if err := e.Pause(); err != nil {
						t.Fatal(err)
					}
				}
				if e.Exited() {
					t.Error("it ended by itself")
				}
				if err := end(e); err != nil {
					t.Fatal(err)
				}
				if !e.Exited() || !all(e.current().PID(), ended) {
					t.Error("something is left of it")
				}
			})
		}
	}
}

// A port is given once, also to another process.
func TestPortsAreGivenOnce(t *testing.T) {
	ports, err := FreePorts(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if Reserve(ports[0]) == nil {
		t.Errorf("port %d is given again", ports[0])
	}
	name := "@tandem-port-" + strconv.Itoa(ports[0])
	if l, err := net.Dial("unix", name); err != nil {
		t.Errorf("another process does not find %s: %v", name, err)
	} else {
		l.Close()
	}
}
