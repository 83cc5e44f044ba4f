//go:build !nixl

package main

import (
	"os/exec"
	"regexp"
	"testing"

	"github.com/tandem-serving/tandem/sim/transport"
)

func tcpEngine(t *testing.T) *transport.TCP {
	t.Helper()
	engine, err := transport.NewTCP(transport.TCPConfig{Name: "engine"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return engine
}

func TestNotifies(t *testing.T) {
	engine := tcpEngine(t)
	first, second := start(t, with("--transport=tcp", "--name=me")), start(t, with("--transport=tcp", "--name=me"))
	tell(t, first, engine, engine.Metadata(), "HB:one")
	tell(t, second, engine, engine.Metadata(), "HB:two")
	tell(t, first, engine, engine.Metadata(), "one:1")
}

// TestProbeTCP: --probe describes the transport on one line. The program has the sidecar's environment, but does not read
// the sidecar's config file.
func TestProbeTCP(t *testing.T) {
	t.Setenv("TANDEM_CONFIG", "sidecar.yaml")
	out, err := exec.Command("keeper", "--transport=tcp", "--name=me", "--probe").CombinedOutput()
	if err != nil || !regexp.MustCompile(`^{"transport":"tcp","about":"TCP, as me-[a-z2-7]+"}\n$`).Match(out) {
		t.Errorf("got %q, %v", out, err)
	}
}
