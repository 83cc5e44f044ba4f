package sim

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

//go:embed models/*.yaml
var modelFiles embed.FS

// Model is what the simulator knows of a model on its hardware: sizes and speeds. The files in models/ say where their
// numbers come from.
type Model struct {
	// Name seeds the KV: engines whose models differ in name produce different KV and different tokens.
	Name string `yaml:"name"`
	// Vocabulary is the number of token ids; at least 264 (8 special tokens and one for each byte).
	Vocabulary int `yaml:"vocabulary"`
	// MaxModelLen is the longest prompt plus answer, in tokens.
	MaxModelLen int `yaml:"max_model_len"`
	// KVBytesPerToken is the true size, which the link is charged for.
	KVBytesPerToken int `yaml:"kv_bytes_per_token"`
	// StoredBytesPerToken is what the simulator really holds and moves: at least 32 bytes, the link of the KV chain.
	StoredBytesPerToken int `yaml:"stored_bytes_per_token"`

	PrefillTokensPerSecond float64 `yaml:"prefill_tokens_per_second"`
	StepMs                 float64 `yaml:"step_ms"`                // one step with nothing but weights to read
	StepMsPerSequence      float64 `yaml:"step_ms_per_sequence"`   // added for each sequence in the step
	StepMsPer1kContext     float64 `yaml:"step_ms_per_1k_context"` // added for each 1000 tokens of KV read in the step

	LinkBytesPerSecond float64 `yaml:"link_bytes_per_second"` // of one transfer between two engines
	LinkLatencyMs      float64 `yaml:"link_latency_ms"`       // of one transfer
	HandshakeMs        float64 `yaml:"handshake_ms"`          // the first contact of two engines

	// EOSEvery ends an answer at a token with probability 1/EOSEvery; 0 never.
	EOSEvery int `yaml:"eos_every"`
}

// NamedModel returns a model that is built in; the error lists their names.
func NamedModel(name string) (Model, error) {
	data, err := modelFiles.ReadFile("models/" + path.Base(name) + ".yaml")
	if errors.Is(err, fs.ErrNotExist) {
		return Model{}, fmt.Errorf("finding model %q: the models are %s", name, strings.Join(modelNames(), ", "))
	}
	if err != nil {
		return Model{}, fmt.Errorf("reading model %q: %w", name, err)
	}
	return ParseModel(data)
}

func modelNames() []string {
	files, err := fs.Glob(modelFiles, "models/*.yaml")
	if err != nil {
		return nil
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = strings.TrimSuffix(path.Base(f), ".yaml")
	}
	return names
}

// ParseModel reads a model file (YAML or JSON, keys as in Model's tags) strictly: unknown keys are errors.
func ParseModel(data []byte) (Model, error) {
	var m Model
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&m); err != nil {
		return Model{}, fmt.Errorf("reading model file: %w", err)
	}
	if err := m.validate(); err != nil {
		return Model{}, fmt.Errorf("checking model file: %w", err)
	}
	return m, nil
}

func (m *Model) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(m.Name != "", "name is missing")
	check(m.Vocabulary >= firstPiece, "vocabulary is %d: want at least %d", m.Vocabulary, firstPiece)
	check(m.MaxModelLen > 1, "max_model_len is %d: want at least 2", m.MaxModelLen)
	check(m.StoredBytesPerToken >= linkSize, "stored_bytes_per_token is %d: want at least %d", m.StoredBytesPerToken, linkSize)
	check(m.KVBytesPerToken > 0, "kv_bytes_per_token must be positive")
	check(m.PrefillTokensPerSecond > 0, "prefill_tokens_per_second must be positive")
	check(m.LinkBytesPerSecond > 0, "link_bytes_per_second must be positive")
	check(m.EOSEvery >= 0, "eos_every is %d: want 0 or more", m.EOSEvery)
	for _, v := range []float64{m.StepMs, m.StepMsPerSequence, m.StepMsPer1kContext, m.LinkLatencyMs, m.HandshakeMs} {
		check(v >= 0, "times cannot be negative: %v", v)
	}
	return errors.Join(errs...)
}

// stepTime is how long a step takes. Reading the weights and computing prefill tokens overlap, as they do on the
// hardware, so a small chunk is free and a large one makes every running answer wait: that is the interference that
// disaggregation removes.
func (m *Model) stepTime(b batch) time.Duration {
	compute := float64(b.prefillTokens) / m.PrefillTokensPerSecond * 1000
	ms := max(m.StepMs, compute) + m.StepMsPerSequence*float64(b.sequences) + m.StepMsPer1kContext*float64(b.contextTokens)/1000
	return milliseconds(ms)
}

// transferTime is how long the KV of some tokens is on the link.
func (m *Model) transferTime(tokens int) time.Duration {
	return milliseconds(m.LinkLatencyMs + float64(tokens)*float64(m.KVBytesPerToken)/m.LinkBytesPerSecond*1000)
}

func (m *Model) handshakeTime() time.Duration { return milliseconds(m.HandshakeMs) }

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
