package main

import (
	"encoding/json"
	"log/slog"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/transfer/keeper"
)

// TestOutlivesSignals: a signal to all processes of a sidecar must not end the keeper, because the sidecar may still have to
// notify engines.
func TestOutlivesSignals(t *testing.T) {
	var log keeperLog
	engine, flags := startEngine(t)
	k := start(t, with(flags...), func(c *keeper.Config) { c.Log = slog.New(slog.NewJSONHandler(&log, nil)) })
	tell(t, k, engine, engine.Metadata(), "before")
	process := log.process(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		if err := process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	tell(t, k, engine, engine.Metadata(), "after")
	if s, _ := k.State(); s.Starts != 1 || s.Err != nil {
		t.Errorf("the process ended: %+v", s)
	}
}

// TestDiesWithItsSidecar: the keeper ends when its sidecar is killed.
func TestDiesWithItsSidecar(t *testing.T) {
	adopt(t)
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	_, flags := startEngine(t)
	sidecar := exec.Command("sidecar", flags...)
	sidecar.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := sidecar.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sidecar.Start(); err != nil {
		t.Fatal(err)
	}
	process := pidIn(t, json.NewDecoder(log))
	if err := sidecar.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = sidecar.Wait() // it was killed
	tooLate := time.AfterFunc(patience, func() { t.Error("it still runs"); _ = process.Kill() })
	defer tooLate.Stop()
	if _, err := process.Wait(); err != nil {
		t.Error(err)
	}
}

// adopt makes this process the parent of orphaned processes, so that it can wait for them.
func adopt(t *testing.T) {
	t.Helper()
	const prSetChildSubreaper = 36
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); e != 0 {
		t.Fatal(e)
	}
}
