package model

import (
	"strings"
	"testing"
	"time"
)

func TestNamed(t *testing.T) {
	for _, name := range names() {
		m, err := Named(name)
		if err != nil {
			t.Fatal(err)
		}
		if m.Name != name {
			t.Errorf("model %s calls itself %s", name, m.Name)
		}
	}
	if _, err := Named("../doc"); err == nil || !strings.Contains(err.Error(), "llama-3.1-8b-h100") {
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
		_, err := Parse([]byte(sound + add))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s gave %v, want %q", add, err, want)
		}
	}
	if _, err := Parse([]byte("{}")); err == nil || strings.Count(err.Error(), "\n") < 5 {
		t.Errorf("an empty file gave %v, want every problem", err)
	}
}

func TestStepTime(t *testing.T) {
	m := Model{PrefillTokensPerSecond: 1000, StepMs: 10, StepMsPerSequence: 1, StepMsPer1kContext: 2}
	for _, c := range []struct {
		name string
		step Step
		want time.Duration
	}{
		{"one decode", Step{Sequences: 1}, 11 * time.Millisecond},
		{"context", Step{Sequences: 1, ContextTokens: 500}, 12 * time.Millisecond},
		{"a small chunk hides behind the weights", Step{Sequences: 2, PrefillTokens: 10}, 12 * time.Millisecond},
		{"a large chunk does not", Step{Sequences: 2, PrefillTokens: 100}, 102 * time.Millisecond},
	} {
		if got := m.StepTime(c.step); got != c.want {
			t.Errorf("%s takes %v, want %v", c.name, got, c.want)
		}
	}
}
