package sidecar

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd/dialect"
)

func TestConfigProblems(t *testing.T) {
	problems := func(c Config) (flags []string) {
		c.Problems(func(flag, format string, args ...any) {
			if text := fmt.Errorf(format, args...).Error(); text == "" || strings.Contains(text, "%!") {
				t.Errorf("%s: message %q", flag, text)
			}
			flags = append(flags, flag)
		})
		return flags
	}
	if got := problems(Defaults()); len(got) != 0 {
		t.Errorf("the defaults have problems: %v", got)
	}
	cases := []struct {
		flag   string
		change func(*Config)
	}{
		{"kv-connector", func(c *Config) { c.Engine.Connector = "pigeon" }},
		{"prefill-discovery", func(c *Config) { c.Prefill.Discovery = "http://x" }},
		{"model-server-host", func(c *Config) { c.Engine.Host = "" }},
		{"model-server-port", func(c *Config) { c.Engine.Port = 0 }},
		{"model-server-port", func(c *Config) { c.Engine.Port = 65536 }},
		{"data-parallel-size", func(c *Config) { c.Engine.Ranks = 0 }},
		{"data-parallel-size", func(c *Config) { c.Engine.Ranks = maxRanks + 1 }},
		{"data-parallel-size", func(c *Config) { c.Engine.Port, c.Engine.Ranks = 65535, 2 }},
		{"first-event-timeout", func(c *Config) { c.Engine.FirstEvent = 0 }},
		{"prefill-timeout", func(c *Config) { c.Prefill.Timeout = -time.Second }},
		{"lease", func(c *Config) { c.Fallback.Lease = 0 }},
		{"drain-timeout", func(c *Config) { c.Fallback.Drain = 0 }},
		{"max-idle-conns-per-host", func(c *Config) { c.Engine.IdleConns = -1 }},
		{"prefill-max-retries", func(c *Config) { c.Prefill.MaxRetries = -1 }},
		{"fallback-burst", func(c *Config) { c.Fallback.Burst = -1 }},
		{"prefill-block-size", func(c *Config) { c.Prefill.BlockSize = -1 }},
		{"prefill-retry-backoff", func(c *Config) { c.Prefill.RetryBackoff = -1 }},
		{"fallback-ratio", func(c *Config) { c.Fallback.Ratio = -0.1 }},
		{"fallback-ratio", func(c *Config) { c.Fallback.Ratio = 1.1 }},
		{"fallback-ratio", func(c *Config) { var zero float64; c.Fallback.Ratio = zero / zero }},
		{"body-limit", func(c *Config) { c.Trust.BodyLimit = 0 }},
		{"buffer-limit", func(c *Config) { c.Trust.BufferLimit = 2*c.Trust.BodyLimit - 1 }},
		{"body-timeout", func(c *Config) { c.Trust.BodyPause = 0 }},
		{"pd-header", func(c *Config) { c.Trust.PDHeader = "maybe" }},
		{"continue-discovery", func(c *Config) { c.Continue.Times, c.Continue.Discovery = 1, "10.0.0.1:8000" }},
		{"continue-discovery", func(c *Config) { c.Continue.Discovery = "dns://decode:8000" }},
		{"evacuate-timeout", func(c *Config) { c.Continue.Times, c.Continue.Evacuated = 1, -time.Second }},
		{"evacuate-timeout", func(c *Config) { c.Continue.Evacuated = time.Minute }},
	}
	for _, c := range cases {
		cfg := Defaults()
		c.change(&cfg)
		if got := problems(cfg); !slices.Equal(got, []string{c.flag}) {
			t.Errorf("problems %v, want one with %s", got, c.flag)
		}
	}
	if got := problems(Config{}); len(got) < 8 {
		t.Errorf("an empty configuration has only the problems %v", got)
	}
}

// TestConnectorHelp holds the help of --kv-connector to the table of hand-off protocols.
func TestConnectorHelp(t *testing.T) {
	field, _ := reflect.TypeFor[Engine]().FieldByName("Connector")
	if help := field.Tag.Get("help"); !strings.HasSuffix(help, ": "+dialect.Names()) {
		t.Errorf("--kv-connector says %q, and the table has %s", help, dialect.Names())
	}
}
