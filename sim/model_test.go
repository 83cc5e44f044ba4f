package sim

import (
	"strings"
	"testing"
	"time"
)

func TestNamedModels(t *testing.T) {
	for _, name := range modelNames() {
		m, err := NamedModel(name)
		if err != nil {
			t.Fatal(err)
		}
		if m.Name != name {
			t.Errorf("model %s calls itself %s", name, m.Name)
		}
	}
	if _, err := NamedModel("../doc"); err == nil || !strings.Contains(err.Error(), "llama-3.1-8b-h100") {
		t.Errorf("an unknown model gave %v, want the names of those there are", err)
	}
}

func TestModelFileIsChecked(t *testing.T) {
	sound := "{name: x, vocabulary: 300, max_model_len: 10, kv_bytes_per_token: 1, stored_bytes_per_token: 32, prefill_tokens_per_second: 1, link_bytes_per_second: 1"
	for add, want := range map[string]string{
		"}":                "",
		", speed: 3}":      "speed",
		", vocabulary: 4}": "already defined",
		", step_ms: -1}":   "negative",
		", eos_every: -1}": "eos_every",
		", step_ms: fast}": "fast",
	} {
		_, err := ParseModel([]byte(sound + add))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s gave %v, want %q", add, err, want)
		}
	}
	if _, err := ParseModel([]byte("{}")); err == nil || strings.Count(err.Error(), "\n") < 5 {
		t.Errorf("an empty file gave %v, want every problem", err)
	}
}

func TestStepTime(t *testing.T) {
	m := Model{PrefillTokensPerSecond: 1000, StepMs: 10, StepMsPerSequence: 1, StepMsPer1kContext: 2}
	for _, c := range []struct {
		name string
		b    batch
		want time.Duration
	}{
		{"one decode", batch{sequences: 1}, 11 * time.Millisecond},
		{"context", batch{sequences: 1, contextTokens: 500}, 12 * time.Millisecond},
		{"a small chunk hides behind the weights", batch{sequences: 2, prefillTokens: 10}, 12 * time.Millisecond},
		{"a large chunk does not", batch{sequences: 2, prefillTokens: 100}, 102 * time.Millisecond},
	} {
		if got := m.stepTime(c.b); got != c.want {
			t.Errorf("%s takes %v, want %v", c.name, got, c.want)
		}
	}
}

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
