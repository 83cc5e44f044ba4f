package dialect

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// vllmPush is the protocol of vLLM's NixlPushConnector: decode allocates blocks and names them to the prefill engine, which writes the
// KV cache into them. Measured on vLLM 0.32.0.
//
// The engines take the legs in any order. They are sent one after the other all the same: a decode engine whose prefill leg fails,
// or is refused, keeps the blocks of its own leg until it is restarted.
type vllmPush struct{ vllmNIXL }

func newVLLMPush(o Options) Dialect {
	return &vllmPush{vllmNIXL{blockSize: o.BlockSize, trust: o.Lease * 2 / 3}}
}

// Strips implements Stripper: the id of a response is in its body.
func (*vllmPush) Strips() []string { return append(slices.Clip(vllmStrips), pushRequestID) }

// pushRequestID is the member that has the id of a leg of the responses API, for which vLLM does not read the header.
const pushRequestID = "request_id"

// Attempt implements Dialect. The prefill engine writes to the decode leg with the X-Request-Id of the prefill leg, so each attempt
// has an id of its own: with a client's, two requests of one id would get each other's KV cache.
func (d *vllmPush) Attempt(_ context.Context, r *request.Request, _ pd.Target) (Attempt, error) {
	return &pushAttempt{nixlLegs: nixlLegs{dialect: &d.vllmNIXL, request: r}, transfer: rand.Text()}, nil
}

// PushesAfterAnswer implements Pusher.
func (*vllmPush) PushesAfterAnswer() (decodeKeeps bool) { return true }

// pushAttempt is an attempt, and its hand-off when prefill has answered. It is no RequestReleaser: a decode engine that refuses a leg,
// or drops it before it has blocks, tells the prefill engine nothing.
type pushAttempt struct {
	nixlLegs
	transfer string // new for each attempt
	id       string // X-Request-Id of both legs; "" until the first one is made
}

// headerRequestID is the header by which vLLM names a request.
const headerRequestID = "X-Request-Id"

// SetHeader implements HeaderSetter. The id begins with the client's, so that the engines' logs can be searched for it.
func (a *pushAttempt) SetHeader(role pd.Role, h http.Header) {
	a.ranks.set(role, h)
	if a.id == "" {
		a.id = a.transfer
		if clients := h.Get(headerRequestID); clients != "" {
			a.id = clients + "-" + a.transfer
		}
	}
	h[headerRequestID] = []string{a.id}
}

// Prefill implements Attempt. Engines after 0.32 match the legs by transfer_id.
func (a *pushAttempt) Prefill() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	OneToken(a.request, e)
	a.name(e)
	e.Set("kv_transfer_params", []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`+a.transfer+`"}`))
	return e.Payload()
}

// name gives a leg the id that SetHeader does not.
func (a *pushAttempt) name(e *request.Edit) {
	if a.request.API == pd.APIResponses {
		e.Set(pushRequestID, []byte(`"resp_`+a.transfer+`"`))
	}
}

// Decode implements Handoff.
func (a *pushAttempt) Decode() (request.Payload, error) { return a.decode(false) }

// Discard implements Releaser. Decode frees both engines when it has blocks: measured, 0.2 s after it was cancelled.
func (a *pushAttempt) Discard() (request.Payload, error) { return a.decode(true) }

func (a *pushAttempt) decode(stream bool) (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	if stream && !a.request.Stream() {
		e.Set("stream", jsonTrue)
	}
	a.name(e)
	e.Set("kv_transfer_params", a.params.raw)
	return e.Payload()
}

var (
	errNotPush = fmt.Errorf("%w: the prefill engine does not push KV caches (its answer lacks transfer_mode push): set --kv-connector=nixlv2", ErrWrongProtocol)
	errNoSize  = errors.New("hand-off lacks numbers of ranks in tp_size and pp_size, without which a decode engine that is pushed to ends")
)

// Accept implements Attempt.
func (a *pushAttempt) Accept(answer []byte) (Handoff, error) {
	if err := a.read(answer); err != nil {
		return nil, err
	}
	switch {
	case !a.params.pushed:
		return nil, errNotPush
	case !a.params.sized:
		return nil, errNoSize
	}
	// In front: a member that a later version of the engine writes itself counts instead.
	a.params.raw = slices.Concat([]byte(`{"transfer_id":"`+a.transfer+`",`), a.params.raw[1:])
	return a, nil
}

// Pins implements Releaser: measured with 400 and 404.
func (*pushAttempt) Pins(status int) bool { return status >= http.StatusBadRequest }

var (
	_ Dialect        = (*vllmPush)(nil)
	_ Noticer        = (*vllmPush)(nil)
	_ Unfinisher     = (*vllmPush)(nil)
	_ Pusher         = (*vllmPush)(nil)
	_ Stripper       = (*vllmPush)(nil)
	_ Attempt        = (*pushAttempt)(nil)
	_ HeaderSetter   = (*pushAttempt)(nil)
	_ Ranked         = (*pushAttempt)(nil)
	_ Releaser       = (*pushAttempt)(nil)
	_ Leased         = (*pushAttempt)(nil)
	_ UsageCorrector = (*pushAttempt)(nil)
	_ Sized          = (*pushAttempt)(nil)
)
