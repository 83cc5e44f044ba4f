package plugin

import "github.com/tandem-serving/tandem/epp"

// TokenProducer accepts llm-d's choice of how prompts become tokens. The picker always does what is llm-d's default: it
// counts token ids, and takes four bytes of text for one token. The plugin has no effect, and the parameters of other ways
// are refused.
type TokenProducer struct {
	// Estimate asks for that default, so it has no effect. Its parameters are about images, which the picker does not count.
	Estimate map[string]any `yaml:"estimate"`
	// VLLM asks for a tokenizer service, and must be empty.
	VLLM map[string]any `yaml:"vllm"`
	// UDSTokenizerConfig asks for an older tokenizer service, and must be empty.
	UDSTokenizerConfig map[string]any `yaml:"udsTokenizerConfig"`
	// ModelName names the model of a tokenizer service, and must be empty.
	ModelName string `yaml:"modelName"`
}

func newTokenProducer() epp.Plugin { return &TokenProducer{} }

// Problems implements epp.Plugin.
func (p *TokenProducer) Problems(report epp.Report) {
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
func (*TokenProducer) Build(*epp.Builder) (any, error) { return estimated{}, nil }

// estimated says that tokens are estimated. Nothing can be done with it.
type estimated struct{}
