package producer

import (
	"cmp"
	"net/url"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Token says how prompts become tokens. With vllm, a tokenizer service is asked for the token ids of each prompt that is text, within a
// deadline; requests with images, and APIs other than chat and completions, are not asked for. Without it, and whenever the service does
// not answer, token ids that a request carries are counted, and four bytes of text are taken for one token, as llm-d does by default.
type Token struct {
	// Backend is estimate or vllm. Default "": vllm if its parameters are given, else estimate.
	Backend string `yaml:"backend"`
	// Estimate asks for llm-d's default, so it has no effect. Its parameters are about images, which the picker does not count.
	Estimate map[string]any `yaml:"estimate"`
	// VLLM is the tokenizer service: a vLLM server, or "vllm launch render".
	VLLM *TokenVLLM `yaml:"vllm"`
	// UDSTokenizerConfig asks for an older tokenizer service, and has no effect.
	UDSTokenizerConfig map[string]any `yaml:"udsTokenizerConfig"`
	// ModelName is the name of the service's model, by which it is asked. Default "": the one in the request.
	ModelName string `yaml:"modelName"`
}

// TokenVLLM says where the tokenizer service is. Its /v1/chat/completions/render and /v1/completions/render are asked, or where it has
// none of them, as most servers, its /tokenize.
type TokenVLLM struct {
	// URL is the address. Default http://localhost:8000.
	URL string `yaml:"url"`
	// HTTP is an older name of url.
	HTTP string `yaml:"http"`
	// Timeout is how long a request waits for its token ids. Default 5s. After several failures in a row, the service is not asked for some
	// seconds, so that requests do not wait in vain.
	Timeout string `yaml:"timeout"`
	// MMTimeout is the same for requests with images, which are not asked for. It has no effect.
	MMTimeout string `yaml:"mmTimeout"`
}

const (
	tokenEstimate = "estimate"
	tokenVLLM     = "vllm"
	tokenTimeout  = 5 * time.Second
)

// NewToken returns the parameters with their defaults.
func NewToken() epp.Plugin { return &Token{} }

// Correct implements epp.Corrector.
func (p *Token) Correct(warn epp.Report) {
	if p.UDSTokenizerConfig != nil {
		warn("udsTokenizerConfig", "has no effect: name a vLLM server in vllm.url; until then four bytes of text are taken for a token")
	}
	if len(p.Estimate) > 0 {
		warn("estimate", "has no effect: four bytes of text are taken for a token, and images are not counted")
	}
	if p.VLLM != nil && p.VLLM.MMTimeout != "" {
		warn("vllm.mmTimeout", "has no effect: the service is not asked for requests with images")
	}
}

// Problems implements epp.Plugin.
func (p *Token) Problems(report epp.Report) {
	switch p.Backend {
	case "", tokenEstimate, tokenVLLM:
	default:
		report("backend", "must be %s or %s, got %q", tokenEstimate, tokenVLLM, p.Backend)
	}
	if p.VLLM == nil {
		return
	}
	if u, err := url.Parse(p.VLLM.address()); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		report("vllm.url", "must be the URL of a server, such as http://localhost:8000, got %q", p.VLLM.address())
	}
	if d, err := p.VLLM.timeout(); err != nil || d <= 0 {
		report("vllm.timeout", "must be a positive duration such as 5s, got %q", p.VLLM.Timeout)
	}
}

func (p *TokenVLLM) address() string { return cmp.Or(p.URL, p.HTTP, "http://localhost:8000") }

func (p *TokenVLLM) timeout() (time.Duration, error) {
	if p.Timeout == "" {
		return tokenTimeout, nil
	}
	return time.ParseDuration(p.Timeout)
}

// Build implements epp.Plugin.
func (p *Token) Build(b *epp.Builder) (any, error) {
	service := p.VLLM
	if service == nil && p.Backend == tokenVLLM {
		service = &TokenVLLM{}
	}
	if service == nil || p.Backend == tokenEstimate {
		return Estimated{}, nil
	}
	timeout, err := service.timeout()
	if err != nil {
		return nil, err
	}
	return newTokenService(service.address(), p.ModelName, timeout, b), nil
}

// Estimated says that tokens are estimated. Nothing can be done with it.
type Estimated struct{}
