package stack_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/stack"
)

func TestPrograms(t *testing.T) {
	engine := stack.Sim("bin", "prefill", "--model=tiny")
	if engine.Name != "prefill" || engine.Path != filepath.Join("bin", "sim") || engine.Args[len(engine.Args)-1] != "--model=tiny" {
		t.Errorf("engine: %+v", engine)
	}
	sidecar, err := stack.Sidecar("bin", "[::1]:8200", "--lease=2s")
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--model-server-host=::1", "--model-server-port=8200", "--prefill-allow=127.0.0.0/8", "--lease=2s"} {
		if !slices.Contains(sidecar.Args, flag) {
			t.Errorf("sidecar lacks %s: %q", flag, sidecar.Args)
		}
	}
	_, err = stack.Sidecar("bin", "8200")
	contains(t, err, `putting a sidecar beside "8200"`)
}
