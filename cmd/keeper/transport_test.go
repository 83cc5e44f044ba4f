package main

import (
	"bytes"
	"log/slog"
	"os/exec"
	"regexp"
	"testing"

	"github.com/tandem-serving/tandem/transfer/keeper"
)

// The tests of this file run over the transport that the build has: NIXL with the tag nixl, and TCP without.

// TestNotifies: keepers of the same name notify an engine independently of each other, and again after the first time.
func TestNotifies(t *testing.T) {
	engine, flags := startEngine(t)
	flags = append(flags, "--name=me")
	first, second := start(t, with(flags...)), start(t, with(flags...))
	tell(t, first, engine, engine.Metadata(), "HB:one")
	tell(t, second, engine, engine.Metadata(), "HB:two")
	tell(t, first, engine, engine.Metadata(), "one:1")
}

// TestRestartAfterKill: after a restart the process works as before.
func TestRestartAfterKill(t *testing.T) {
	engine, flags := startEngine(t)
	var log keeperLog
	k := start(t, with(flags...), func(c *keeper.Config) { c.Log = slog.New(slog.NewJSONHandler(&log, nil)) })
	tell(t, k, engine, engine.Metadata(), "before")
	if err := log.process(t).Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, k, func(s keeper.State) bool { return s.Up() && s.Starts == 2 })
	tell(t, k, engine, engine.Metadata(), "after")
}

// TestProbe: --probe describes the transport on one line. The program has the sidecar's environment, but does not read the
// sidecar's config file.
func TestProbe(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	t.Setenv("TANDEM_CONFIG", "sidecar.yaml")
	_, flags := startEngine(t)
	wantProbe(t, exec.CommandContext(t.Context(), "keeper", append(flags, "--probe", "--name=me")...))
}

// wantProbe runs a probe and checks that it prints one line about the transport, and no errors.
func wantProbe(t *testing.T, c *exec.Cmd) {
	t.Helper()
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil || !regexp.MustCompile(`^{`+aboutPattern+`}\n$`).Match(out) {
		t.Errorf("got %q, %v", out, err)
	}
	if stderr.Len() > 0 {
		t.Errorf("errors:\n%s", &stderr)
	}
}
