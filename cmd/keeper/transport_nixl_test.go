//go:build nixl && cgo && linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/keeper"
	"github.com/tandem-serving/tandem/transfer/nixl"
	"github.com/tandem-serving/tandem/transfer/transfertest"
)

// aboutPattern matches what the probe of a keeper with the name me says.
const aboutPattern = `"transport":"nixl","about":"/.*libnixl_capi\.so, as me-.+"`

// startEngine starts an engine's agent, and returns it with the flags of a keeper that can notify it.
func startEngine(t *testing.T) (*nixl.Agent, []string) {
	t.Helper()
	library := transfertest.NIXLLibrary(t)
	engine, err := nixl.New(nixl.Config{Name: "engine", Library: library})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return engine, []string{"--library=" + library}
}

// TestProbeReadsEnvironment: the environment can name the library.
func TestProbeReadsEnvironment(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	c := exec.CommandContext(t.Context(), "keeper", "--probe", "--name=me")
	c.Env = append(os.Environ(), nixl.EnvLibrary+"="+transfertest.NIXLLibrary(t))
	wantProbe(t, c)
}

// TestGarbage: whatever metadata one side channel sends, other engines can be notified, possibly after a restart of the
// process.
func TestGarbage(t *testing.T) {
	claimed, _ := startEngine(t)
	engine, flags := startEngine(t)
	k := start(t, with(flags...))
	for name, blob := range spoilt(claimed.Metadata()) {
		await(t, k, keeper.State.Up)
		peer, err := k.Load(within(t), blob)
		if err == nil {
			err = k.Notify(within(t), peer, []byte("hello"))
		}
		if errors.Is(err, transfer.ErrGone) || errors.Is(err, context.DeadlineExceeded) {
			t.Logf("%s: %v", name, err)
		}
	}
	tell(t, k, engine, engine.Metadata(), "still there")
}

// spoilt returns corrupted metadata.
func spoilt(honest []byte) map[string][]byte {
	blobs := map[string][]byte{
		"nothing":    nil,
		"no blob":    []byte("GET / HTTP/1.1\r\n\r\n"),
		"zeros":      make([]byte, len(honest)),
		"cut":        honest[:len(honest)/2],
		"cut at end": honest[:len(honest)-1],
		"twice":      append(bytes.Clone(honest), honest...),
	}
	for i := 0; i < len(honest); i += 8 {
		blob := bytes.Clone(honest)
		for j := i; j < min(i+8, len(blob)); j++ {
			blob[j] ^= 0xff
		}
		blobs[fmt.Sprintf("changed at %d", i)] = blob
	}
	return blobs
}
