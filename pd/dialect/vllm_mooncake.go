package dialect

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// MooncakePort is the port of vLLM's bootstrap servers, unless VLLM_MOONCAKE_BOOTSTRAP_PORT says otherwise.
const MooncakePort = 8998

// vllmMooncake is the concurrent protocol of vLLM's MooncakeConnector: both legs name a transfer, decode asks the prefill
// engine for its blocks, and prefill sends them when it has computed the prompt. Prefill's answer says nothing about it, and
// neither engine notices that the other one has ended. Measured on vLLM 0.32.0.
type vllmMooncake struct {
	vllmEngine
	port int // of bootstrap servers
	ask  func(ctx context.Context, server pd.Target, path string) ([]byte, error)

	mu      sync.Mutex
	engines map[pd.Target]mooncakeEngines
}

// mooncakeEngines is what a bootstrap server says: the id of the engine of each rank.
type mooncakeEngines struct {
	ids   map[string]string
	asked time.Time
}

const (
	// mooncakeTrust is how long the answer of a bootstrap server is used. An engine that was started anew has another id, and a
	// decode engine waits nine minutes for the former one; but no engine starts in less time than this.
	mooncakeTrust = 5 * time.Second
	// mooncakeRank is the rank of an engine without data-parallel ranks. Anyone may register further ranks with a bootstrap
	// server, so a rank is never taken because it is there.
	mooncakeRank = "0"
)

func newVLLMMooncake(o Options) Dialect {
	return &vllmMooncake{port: o.MooncakePort, ask: o.AskBootstrap, engines: map[pd.Target]mooncakeEngines{}}
}

// Shape implements Dialect.
func (*vllmMooncake) Shape() Shape { return Concurrent }

// Attempt implements Dialect. A transfer that is named twice leaves blocks pinned for good, so each attempt has a new one.
func (d *vllmMooncake) Attempt(ctx context.Context, r *request.Request, prefill pd.Target) (Attempt, error) {
	server := pd.Target{Host: prefill.Host, Port: uint16(d.port)}
	ids, err := d.enginesOf(ctx, server)
	if err != nil {
		return nil, fmt.Errorf("asking the prefill pod's bootstrap server: %w", err)
	}
	a := &mooncakeAttempt{dialect: d, request: r, api: r.API, server: server, ids: ids, rank: mooncakeRank, transfer: "tandem-" + rand.Text(), cached: -1}
	if ids[a.rank] == "" {
		return nil, errNoRank
	}
	return a, nil
}

var errNoRank = errors.New("the prefill pod's bootstrap server does not name an engine of rank 0")

// enginesOf returns the ids of a prefill pod's engines.
func (d *vllmMooncake) enginesOf(ctx context.Context, server pd.Target) (map[string]string, error) {
	d.mu.Lock()
	known, ok := d.engines[server]
	d.mu.Unlock()
	if ok && time.Since(known.asked) < mooncakeTrust {
		return known.ids, nil
	}
	asked := time.Now()
	answer, err := d.ask(ctx, server, "/query")
	if err != nil {
		return nil, err
	}
	var ranks map[string]struct {
		EngineID string `json:"engine_id"`
	}
	if err := json.Unmarshal(answer, &ranks); err != nil {
		return nil, fmt.Errorf("reading its /query: %w", err)
	}
	ids := make(map[string]string, len(ranks))
	for rank, engine := range ranks {
		ids[rank] = engine.EngineID
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.engines) >= maxServers {
		clear(d.engines)
	}
	d.engines[server] = mooncakeEngines{ids, asked}
	return ids, nil
}

// forget has a bootstrap server asked again at the next attempt.
func (d *vllmMooncake) forget(server pd.Target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.engines, server)
}

// StripsHeader implements HeaderStripper: the rank is the attempt's.
func (*vllmMooncake) StripsHeader(name string) bool { return name == rankHeader }

// Controls implements Controller: what may end the prefill leg by its first token.
func (*vllmMooncake) Controls() []string { return limitControls }

// ContinuesFromIDs implements Continuer.
func (*vllmMooncake) ContinuesFromIDs() {}

// PushesAfterAnswer implements Pusher.
func (*vllmMooncake) PushesAfterAnswer() (decodeKeeps bool) { return true }

// mooncakeAttempt is an attempt, and its hand-off.
type mooncakeAttempt struct {
	dialect  *vllmMooncake
	request  *request.Request // only until decode has answered, which may be before prefill: its body is dropped then
	api      pd.API
	server   pd.Target
	ids      map[string]string
	rank     string
	transfer string
	cached   int64 // tokens of the prompt in prefill's cache; -1: not reported
}

// UseRanks implements Ranked. Decode's rank has no effect: each rank of a decode engine has its own port.
func (a *mooncakeAttempt) UseRanks(prefill, _ pd.Rank) {
	if number, ok := prefill.Number(); ok {
		if rank := strconv.Itoa(number); a.ids[rank] != "" {
			a.rank = rank
		}
	}
}

// SetHeader implements HeaderSetter. An engine without ranks takes rank 0.
func (a *mooncakeAttempt) SetHeader(role pd.Role, h http.Header) {
	if role == pd.RolePrefill && len(a.ids) > 1 {
		h[rankHeader] = []string{a.rank}
	}
}

// Prefill implements Attempt. An engine that ends a request by a stop token hands nothing over, and decode would wait for its
// time-out: so the leg ends by its limit only.
func (a *mooncakeAttempt) Prefill() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	OneToken(a.request, e)
	endByLimit(a.request, e)
	e.Set("kv_transfer_params", []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`+a.transfer+`"}`))
	return e.Payload()
}

// params returns decode's parameters. Without any of them the engine would hang, or end.
func (a *mooncakeAttempt) params() []byte {
	b := []byte(`{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":"` + a.transfer + `","remote_engine_id":`)
	b = appendJSON(b, a.ids[a.rank])
	b = append(b, `,"remote_bootstrap_addr":`...)
	b = appendJSON(b, "http://"+net.JoinHostPort(a.server.Host, strconv.Itoa(int(a.server.Port))))
	return append(b, '}')
}

func appendJSON(b []byte, text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string cannot fail
	}
	return append(b, quoted...)
}

// Decode implements Handoff.
func (a *mooncakeAttempt) Decode() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	e.Set("kv_transfer_params", a.params())
	return e.Payload()
}

// Handoff implements Rendezvous.
func (a *mooncakeAttempt) Handoff() Handoff { return a }

// Accept implements Attempt.
func (a *mooncakeAttempt) Accept(answer []byte) (Handoff, error) {
	h, err := a.accept(answer)
	if err != nil {
		a.dialect.forget(a.server)
		return nil, err
	}
	return h, nil
}

func (a *mooncakeAttempt) accept(answer []byte) (Handoff, error) {
	var s body.Scanner
	if err := s.Scan(completionTable, body.Limits{}, answer); err != nil {
		return nil, fmt.Errorf("reading the prefill answer: %w", err)
	}
	if m, ok := s.Find(aParams); ok && m.Kind != body.Null {
		return nil, errOtherConnector
	}
	switch {
	case !completed(answer, &s):
		return nil, ErrNoHandoff
	case !bytes.Contains(answer, limitEnd[a.api]):
		return nil, ErrEnded
	}
	told := *a // decode's leg may be reading a
	_, told.cached = usage(a.api, func(want int) int64 { return tokens(answer, &s, want) })
	return &told, nil
}

// errOtherConnector: Mooncake's engines answer without parameters.
var errOtherConnector = fmt.Errorf("%w: the prefill engine answers with a hand-off of another connector than Mooncake's", ErrWrongProtocol)

// Cached implements UsageCorrector. Decode reports all tokens of the prompt as cached.
func (a *mooncakeAttempt) Cached() (tokens int64, ok bool) { return a.cached, a.cached >= 0 }

// Discard implements Releaser.
func (a *mooncakeAttempt) Discard() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	if !a.request.Stream() {
		e.Set("stream", jsonTrue)
	}
	e.Set("kv_transfer_params", a.params())
	return e.Payload()
}

// Settle implements Releaser. Prefill was free in every try from 4 ms on; the rest is for a busy front end.
func (*mooncakeAttempt) Settle() time.Duration { return 250 * time.Millisecond }

// Pins implements Releaser. A model that is not there is looked up after the parameters were read, and other refusals may come
// before; a failed transfer releases nothing.
func (*mooncakeAttempt) Pins(status int) bool {
	return status >= http.StatusBadRequest && status != http.StatusNotFound
}

// ReleaseRequest implements RequestReleaser. It names a model that no engine serves: decode has prefill free the blocks
// (measured: after 0.1 s), and refuses with 404. Besides, the bootstrap server is asked again at the next attempt.
func (a *mooncakeAttempt) ReleaseRequest() (path string, b []byte) {
	a.dialect.forget(a.server)
	b = append([]byte(`{"model":"tandem-release","prompt":"x","max_tokens":1,"kv_transfer_params":`), a.params()...)
	return pd.APICompletions.Path(), append(b, '}')
}

// Released implements RequestReleaser: with any other status vLLM has not read the parameters.
func (*mooncakeAttempt) Released(status int) bool { return status == http.StatusNotFound }

// Tries implements RequestReleaser.
func (*mooncakeAttempt) Tries() (n int, pause time.Duration) { return 4, 25 * time.Millisecond }

var (
	_ Dialect         = (*vllmMooncake)(nil)
	_ Controller      = (*vllmMooncake)(nil)
	_ HeaderStripper  = (*vllmMooncake)(nil)
	_ Unfinisher      = (*vllmMooncake)(nil)
	_ Pusher          = (*vllmMooncake)(nil)
	_ Continuer       = (*vllmMooncake)(nil)
	_ Rendezvous      = (*mooncakeAttempt)(nil)
	_ Ranked          = (*mooncakeAttempt)(nil)
	_ HeaderSetter    = (*mooncakeAttempt)(nil)
	_ Releaser        = (*mooncakeAttempt)(nil)
	_ RequestReleaser = (*mooncakeAttempt)(nil)
	_ UsageCorrector  = (*mooncakeAttempt)(nil)
)
