package parser

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// SGLangHTTP has SGLang's own call read, /generate, with text or input_ids. Such requests are not split. In llm-d, requests with text
// are refused. It has no parameters.
type SGLangHTTP struct{}

// NewSGLangHTTP returns the parameters with their defaults.
func NewSGLangHTTP() epp.Plugin { return &SGLangHTTP{} }

// Problems implements epp.Plugin.
func (*SGLangHTTP) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*SGLangHTTP) Build(*epp.Builder) (any, error) { return apis{pd.APISGLang}, nil }
