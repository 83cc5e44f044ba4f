package sim

import (
	"strings"
	"testing"
)

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"defaults", Config{}, ""},
		{"small pool", Config{KV: KVConfig{Blocks: 10}}, "cannot hold"},
		{"pool beyond memory", Config{KV: KVConfig{Blocks: 1 << 30}}, "more than 64 GiB"},
		{"policy", Config{KV: KVConfig{LoadFailure: "retry"}}, `"retry"`},
		{"time scale", Config{TimeScale: -1}, "time scale"},
		{"lease", Config{KV: KVConfig{Lease: -1}}, "lease"},
	} {
		_, err := c.cfg.withDefaults()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s gave %v, want %q", c.name, err, c.want)
		}
	}
}
