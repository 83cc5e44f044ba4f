package main

import (
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/cmd/internal/flagpage"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"sidecar": func() { boot.Main(run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// TestFlagsPage checks the documented table of llm-d's flags.
func TestFlagsPage(t *testing.T) {
	page, err := filepath.Abs("../../docs/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	boottest.KeyPair(t, "certs", 1)
	flagpage.Check(t, page, "llm-d's sidecar", config{}, func(std boot.IO, args []string) error {
		cfg := defaults()
		_, err := program.Load(std, &cfg, args)
		return err
	})
}

// TestPrefillerTLS: llm-d's lists of stages mean the same as our switches.
func TestPrefillerTLS(t *testing.T) {
	for _, c := range []struct {
		name          string
		args          []string
		tls, insecure bool
	}{
		{"by default", nil, false, false},
		{"ours", []string{"--prefill-tls", "--prefill-tls-insecure-skip-verify"}, true, true},
		{"llm-d's", []string{"--enable-tls=prefiller", "--tls-insecure-skip-verify=prefiller"}, true, true},
		{"one of them", []string{"--enable-tls=prefiller"}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := defaults()
			if _, err := program.Load(boot.IO{Name: "sidecar"}, &cfg, c.args); err != nil {
				t.Fatal(err)
			}
			if got := cfg.Secure; got.Prefill != c.tls || got.PrefillInsecure != c.insecure {
				t.Errorf("got %+v", got)
			}
		})
	}
}
