package model

import (
	"bytes"
	"crypto/sha256"
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

// MinStoredBytesPerToken is the least that an engine stores for a token, in bytes: one link of the chain that package kv
// makes of the tokens' KV, a SHA-256 digest.
const MinStoredBytesPerToken = sha256.Size

// Model has the sizes and speeds of a model on its hardware. The files in models/ say where their numbers come from.
type Model struct {
	// Name seeds the KV: engines whose models differ in name produce different KV and different tokens.
	Name string `yaml:"name"`
	// Vocabulary is the number of token ids; at least 264: 8 special tokens, and one for each byte.
	Vocabulary int `yaml:"vocabulary"`
	// MaxModelLen is the longest prompt plus answer, in tokens.
	MaxModelLen int `yaml:"max_model_len"`
	// KVBytesPerToken is the size of a token's KV on a real engine, in bytes. Transfers take as long as this size needs.
	KVBytesPerToken int `yaml:"kv_bytes_per_token"`
	// StoredBytesPerToken is what the simulator stores and moves for a token, in bytes; at least MinStoredBytesPerToken.
	StoredBytesPerToken int `yaml:"stored_bytes_per_token"`

	// PrefillTokensPerSecond is how fast prompts are computed.
	PrefillTokensPerSecond float64 `yaml:"prefill_tokens_per_second"`
	// StepMs is the duration of a step that reads the weights and computes no prompt (milliseconds).
	StepMs float64 `yaml:"step_ms"`
	// StepMsPerSequence is added for each sequence in the step (milliseconds).
	StepMsPerSequence float64 `yaml:"step_ms_per_sequence"`
	// StepMsPer1kContext is added for each 1000 tokens of KV that the step reads (milliseconds).
	StepMsPer1kContext float64 `yaml:"step_ms_per_1k_context"`

	// LinkBytesPerSecond is the speed of one transfer between two engines.
	LinkBytesPerSecond float64 `yaml:"link_bytes_per_second"`
	// LinkLatencyMs is added to each transfer (milliseconds).
	LinkLatencyMs float64 `yaml:"link_latency_ms"`
	// HandshakeMs is added to the first transfer between two engines (milliseconds).
	HandshakeMs float64 `yaml:"handshake_ms"`

	// EOSEvery ends an answer at each token with probability 1/EOSEvery; 0: never.
	EOSEvery int `yaml:"eos_every"`
}

// Named returns a built-in model. The error for an unknown name lists the names.
func Named(name string) (Model, error) {
	data, err := modelFiles.ReadFile("models/" + path.Base(name) + ".yaml")
	if errors.Is(err, fs.ErrNotExist) {
		return Model{}, fmt.Errorf("finding model %q: the models are %s", name, strings.Join(names(), ", "))
	}
	if err != nil {
		return Model{}, fmt.Errorf("reading model %q: %w", name, err)
	}
	return Parse(data)
}

// names lists the built-in models.
func names() []string {
	files, err := fs.Glob(modelFiles, "models/*.yaml")
	if err != nil {
		return nil
	}
	list := make([]string, len(files))
	for i, f := range files {
		list[i] = strings.TrimSuffix(path.Base(f), ".yaml")
	}
	return list
}

// Parse reads a model file: YAML or JSON, with the keys of Model's tags. Unknown keys are errors.
func Parse(data []byte) (Model, error) {
	var m Model
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&m); err != nil {
		return Model{}, fmt.Errorf("reading model file: %w", err)
	}
	if err := m.Validate(); err != nil {
		return Model{}, fmt.Errorf("checking model file: %w", err)
	}
	return m, nil
}

// Validate returns every problem of the model, joined, or nil.
func (m *Model) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(m.Name != "", "name is missing")
	check(m.Vocabulary >= firstPiece, "vocabulary is %d: want at least %d", m.Vocabulary, firstPiece)
	check(m.MaxModelLen > 1, "max_model_len is %d: want at least 2", m.MaxModelLen)
	check(m.StoredBytesPerToken >= MinStoredBytesPerToken, "stored_bytes_per_token is %d: want at least %d", m.StoredBytesPerToken, MinStoredBytesPerToken)
	check(m.KVBytesPerToken > 0, "kv_bytes_per_token must be positive")
	check(m.PrefillTokensPerSecond > 0, "prefill_tokens_per_second must be positive")
	check(m.LinkBytesPerSecond > 0, "link_bytes_per_second must be positive")
	check(m.EOSEvery >= 0, "eos_every is %d: want 0 or more", m.EOSEvery)
	for _, v := range []float64{m.StepMs, m.StepMsPerSequence, m.StepMsPer1kContext, m.LinkLatencyMs, m.HandshakeMs} {
		check(v >= 0, "times cannot be negative: %v", v)
	}
	return errors.Join(errs...)
}

// Step is the work that one step of an engine does.
type Step struct {
	// PrefillTokens of prompts are computed. Tokens of answers whose KV was lost in a preemption count as well.
	PrefillTokens int
	// Sequences take part.
	Sequences int
	// ContextTokens is how many tokens' KV all sequences read together.
	ContextTokens int
	// LoadedTokens are those whose KV comes from the host's memory.
	LoadedTokens int
}

// hostBytesPerSecond is how fast KV comes from the host's memory: over PCIe 5 with 16 lanes.
const hostBytesPerSecond = 50e9

// StepTime returns how long a step takes. An engine reads the weights and computes prefill tokens at the same time, so a
// small prefill chunk costs nothing, and a large one delays every running answer: the interference that disaggregation removes.
func (m *Model) StepTime(s Step) time.Duration {
	compute := float64(s.PrefillTokens) / m.PrefillTokensPerSecond * 1000
	ms := max(m.StepMs, compute) + m.StepMsPerSequence*float64(s.Sequences) + m.StepMsPer1kContext*float64(s.ContextTokens)/1000
	ms += float64(s.LoadedTokens) * float64(m.KVBytesPerToken) / hostBytesPerSecond * 1000
	return milliseconds(ms)
}

// TransferTime returns how long the link between two engines needs for the KV of some tokens.
func (m *Model) TransferTime(tokens int) time.Duration {
	return milliseconds(m.LinkLatencyMs + float64(tokens)*float64(m.KVBytesPerToken)/m.LinkBytesPerSecond*1000)
}

// HandshakeTime returns how long the first contact of two engines takes.
func (m *Model) HandshakeTime() time.Duration { return milliseconds(m.HandshakeMs) }

// Tokenizer returns the tokenizer of the model's vocabulary.
func (m *Model) Tokenizer() Tokenizer { return Tokenizer{m.Vocabulary} }

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
