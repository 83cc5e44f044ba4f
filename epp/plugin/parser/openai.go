package parser

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// OpenAI has the calls of OpenAI's API read: chat completions, completions, responses and embeddings. It has no parameters.
type OpenAI struct{}

// NewOpenAI returns the parameters with their defaults.
func NewOpenAI() epp.Plugin { return &OpenAI{} }

// Problems implements epp.Plugin.
func (*OpenAI) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*OpenAI) Build(*epp.Builder) (any, error) { return apis(openAI), nil }

var openAI = []pd.API{pd.APIChat, pd.APICompletions, pd.APIResponses, pd.APIEmbeddings}

// apis is an epp.Parser for a list of APIs.
type apis []pd.API

// Parses implements epp.Parser.
func (a apis) Parses() []pd.API { return a }
