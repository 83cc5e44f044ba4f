package main

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// missing runs the program without NIXL, and returns its stderr.
func missing(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr strings.Builder
	std := boot.IO{Name: "sim", Stdout: &stdout, Stderr: &stderr}
	args = append([]string{"--port=0", "--admin-port=0", "--transport=nixl", "--log-level=error"}, args...)
	if code := boot.Run(t.Context(), std, args, run); code != boot.CodeMissing || stdout.Len() > 0 {
		t.Errorf("exit code %d, stdout %q", code, stdout.String())
	}
	if !strings.Contains(stderr.String(), "make nixl") {
		t.Errorf("stderr %q", stderr.String())
	}
	return stderr.String()
}

func TestTransportFlags(t *testing.T) {
	f := defaults()
	if f.config().Transfer.Open != nil {
		t.Error("the engine's default is not used for TCP")
	}
	f.Transfer.Transport = overNIXL
	if f.config().Transfer.Open == nil {
		t.Error("the engine's default is used without NIXL")
	}
}
