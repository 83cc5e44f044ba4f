package dialect

import (
	"bytes"
	"fmt"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// vllmNIXL is the serial pull hand-off of vLLM's NixlConnector, which llm-d calls nixlv2: prefill computes one token and
// keeps the KV cache, its answer offers it, and decode pulls it. Measured on vLLM 0.32.0.
type vllmNIXL struct{}

var (
	prefillParams = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)
	jsonOne       = []byte("1")
	jsonFalse     = []byte("false")
	jsonTrue      = []byte("true")
)

// Prefill touches exactly: stream and stream_options (a prefill that streams never offers anything), the token limits
// (one token), min_tokens (must not exceed the limit) and kv_transfer_params.
func (vllmNIXL) Prefill(r *request.Request) (request.Payload, error) {
	e, err := r.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	if r.Stream() {
		e.Set("stream", jsonFalse)
	}
	e.Drop("stream_options")
	e.Drop("min_tokens")
	completionLimit, limit := r.Has("max_completion_tokens"), r.Has("max_tokens")
	if completionLimit {
		e.Set("max_completion_tokens", jsonOne)
	}
	if limit || !completionLimit || r.API != pd.APIChat {
		e.Set("max_tokens", jsonOne)
	}
	e.Set("kv_transfer_params", prefillParams)
	return e.Payload()
}

// Decode pastes the offer as the prefill engine wrote it.
func (vllmNIXL) Decode(r *request.Request, o Offer) (request.Payload, error) {
	e, err := r.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	e.Set("kv_transfer_params", o.Handoff.Raw())
	return e.Payload()
}

// Release is the decode leg as a stream: vLLM sends a stream's headers when it has admitted the request, a whole answer's
// only at its end.
func (vllmNIXL) Release(r *request.Request, o Offer) (request.Payload, error) {
	e, err := r.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	if !r.Stream() {
		e.Set("stream", jsonTrue)
	}
	e.Set("kv_transfer_params", o.Handoff.Raw())
	return e.Payload()
}

// The members of a prefill answer, in the order of answerTable.
const (
	aParams = iota
	aPromptTokens
	aCachedTokens
)

var answerTable = body.NewTable(
	body.Want{Path: "kv_transfer_params", Once: true},
	body.Want{Path: "usage.prompt_tokens"},
	body.Want{Path: "usage.prompt_tokens_details.cached_tokens"},
)

// Accept finds and checks the hand-off. The answer stays referenced by the offer.
func (vllmNIXL) Accept(answer []byte) (Offer, error) {
	var s body.Scanner
	s.Reset(answerTable, body.Limits{}, nil)
	if _, err := s.Write(answer); err != nil {
		return Offer{}, fmt.Errorf("reading the prefill answer: %w", err)
	}
	if err := s.Close(); err != nil {
		return Offer{}, fmt.Errorf("reading the prefill answer: %w", err)
	}
	m, ok := s.Find(aParams)
	if !ok || m.Kind == body.Null {
		return Offer{}, ErrNoOffer
	}
	h, err := pd.ParseHandoff(answer[m.Value.Start:m.Value.End:m.Value.End])
	if err != nil {
		return Offer{}, err
	}
	return Offer{Handoff: h, PromptTokens: tokens(answer, &s, aPromptTokens), CachedTokens: tokens(answer, &s, aCachedTokens)}, nil
}

// tokens reads a count of the answer, -1 if it is not there.
func tokens(answer []byte, s *body.Scanner, want int) int64 {
	m, ok := s.Find(want)
	if !ok || m.Kind != body.Number || m.Value.End-m.Value.Start > 15 {
		return -1
	}
	var n int64
	for _, c := range answer[m.Value.Start:m.Value.End] {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int64(c-'0')
	}
	return n
}

// Forget names a model no engine serves: vLLM looks the model up after it has read the parameters and before it computes
// anything, refuses with 404, and tells the prefill engine to let go (measured: blocks free after 0.07 s).
func (vllmNIXL) Forget(o Offer) (path string, b []byte) {
	b = bytes.Join([][]byte{
		[]byte(`{"model":"tandem-release","prompt":"x","max_tokens":1,"kv_transfer_params":`), o.Handoff.Raw(), []byte(`}`),
	}, nil)
	return pd.APICompletions.Path(), b
}

var (
	_ Dialect   = vllmNIXL{}
	_ Forgetter = vllmNIXL{}
)
