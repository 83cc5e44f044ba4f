package parser

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Anthropic has the messages of Anthropic's API read, and the calls that count their tokens. llm-d answers a count with an error.
// It has no parameters.
type Anthropic struct{}

// NewAnthropic returns the parameters with their defaults.
func NewAnthropic() epp.Plugin { return &Anthropic{} }

// Problems implements epp.Plugin.
func (*Anthropic) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*Anthropic) Build(*epp.Builder) (any, error) {
	return apis{pd.APIMessages, pd.APICountTokens}, nil
}
