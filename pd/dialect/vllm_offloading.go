package dialect

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// P2PPort is llm-d's port of the peer-to-peer tier. That of vLLM is 5710, unless VLLM_P2P_SIDE_CHANNEL_PORT says otherwise.
const P2PPort = 7777

// vllmOffloading is the concurrent protocol of vLLM's OffloadingConnector with a peer-to-peer tier: prefill copies the blocks of the
// prompt into its CPU memory, under the number of the hand-off, and decode fetches whole blocks from there. Blocks travel under the
// hashes of their tokens, so that no other prompt's are read; what decode does not get in 30 seconds it computes. The memory of a
// hand-off that is not fetched is free after 60 seconds. Measured on vLLM 0.32.0.
type vllmOffloading struct {
	vllmEngine
	pulls // whatever Options say: engines fetch if a picker names a source
}

func newVLLMOffloading(o Options) Dialect { return &vllmOffloading{pulls: pulls{o.P2PPort}} }

// Shape implements Dialect.
func (*vllmOffloading) Shape() Shape { return Concurrent }

// Attempt implements Dialect. A number is for one hand-off.
func (d *vllmOffloading) Attempt(_ context.Context, r *request.Request, prefill pd.Target) (Attempt, error) {
	return &offloadingAttempt{request: r, api: r.API, host: prefill.Host, port: d.port, number: "tandem-" + rand.Text(), cached: -1}, nil
}

// StripsHeader implements HeaderStripper: the rank is the attempt's.
func (*vllmOffloading) StripsHeader(name string) bool { return name == rankHeader }

// ContinuesFromIDs implements Continuer.
func (*vllmOffloading) ContinuesFromIDs() {}

// PushesAfterAnswer implements Pusher: decode notices that prefill has ended, and not that it hangs.
func (*vllmOffloading) PushesAfterAnswer() (decodeKeeps bool) { return false }

// offloadingAttempt is an attempt, and its hand-off. Nothing is released: prefill's GPU holds nothing after its answer, and no request
// frees its CPU memory.
type offloadingAttempt struct {
	request *request.Request // only until decode has answered, which may be before prefill: its body is dropped then
	api     pd.API
	host    string
	port    int
	rank    pd.Rank
	number  string
	source  pd.Target // from whose memory prefill pulls; zero: from none
	cached  int64     // tokens of the prompt in prefill's cache; -1: not reported
}

// UseRanks implements Ranked. Decode's rank has no effect: each rank of a decode engine has its own port.
func (a *offloadingAttempt) UseRanks(prefill, _ pd.Rank) { a.rank = prefill }

// PullFrom implements PullAttempt.
func (a *offloadingAttempt) PullFrom(tier pd.Target) { a.source = tier }

// SetHeader implements HeaderSetter.
func (a *offloadingAttempt) SetHeader(role pd.Role, h http.Header) {
	if role == pd.RolePrefill {
		setRankHeader(a.rank, h)
	}
}

// Prefill implements Attempt.
func (a *offloadingAttempt) Prefill() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	OneToken(a.request, e)
	b := []byte(`{"remote_decoder":{"kv_request_id":"` + a.number + `"}`)
	if a.source != (pd.Target{}) {
		b = appendSource(append(b, ','), a.source)
	}
	e.Set("kv_transfer_params", append(b, '}'))
	return e.Payload()
}

// Handoff implements Rendezvous.
func (a *offloadingAttempt) Handoff() Handoff { return a }

// Decode implements Handoff.
func (a *offloadingAttempt) Decode() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	port := a.port
	if number, ok := a.rank.Number(); ok {
		port += number
	}
	b := appendJSON([]byte(`{"remote_prefiller":{"kv_request_id":"`+a.number+`","remote_host":`), a.host)
	e.Set("kv_transfer_params", fmt.Appendf(b, `,"remote_port":%d}}`, port))
	return e.Payload()
}

// Accept implements Attempt.
func (a *offloadingAttempt) Accept(answer []byte) (Handoff, error) {
	var s body.Scanner
	if err := s.Scan(completionTable, body.Limits{}, answer); err != nil {
		return nil, fmt.Errorf("reading the prefill answer: %w", err)
	}
	if m, ok := s.Find(aParams); ok && m.Kind != body.Null {
		return nil, errNotOffloading
	}
	if !completed(answer, &s) {
		return nil, ErrNoHandoff
	}
	told := *a // decode's leg may be reading a
	_, told.cached = usage(a.api, func(want int) int64 { return tokens(answer, &s, want) })
	return &told, nil
}

var errNotOffloading = fmt.Errorf("%w: the prefill engine answers with a hand-off of another connector than OffloadingConnector", ErrWrongProtocol)

// Cached implements UsageCorrector. Decode reports the blocks that it has fetched as cached.
func (a *offloadingAttempt) Cached() (tokens int64, ok bool) { return a.cached, a.cached >= 0 }

var (
	_ Dialect        = (*vllmOffloading)(nil)
	_ HeaderStripper = (*vllmOffloading)(nil)
	_ Unfinisher     = (*vllmOffloading)(nil)
	_ Pusher         = (*vllmOffloading)(nil)
	_ Continuer      = (*vllmOffloading)(nil)
	_ Rendezvous     = (*offloadingAttempt)(nil)
	_ Puller         = (*vllmOffloading)(nil)
	_ PullAttempt    = (*offloadingAttempt)(nil)
	_ Ranked         = (*offloadingAttempt)(nil)
	_ HeaderSetter   = (*offloadingAttempt)(nil)
	_ UsageCorrector = (*offloadingAttempt)(nil)
)
