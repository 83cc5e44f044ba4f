//go:build !nixl

package main

import (
	"testing"

	"github.com/tandem-serving/tandem/sim/transport"
)

// aboutPattern matches what the probe of a keeper with the name me says.
const aboutPattern = `"transport":"tcp","about":"TCP, as me-[a-z2-7]+"`

// startEngine starts an engine's agent, and returns it with the flags of a keeper that can notify it.
func startEngine(t *testing.T) (*transport.TCP, []string) {
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
	return engine, []string{"--transport=tcp"}
}
