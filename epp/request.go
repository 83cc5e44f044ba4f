package epp

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// Request is what the picker reads of a client's request. It does not change after its preparers have run: see Preparer.
type Request struct {
	ID     string // x-request-id, for logs and spans; never a key, since clients choose it
	Path   string // URL path without the query
	API    pd.API
	Model  string // the model that answers; "" if the request names none
	Stream bool
	Mode   pd.Mode
	Fit    request.Fit
	// SGLangSplits says that SGLang's engines can share the request although Fit is another one: it has several prompts or choices.
	SGLangSplits bool

	Prompt Prompt
	Subset *Subset // nil: the whole pool

	// Asked is the model that the client named, if another one answers; else "".
	Asked string
	// Rewrite names what chose the model: an InferenceModelRewrite, or HeaderTarget; "" = nothing did. It may have chosen the
	// model that the client asked for.
	Rewrite string
	// Objective is the InferenceObjective that the client named, "" = none; Known says whether the pool has it.
	Objective string
	Known     bool
	// Priority is the objective's, 0 without a known one. Requests of negative priority are refused first: see Detector.
	Priority int
	// IfAvailable says that the request is refused if the first endpoint has nothing of the prompt cached.
	IfAvailable bool
	// Bytes is the size of the body.
	Bytes int64
	// Flow is the fairness id that a FlowNamer gave the request; "" = none did.
	Flow string

	// Headers are the client's, nil = none. Read them by Header.
	Headers Headers
	// Body is the body as it is sent on, with the name of the model that answers; nil = none is at hand. Preparers may read it; after the pick
	// its memory is used again.
	Body [][]byte

	attached []any // by preparers: see Attach
}

// DefaultFlow is the fairness id of requests without one, as in llm-d.
const DefaultFlow = "default-flow"

// FairnessID returns the client's fairness id, or else that of a FlowNamer, "" if the request has neither.
func (r *Request) FairnessID() string {
	return cmp.Or(r.Header(HeaderFlow), r.Header(HeaderFlowOld), r.Flow)
}

// Origin returns what a request is counted by.
func (r *Request) Origin() Origin {
	return Origin{Flow: cmp.Or(r.FairnessID(), DefaultFlow), Priority: r.Priority,
		Model: cmp.Or(r.Asked, r.Model), Target: r.Model}
}

// Origin is what a request is counted by.
type Origin struct {
	Flow     string // fairness id
	Priority int
	Model    string // that the client named
	Target   string // that answers
}

// RequireModel refuses a request for which neither the client nor a rewrite names a model, as llm-d does; engines would answer with
// the model that they have. A prompt of token ids needs no name, because its tokens are those of one model. SGLang's own call and
// those of vLLM's gRPC have no member for it, and llm-d does not require it of any call of gRPC. The error is a *pd.Refusal.
func (r *Request) RequireModel() error {
	if r.Model != "" || r.API == pd.APIOther || r.API == pd.APIGenerate || r.API == pd.APISGLang || r.API.GRPC() {
		return nil
	}
	return pd.Refuse(pd.BadRequest, "The request names no model. Send its name as the member \"model\".")
}

// Headers are the headers of a client's request.
type Headers interface {
	// Get returns the first value of a header, "" if there is none. name is in lower case.
	Get(name string) string
}

// Header returns the first value of one of the client's headers, "" if there is none. name is in lower case.
func (r *Request) Header(name string) string {
	if r.Headers == nil {
		return ""
	}
	return r.Headers.Get(name)
}

// Prompt is what is known of the prompt.
type Prompt struct {
	// Tokens is the length of the prompt: exact for prompts given as token ids and where a Preparer has found them, else estimated as
	// llm-d does, four bytes of text a token.
	Tokens int
	// IDs are the token ids that the prompt begins with, nil = not known: those that the request carries, of its first prompt, or what a
	// Preparer has found. Of a long prompt the rest may be missing. Nothing may change them, and they are valid as long as the request.
	IDs []uint32
	// Source is what made IDs, nil = the request carries them, or they are not known.
	Source TokenSource
	// Salt is the client's cache salt, "" = none: engines keep prompts with other salts apart.
	Salt string
	// Blocks are the chained hashes of the prompt's whole blocks, first block first: a hash stands for its block, all blocks
	// before it, the model, and the cache salt. nil if none are needed. A tail shorter than a block has no hash.
	Blocks []uint64
	// BlockTokens is how many tokens one block has.
	BlockTokens int
	// Media are hashes of the images, audio and video in the prompt, each once; nil = none. A hash is of the part of the body
	// that holds the item, and is keyed with a secret of the process.
	Media []uint64
}

// SetIDs sets the token ids of the whole prompt, which tell its length too, and what made them. Only functions that a Preparer returned may
// call it.
func (p *Prompt) SetIDs(ids []uint32, by TokenSource) { p.IDs, p.Tokens, p.Source = ids, len(ids), by }

// TokenSource makes the token ids of prompts, and learns how many tokens engines count in the same prompts. It must be safe for concurrent
// use.
type TokenSource interface {
	// Counted is called once for an answer that reports how long its prompt was: made is the number of token ids that the source made of
	// it, reported is the engine's. It is called after the request has ended, and must return quickly.
	Counted(made, reported int)
}

// Matchable returns how many tokens of the prompt a prefix cache can hold: those of its hashed blocks, or all if it has none.
func (p *Prompt) Matchable() int {
	if blocks := len(p.Blocks) * p.BlockTokens; blocks > 0 {
		return min(blocks, p.Tokens)
	}
	return p.Tokens
}

// PromptSpec says what is needed of prompts. The zero value means that only their length is.
type PromptSpec struct {
	Tokens int // tokens in a block; 0 = no blocks are needed
	Max    int // most blocks of one prompt; its rest has no hashes
	IDs    int // most token ids that are kept of one prompt; 0 = none are needed
}

// Subset is the part of the pool that a gateway allows for one request.
type Subset struct {
	addrs []netip.AddrPort // in order; port 0 = every port of the address
}

// NewSubset makes the subset of the given ip:port texts, with IPv6 in brackets. An address without a port stands for all its
// ports. It ignores other texts, which name no endpoint.
func NewSubset(texts ...string) *Subset {
	s := &Subset{}
	for _, text := range texts {
		if a, err := netip.ParseAddrPort(text); err == nil {
			s.addrs = append(s.addrs, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
		} else if ip, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
			s.addrs = append(s.addrs, netip.AddrPortFrom(ip.Unmap(), 0))
		}
	}
	slices.SortFunc(s.addrs, netip.AddrPort.Compare)
	return s
}

// Has reports whether an endpoint's address is in the subset. A nil subset has all.
func (s *Subset) Has(addr netip.AddrPort) bool {
	return s == nil || s.lists(addr) || s.lists(netip.AddrPortFrom(addr.Addr(), 0))
}

// lists does a binary search, because some gateways name the whole pool.
func (s *Subset) lists(addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(s.addrs, addr, netip.AddrPort.Compare)
	return found
}
