package dialect

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// vllmNIXL is the serial protocol of vLLM's NixlConnector, which llm-d calls nixlv2: prefill computes one token, keeps the KV
// cache and names it in its answer; decode pulls it. Measured on vLLM 0.32.0.
type vllmNIXL struct {
	vllmEngine
	pulls     // engines with MultiConnector, of which NixlConnector and OffloadingConnector are part
	readBack  bool
	blockSize int
	sizes     blockSizes // while blockSize is 0
	trust     time.Duration
}

func newVLLMNIXL(o Options) Dialect {
	// A hand-off older than two thirds of its lease is not used: the rest is for the way to decode, and for its queue.
	d := &vllmNIXL{readBack: o.ReadBack, blockSize: o.BlockSize, trust: o.Lease * 2 / 3}
	if o.Pull {
		d.pulls.port = o.P2PPort
	}
	return d
}

// Shape implements Dialect.
func (*vllmNIXL) Shape() Shape { return Serial }

// Attempt implements Dialect. vLLM makes the ids itself.
func (d *vllmNIXL) Attempt(_ context.Context, r *request.Request, _ pd.Target) (Attempt, error) {
	return &nixlAttempt{nixlLegs{dialect: d, request: r}}, nil
}

// ContinuesFromIDs implements Continuer.
func (*vllmNIXL) ContinuesFromIDs() {}

// Notices implements Noticer.
func (*vllmNIXL) Notices() Notices { return nixlNotices{} }

// Agents implements Noticer.
func (*vllmNIXL) Agents() Agents { return nixlAgents{} }

// Renewal implements Noticer.
func (*vllmNIXL) Renewal(lease time.Duration) time.Duration { return lease * 2 / 3 }

// nixlAttempt is an attempt, and its hand-off when prefill has answered.
type nixlAttempt struct{ nixlLegs }

// nixlLegs are the legs of an attempt, which those of a prefill engine that pushes (vllm_push.go) have too.
type nixlLegs struct {
	dialect *vllmNIXL
	request *request.Request
	params  nixlParams
	source  pd.Target // from whose memory prefill pulls; zero: from none
	// borrowed is what prefill reads from decode before it computes the rest, unless it has expired by then; nil: nothing.
	borrowed *nixlParams
	expires  time.Duration
	ranks    legRanks
	// promptTokens and cachedTokens are prefill's counts for this prompt; -1 = not reported.
	promptTokens, cachedTokens int64
}

var (
	prefillParams = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)
	jsonOne       = []byte("1")
	jsonFalse     = []byte("false")
	jsonTrue      = []byte("true")
)

// Prefill implements Attempt. It changes only stream and stream_options (a streaming prefill hands nothing over), the token
// limits (one token), min_tokens (must not exceed the limit) and kv_transfer_params.
func (a *nixlLegs) Prefill() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	OneToken(a.request, e)
	params := prefillParams
	if a.borrowed != nil {
		params = a.readingParams()
	}
	if a.source != (pd.Target{}) {
		params = append(appendSource(append(bytes.TrimSuffix(bytes.Clone(params), []byte("}")), ','), a.source), '}')
	}
	e.Set("kv_transfer_params", params)
	return e.Payload()
}

// PullFrom implements PullAttempt.
func (a *nixlLegs) PullFrom(tier pd.Target) { a.source = tier }

// Decode implements Handoff. It inserts the hand-off as the prefill engine wrote it.
func (a *nixlLegs) Decode() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	e.Set("kv_transfer_params", a.params.raw)
	return e.Payload()
}

// Discard implements Releaser. The leg is a stream, because vLLM sends the headers of a stream when it has admitted the
// request, and those of another answer only at the end.
func (a *nixlLegs) Discard() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	if !a.request.Stream() {
		e.Set("stream", jsonTrue)
	}
	e.Set("kv_transfer_params", a.params.raw)
	return e.Payload()
}

// Settle implements Releaser. vLLM released the hand-off in every try from 4 ms on. A front end that sees request and
// disconnect together drops the request, and the prefill engine never learns of it. The rest of the time is for a busy front
// end.
func (*nixlLegs) Settle() time.Duration { return 250 * time.Millisecond }

// Pins implements Releaser. vLLM releases the hand-off of a request that it does not admit, which it answers with 503. With
// other refusals it may not have read the parameters, a failed transfer releases nothing, and a 429 comes from a proxy before
// vLLM.
func (*nixlAttempt) Pins(status int) bool {
	return status >= http.StatusBadRequest && status != http.StatusServiceUnavailable
}

// ReleaseRequest implements RequestReleaser. It names a model that no engine serves: vLLM looks the model up after it has
// read the parameters, refuses with 404, and has the prefill engine release the blocks (measured: free after 0.07 s).
func (a *nixlAttempt) ReleaseRequest() (path string, b []byte) {
	b = bytes.Join([][]byte{
		[]byte(`{"model":"tandem-release","prompt":"x","max_tokens":1,"kv_transfer_params":`), a.params.raw, []byte(`}`),
	}, nil)
	return pd.APICompletions.Path(), b
}

// Released implements RequestReleaser: with any other status vLLM has not read the parameters.
func (*nixlAttempt) Released(status int) bool {
	return status == http.StatusNotFound || status == http.StatusBadRequest
}

// Tries implements RequestReleaser. A request that arrives twice costs a line in the prefill engine's log.
func (*nixlAttempt) Tries() (n int, pause time.Duration) { return 4, 25 * time.Millisecond }

// Trust implements Leased.
func (a *nixlLegs) Trust() time.Duration { return a.dialect.trust }

// Pin implements Leased.
func (a *nixlLegs) Pin() Pin { return a.params.pin }

// UseRanks implements Ranked. A prefill engine with ranks behind one port has a side channel for each, which its answer names.
func (a *nixlLegs) UseRanks(prefill, decode pd.Rank) { a.ranks = legRanks{prefill, decode} }

// SetHeader implements HeaderSetter.
func (a *nixlLegs) SetHeader(role pd.Role, h http.Header) { a.ranks.set(role, h) }

// Blocks implements Sized.
func (a *nixlLegs) Blocks() int { return a.params.blocks }

// Cached implements UsageCorrector. If the prefill engine does not hand over its count, decode reports every pulled token as
// cached.
func (a *nixlLegs) Cached() (tokens int64, ok bool) {
	return a.cachedTokens, a.params.cached < 0 && a.cachedTokens >= 0
}

// The members of a prefill answer, in the order of answerTable.
const (
	aParams = iota
	aPromptTokens
	aCachedTokens
	aInputTokens
	aInputCached
	aCacheRead
	aCacheCreated
)

var answerWants = []body.Want{
	{Path: "kv_transfer_params", Once: true},
	{Path: "usage.prompt_tokens"},
	{Path: "usage.prompt_tokens_details.cached_tokens"},
	{Path: "usage.input_tokens"}, // responses, and messages, whose count leaves out those read from the cache or written to it
	{Path: "usage.input_tokens_details.cached_tokens"},
	{Path: "usage.cache_read_input_tokens"},
	{Path: "usage.cache_creation_input_tokens"},
}

var answerTable = body.NewTable(answerWants...)

// Accept implements Attempt. The hand-off keeps the answer's bytes.
func (a *nixlAttempt) Accept(answer []byte) (Handoff, error) {
	if err := a.read(answer); err != nil {
		return nil, err
	}
	if a.params.pushed {
		return nil, errPushes
	}
	return a, a.dialect.checkBlocks(&a.params, int(a.promptTokens))
}

// checkBlocks compares the number of blocks of a hand-off with what the prompt needs, by the block size that the dialect was told, or by
// that of the engine's earlier hand-offs.
func (d *vllmNIXL) checkBlocks(h *nixlParams, promptTokens int) error {
	if d.blockSize == 0 && h.tokens == promptTokens && h.groups == 1 {
		return d.sizes.check(h.pin.EngineID, promptTokens, h.blocks)
	}
	return h.checkBlocks(promptTokens, d.blockSize)
}

// errPushes: legs of one X-Request-Id, which clients choose, must not reach engines that match them by it.
var errPushes = fmt.Errorf("%w: the prefill engine pushes KV caches (NixlPushConnector): set --kv-connector=nixl-push", ErrWrongProtocol)

// errMoRIIO: a hand-off of vLLM's MoRIIOConnector has moriioMark, and those of NIXL's connectors do not.
var (
	errMoRIIO  = fmt.Errorf("%w: the prefill engine's connector is MoRIIOConnector: set --kv-connector=moriio, and --moriio-write-mode unless its read_mode is on", ErrWrongProtocol)
	moriioMark = []byte(`"remote_handshake_port"`)
)

// read takes the parameters and the counts out of prefill's answer.
func (a *nixlLegs) read(answer []byte) error {
	var s body.Scanner
	if err := s.Scan(answerTable, body.Limits{}, answer); err != nil {
		return fmt.Errorf("reading the prefill answer: %w", err)
	}
	m, ok := s.Find(aParams)
	if !ok || m.Kind == body.Null {
		return ErrNoHandoff
	}
	params := answer[m.Value.Start:m.Value.End:m.Value.End]
	h, err := parseHandoff(params)
	switch {
	case err != nil && bytes.Contains(params, moriioMark):
		return errMoRIIO
	case err != nil:
		return err
	}
	a.params = h
	a.promptTokens, a.cachedTokens = usage(a.request.API, func(want int) int64 { return tokens(answer, &s, want) })
	return nil
}

// usage returns an engine's counts for a prompt and for what of it was cached. count returns a member of answerTable, -1 if it is
// absent.
func usage(api pd.API, count func(want int) int64) (prompt, cached int64) {
	switch api {
	case pd.APIResponses:
		return count(aInputTokens), count(aInputCached)
	case pd.APIMessages:
		prompt, cached = count(aInputTokens), count(aCacheRead)
		if prompt >= 0 {
			prompt += max(0, cached) + max(0, count(aCacheCreated))
		}
		return prompt, cached
	}
	return count(aPromptTokens), count(aCachedTokens)
}

// tokens returns a count of the answer, -1 if it is absent.
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

var (
	_ Dialect         = (*vllmNIXL)(nil)
	_ Noticer         = (*vllmNIXL)(nil)
	_ Unfinisher      = (*vllmNIXL)(nil)
	_ Continuer       = (*vllmNIXL)(nil)
	_ LocalRanker     = (*vllmNIXL)(nil)
	_ RankRefuser     = (*vllmNIXL)(nil)
	_ Attempt         = (*nixlAttempt)(nil)
	_ Ranked          = (*nixlAttempt)(nil)
	_ HeaderSetter    = (*nixlAttempt)(nil)
	_ Releaser        = (*nixlAttempt)(nil)
	_ RequestReleaser = (*nixlAttempt)(nil)
	_ Leased          = (*nixlAttempt)(nil)
	_ UsageCorrector  = (*nixlAttempt)(nil)
	_ Sized           = (*nixlAttempt)(nil)
)
