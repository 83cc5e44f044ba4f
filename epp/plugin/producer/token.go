package producer

import (
	"cmp"
	"net/url"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Token says how prompts become tokens. Token ids that a request carries are taken first. With local, prompts of the completions and chat
// APIs are turned into ids in the picker, by the model's tokenizer.json and chat template. With vllm, a tokenizer service is asked for the
// ids of other prompts that are text, within a deadline; requests with images, and APIs other than chat and completions, are not asked for.
// Where neither the request nor local nor vllm has ids, four bytes of text are taken for one token, as llm-d does by default. Counts of
// tokens are compared with those that engines report; where those of local differ, vllm is asked instead, if it is there.
type Token struct {
	// Backend is estimate or vllm. Default "": what has parameters, else estimate. With estimate, neither local nor vllm is used.
	Backend string `yaml:"backend"`
	// Local names the files by which the picker itself makes token ids.
	Local *TokenLocal `yaml:"local"`
	// Estimate asks for llm-d's default, so it has no effect. Its parameters are about images, which the picker does not count.
	Estimate map[string]any `yaml:"estimate"`
	// VLLM is the tokenizer service: a vLLM server, or "vllm launch render".
	VLLM *TokenVLLM `yaml:"vllm"`
	// UDSTokenizerConfig asks for an older tokenizer service, and has no effect.
	UDSTokenizerConfig map[string]any `yaml:"udsTokenizerConfig"`
	// ModelName is the name of the service's model, by which it is asked. Default "": the one in the request.
	ModelName string `yaml:"modelName"`
}

// TokenLocal says which models' prompts the picker turns into token ids itself. The ids are those of PyPI's tokenizers. A file that has
// parts which are not supported is refused, with the name of the part.
type TokenLocal struct {
	// ModelTokenizerMap has the path of a tokenizer.json for each model, by the name of the model in requests.
	ModelTokenizerMap map[string]string `yaml:"modelTokenizerMap"`
	// ChatTemplateMap has the path of a chat template for models whose engines have another one than the model's own, as with vLLM's
	// --chat-template. Default: chat_template.jinja in the folder of the tokenizer.json, or else the one in tokenizer_config.json there. Messages and
	// tools are handed to the template as vLLM does. Chats that the picker cannot render, such as those with images, are asked of the service
	// in vllm, if there is one.
	ChatTemplateMap map[string]string `yaml:"chatTemplateMap"`
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
	if p.Local != nil && len(p.Local.ModelTokenizerMap) == 0 {
		report("local.modelTokenizerMap", "must name a tokenizer.json for at least one model")
	}
	if p.Local != nil {
		for model, path := range p.Local.ModelTokenizerMap {
			if model == "" || path == "" {
				report("local.modelTokenizerMap", "must have names of models and paths of files, got %q: %q", model, path)
			}
		}
		for model, path := range p.Local.ChatTemplateMap {
			if _, ok := p.Local.ModelTokenizerMap[model]; !ok || path == "" {
				report("local.chatTemplateMap", "must have names of models that are in modelTokenizerMap and paths of files, got %q: %q", model, path)
			}
		}
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
	where := p.VLLM
	if where == nil && p.Backend == tokenVLLM {
		where = &TokenVLLM{}
	}
	if p.Backend == tokenEstimate || where == nil && p.Local == nil {
		return Estimated{}, nil
	}
	var models map[string]*localModel
	if p.Local != nil {
		var err error
		if models, err = readModels(p.Local, b); err != nil {
			return nil, err
		}
	}
	var service *tokenService
	if where != nil {
		timeout, err := where.timeout()
		if err != nil {
			return nil, err
		}
		service = newTokenService(where.address(), p.ModelName, timeout, b)
	}
	if models == nil {
		return service, nil
	}
	return &localTokens{models: models, service: service, clock: b.Clock()}, nil
}

// Estimated says that tokens are estimated. Nothing can be done with it.
type Estimated struct{}
