package main

import (
	"io"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// The ports of ranks follow one another, from --port and from --model-server-port on, and the two ranges have none in common.
func TestRankPorts(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags []string
		want  string // "" = accepted
	}{
		{"one rank, any port", []string{"--port=0"}, ""},
		{"eight ranks", []string{"--data-parallel-size=8"}, ""},
		{"next to the engine's", []string{"--data-parallel-size=8", "--port=8192"}, ""},
		{"any port", []string{"--data-parallel-size=2", "--port=0"}, "port: must not be 0 with --data-parallel-size=2: the ports of the ranks follow one another"},
		{"above the last port", []string{"--data-parallel-size=2", "--port=65535"}, "data-parallel-size: the ports of 2 ranks from --port=65535 on end above 65535"},
		{"the engine's begin among ours", []string{"--data-parallel-size=8", "--port=8193"},
			"model-server-port: 8200 is a data port too: requests would come back to the sidecar"},
		{"ours begin among the engine's", []string{"--data-parallel-size=8", "--port=8207"},
			"model-server-port: 8207 is a data port too: requests would come back to the sidecar"},
		{"the same ports of another host", []string{"--data-parallel-size=8", "--port=8200", "--model-server-host=10.0.0.1"}, ""},
		{"no rank", []string{"--data-parallel-size=0"}, "data-parallel-size: 0 is not a number of ranks (1 to 64)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := defaults()
			_, err := program.Load(boot.IO{Name: "sidecar", Stdout: io.Discard, Stderr: io.Discard}, &cfg, c.flags)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
