package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// FuzzConfig: no file makes the sidecar's --check panic or hang, and the printed configuration of an accepted file means the
// same.
func FuzzConfig(f *testing.F) {
	for _, text := range []string{
		"", "{}", "port: 8000\nprefill-allow: [10.0.0.0/8:8000, \"[fd00::/8]:8000\"]\n", `{"lease": "30s", "body-limit": "64MiB"}`,
		"fallback-ratio: 1e-1\nfallback-burst: 0x14\nhost: \"::\"\n", "port: &p 1\nmetrics-port: *p\n", "secure-proxy: yes\nport: 08000\n",
		"prefill-discovery: dns://a:1\nkv-connector: nixlv2\n---\nport: 1\n", "log-level: debug\nprefill-timeout: 1h1m1s\nadmin-address: '[::1]:0'",
		"enable-tls: [prefiller]\nprefill-allow: [\"10.0.0.0/8\",", "host: |\n  a\n  b\n",
	} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "sidecar.yaml") // one file for all: a folder for each would take longer than reading it
	f.Fuzz(func(t *testing.T, data []byte) {
		printed, ok := effective(t, file, data)
		if !ok {
			return
		}
		again, ok := effective(t, file, printed)
		if !ok {
			t.Fatalf("%q is accepted, but its printed configuration is not:\n%s", data, printed)
		}
		if got, want := plain(t, again), plain(t, printed); got != want {
			t.Fatalf("%q is\n%s\nand that, read again, is\n%s", data, want, got)
		}
	})
}

// effective returns what --check prints for a file with a text, if it accepts it.
func effective(t *testing.T, file string, text []byte) (printed []byte, ok bool) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cfg := defaults()
	_, err := program.Load(boot.IO{Name: "sidecar", Stdout: &out, Stderr: &out}, &cfg, []string{"--check", "--config=" + file})
	var exit boot.Exit
	if !errors.As(err, &exit) || exit.Code != boot.CodeOK && (exit.Code != boot.CodeConfig || strings.TrimSpace(exit.Error()) == "") {
		t.Fatalf("%q ended the program with %v", text, err)
	}
	return out.Bytes(), exit.Code == boot.CodeOK
}

// plain returns a configuration without the comments that name each value's origin.
func plain(t *testing.T, printed []byte) string {
	t.Helper()
	var settings map[string]any
	if err := yaml.Unmarshal(printed, &settings); err != nil {
		t.Fatalf("%v in\n%s", err, printed)
	}
	b, err := yaml.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
