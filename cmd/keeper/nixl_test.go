//go:build nixl && cgo && linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/keeper"
	"github.com/tandem-serving/tandem/transfer/nixl"
)

// realLibrary returns the folder of the real library: the one that the environment names, or the one that make fetched.
func realLibrary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(nixl.EnvLibrary); path != "" {
		return path
	}
	fetched, err := filepath.Glob("../../.tools/nixl/.nixl_*.libs")
	if err != nil {
		t.Fatal(err)
	}
	if len(fetched) > 0 {
		return fetched[0]
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("the NIXL library is missing: make .tools/nixl")
	}
	t.Skip("the NIXL library is missing: make .tools/nixl fetches it, or " + nixl.EnvLibrary + " names another")
	return ""
}

func nixlEngine(t *testing.T, library string) *nixl.Agent {
	t.Helper()
	engine, err := nixl.New(nixl.Config{Name: "engine", Library: library})
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

func TestNotifiesOverNIXL(t *testing.T) {
	library := realLibrary(t)
	engine := nixlEngine(t, library)
	k := start(t, with("--name=me", "--library="+library))
	began := time.Now()
	tell(t, k, engine, engine.Metadata(), "HB:one")
	t.Logf("up, and the engine notified, after %v", time.Since(began))
	began = time.Now()
	tell(t, k, engine, engine.Metadata(), "one:1")
	t.Logf("loaded again, and the engine notified, after %v", time.Since(began))
}

// TestGarbage: whatever metadata one side channel sends, other engines can be notified, possibly after a restart of the
// process.
func TestGarbage(t *testing.T) {
	library := realLibrary(t)
	claimed, engine := nixlEngine(t, library), nixlEngine(t, library)
	k := start(t, with("--library="+library))
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

func TestProbe(t *testing.T) {
	library := realLibrary(t)
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	for name, probe := range map[string]func() *exec.Cmd{
		"by flag": func() *exec.Cmd { return exec.CommandContext(t.Context(), "keeper", "--probe", "--library="+library) },
		"by environment": func() *exec.Cmd {
			c := exec.CommandContext(t.Context(), "keeper", "--probe")
			c.Env = append(os.Environ(), nixl.EnvLibrary+"="+library)
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := probe()
			var stderr bytes.Buffer
			c.Stderr = &stderr
			out, err := c.Output()
			text := string(out)
			if err != nil || !strings.HasPrefix(text, `{"transport":"nixl","about":"/`) || !strings.Contains(text, "libnixl_capi.so, as tandem-keeper-") {
				t.Errorf("%q, %v\n%s", text, err, &stderr)
			}
			if stderr.Len() > 0 {
				t.Errorf("the library prints something:\n%s", &stderr)
			}
		})
	}
}

// TestRestartAfterKill: after a restart the process works as before.
func TestRestartAfterKill(t *testing.T) {
	library := realLibrary(t)
	engine := nixlEngine(t, library)
	var log keeperLog
	k := start(t, with("--library="+library), func(c *keeper.Config) { c.Log = slog.New(slog.NewJSONHandler(&log, nil)) })
	tell(t, k, engine, engine.Metadata(), "first life")
	if err := log.process(t).Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, k, func(s keeper.State) bool { return s.Up() && s.Starts == 2 })
	tell(t, k, engine, engine.Metadata(), "second life")
}
