package producer

import "github.com/tandem-serving/tandem/epp"

// Token accepts llm-d's choice of how prompts become tokens. The picker always does what is llm-d's default: it
// counts token ids, and takes four bytes of text for one token. The plugin has no effect, and the parameters of other ways
// are refused.
type Token struct {
	// Estimate asks for that default, so it has no effect. Its parameters are about images, which the picker does not count.
	Estimate map[string]any `yaml:"estimate"`
	// VLLM asks for a tokenizer service, and must be empty.
	VLLM map[string]any `yaml:"vllm"`
	// UDSTokenizerConfig asks for an older tokenizer service, and must be empty.
	UDSTokenizerConfig map[string]any `yaml:"udsTokenizerConfig"`
	// ModelName names the model of a tokenizer service, and must be empty.
	ModelName string `yaml:"modelName"`
}

// NewToken returns the parameters with their defaults.
func NewToken() epp.Plugin { return &Token{} }

// Problems implements epp.Plugin.
func (p *Token) Problems(report epp.Report) {
	for _, service := range []struct {
		field string
		asked bool
	}{{"vllm", p.VLLM != nil}, {"udsTokenizerConfig", p.UDSTokenizerConfig != nil}, {"modelName", p.ModelName != ""}} {
		if service.asked {
			report(service.field, "tokenizer services are not served; leave it out: four bytes of text are taken for a token")
		}
	}
}

// Build implements epp.Plugin.
func (*Token) Build(*epp.Builder) (any, error) { return Estimated{}, nil }

// Estimated says that tokens are estimated. Nothing can be done with it.
type Estimated struct{}
