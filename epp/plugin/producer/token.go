package producer

import "github.com/tandem-serving/tandem/epp"

// Token accepts llm-d's choice of how prompts become tokens. The picker always does what is llm-d's default, and what llm-d's does
// while a tokenizer service does not answer: it counts token ids, and takes four bytes of text for one token. The plugin has no
// effect. A tokenizer service that it names is not asked, of which a warning tells.
type Token struct {
	// Estimate asks for that default, so it has no effect. Its parameters are about images, which the picker does not count.
	Estimate map[string]any `yaml:"estimate"`
	// VLLM asks for a tokenizer service, and has no effect.
	VLLM map[string]any `yaml:"vllm"`
	// UDSTokenizerConfig asks for an older tokenizer service, and has no effect.
	UDSTokenizerConfig map[string]any `yaml:"udsTokenizerConfig"`
	// ModelName names the model of a tokenizer service, and has no effect.
	ModelName string `yaml:"modelName"`
}

// NewToken returns the parameters with their defaults.
func NewToken() epp.Plugin { return &Token{} }

// Correct implements epp.Corrector.
func (p *Token) Correct(warn epp.Report) {
	for _, service := range []struct {
		field string
		asked bool
	}{{"vllm", p.VLLM != nil}, {"udsTokenizerConfig", p.UDSTokenizerConfig != nil}} {
		if service.asked {
			warn(service.field, "has no effect: no tokenizer service is asked, and four bytes of text are taken for a token")
		}
	}
	if len(p.Estimate) > 0 {
		warn("estimate", "has no effect: four bytes of text are taken for a token, and images are not counted")
	}
}

// Problems implements epp.Plugin.
func (*Token) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*Token) Build(*epp.Builder) (any, error) { return Estimated{}, nil }

// Estimated says that tokens are estimated. Nothing can be done with it.
type Estimated struct{}
