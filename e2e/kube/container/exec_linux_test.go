package container

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"
)

func TestExec(t *testing.T) {
	s := newTestSandbox(t, "exec")
	spec := program(t, "terminate")
	spec.Env = append(spec.Env, "COLOUR=green", "PATH=/usr/bin:/bin")
	spec.Dir, spec.Groups = "/dir", []int{3000}
	c := startReady(t, s, spec)
	out, code, err := c.Exec(t.Context(), []string{"sh", "-c",
		`echo $(id -u) $(id -G) $COLOUR $(pwd) $(hostname) $(tr '\0' ' ' < /proc/1/cmdline)
		grep -E '^(CapBnd|NoNew)' /proc/self/status; ls /; echo oh >&2; exit 5`})
	if err != nil || code != 5 {
		t.Errorf("it ended with %d: %v", code, err)
	}
	for _, want := range []string{"65532 65532 3000 green /dir exec-0 /program\n",
		"CapBnd:\t0000000000000000\nNoNewPrivs:\t1\n", "\nprogram\n", "oh\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it did not say %q but\n%s", want, out)
		}
	}
	if _, code, err := c.Exec(t.Context(), []string{"sh", "-c", "kill -9 $$"}); err != nil || code != 137 {
		t.Errorf("by a signal it ended with %d: %v", code, err)
	}
	if _, _, err := c.Exec(t.Context(), []string{"/missing"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program that is missing: %v", err)
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer cancel()
			<-ranIn(t, c)
		}()
		out, _, err := c.Exec(ctx, []string{"sh", "-c", "echo begun; sleep 1000 | sleep 1000"})
		if !errors.Is(err, context.Canceled) || string(out) != "begun\n" {
			t.Errorf("it said %q: %v", out, err)
		}
		if left, code, err := c.Exec(t.Context(), findSleep); err != nil || code != 1 {
			t.Errorf("it left processes %s: %v", left, err)
		}
	})
	t.Run("ended meanwhile", func(t *testing.T) {
		killed := make(chan error, 1)
		go func() {
			<-ranIn(t, c)
			killed <- c.Kill()
		}()
		if _, code, err := c.Exec(t.Context(), []string{"sleep", "1000"}); err != nil || code != 137 {
			t.Errorf("it ended with %d: %v", code, err)
		}
		if err := <-killed; err != nil {
			t.Error(err)
		}
		if _, _, err := c.Exec(t.Context(), []string{"sh"}); !errors.Is(err, errEnded) {
			t.Errorf("after its end: %v", err)
		}
	})
}

// findSleep ends with 0 if something called sleep runs: more than a zombie, which the container's program does not reap.
var findSleep = []string{"sh", "-c", `cat /proc/[0-9]*/stat 2> /dev/null | grep '(sleep) [^Z]'`}

// ranIn is closed when something called sleep runs in a container.
func ranIn(t *testing.T, c *Container) <-chan struct{} {
	t.Helper()
	runs := make(chan struct{})
	go func() {
		defer close(runs)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
			_, code, err := c.Exec(context.Background(), findSleep)
			if err == nil && code == 0 {
				return
			}
		}
	}()
	return runs
}
