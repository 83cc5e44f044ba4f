package dialect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// trtllmGenerationFirst is the concurrent protocol of trtllm-serve: both engines get the request at once, under one id. The generation
// engine finds the context engine by the endpoint that /server_info names, and the context engine begins when it has been asked. It
// answers before it has sent the KV cache and its first token. Taken from the source of TensorRT-LLM 1.2; not measured.
type trtllmGenerationFirst struct {
	trtllmEngine
	ask func(ctx context.Context, prefill pd.Target, path string) ([]byte, error)

	mu      sync.Mutex
	servers map[pd.Target]trtllmServer
}

// trtllmServer is what a context engine says of itself.
type trtllmServer struct {
	params []byte // members of disaggregated_params, each with a comma before it
	asked  time.Time
}

// trtllmTrust is how long that is used. An engine that was started anew may listen elsewhere, but none starts in less time.
const trtllmTrust = 5 * time.Second

func newTRTLLMGenerationFirst(o Options) Dialect {
	return &trtllmGenerationFirst{ask: o.Ask, servers: map[pd.Target]trtllmServer{}}
}

// Shape implements Dialect.
func (*trtllmGenerationFirst) Shape() Shape { return Concurrent }

// PushesAfterAnswer implements Pusher. A generation engine keeps the blocks of a cancelled leg until it has the KV cache, or until
// kv_transfer_timeout_ms.
func (*trtllmGenerationFirst) PushesAfterAnswer() (decodeKeeps bool) { return true }

// Attempt implements Dialect.
func (d *trtllmGenerationFirst) Attempt(ctx context.Context, r *request.Request, prefill pd.Target) (Attempt, error) {
	server, err := d.server(ctx, prefill)
	if err != nil {
		return nil, fmt.Errorf("asking the prefill pod where generation engines reach it: %w", err)
	}
	return &trtllmMeeting{dialect: d, request: r, api: r.API, asks: streamAsked(r), prefill: prefill, server: server, id: newTRTLLMID(), cached: -1}, nil
}

// server returns what a prefill pod says of itself.
func (d *trtllmGenerationFirst) server(ctx context.Context, prefill pd.Target) (trtllmServer, error) {
	d.mu.Lock()
	known, ok := d.servers[prefill]
	d.mu.Unlock()
	if ok && time.Since(known.asked) < trtllmTrust {
		return known, nil
	}
	asked := time.Now()
	answer, err := d.ask(ctx, prefill, "/server_info")
	if err != nil {
		return trtllmServer{}, err
	}
	s := trtllmServer{asked: asked}
	if s.params, err = readTRTLLMServer(answer); err != nil {
		return trtllmServer{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.servers) >= maxServers {
		clear(d.servers)
	}
	d.servers[prefill] = s
	return s, nil
}

// forget has a prefill pod asked again at the next attempt.
func (d *trtllmGenerationFirst) forget(prefill pd.Target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.servers, prefill)
}

var errNoEndpoint = errors.New("its /server_info names no ctx_info_endpoint: generation first needs cache_transceiver_config with transceiver_runtime PYTHON")

// readTRTLLMServer reads a /server_info: its members of disaggregated_params, as they go into a generation leg. Versions differ in
// which there are, so all are taken, except those that the leg has itself.
func readTRTLLMServer(answer []byte) ([]byte, error) {
	var info struct {
		Params map[string]json.RawMessage `json:"disaggregated_params"`
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return nil, fmt.Errorf("reading its /server_info: %w", err)
	}
	var endpoints []json.RawMessage
	if json.Unmarshal(info.Params["ctx_info_endpoint"], &endpoints) == nil && len(endpoints) == 1 {
		info.Params["ctx_info_endpoint"] = endpoints[0] // generation legs name one
	}
	var endpoint string
	if json.Unmarshal(info.Params["ctx_info_endpoint"], &endpoint) != nil || !strings.HasPrefix(endpoint, "tcp://") {
		return nil, errNoEndpoint
	}
	for _, own := range []string{"request_type", "ctx_request_id", "disagg_request_id", "schedule_style"} {
		delete(info.Params, own)
	}
	var params []byte
	for _, name := range slices.Sorted(maps.Keys(info.Params)) {
		params = append(append(append(append(params, ','), appendJSON(nil, name)...), ':'), info.Params[name]...)
	}
	return params, nil
}

// trtllmMeeting is an attempt, and its hand-off.
type trtllmMeeting struct {
	dialect *trtllmGenerationFirst
	request *request.Request // only until decode has answered, which may be before prefill: its body is dropped then
	api     pd.API
	asks    streaming
	prefill pd.Target
	server  trtllmServer
	id      string // of the request at both engines
	cached  int64  // tokens of the prompt in the context engine's cache; -1: not known
}

// Prefill implements Attempt.
func (a *trtllmMeeting) Prefill() (request.Payload, error) {
	return trtllmPrefill(a.request, `{"request_type":"context_only","disagg_request_id":`+a.id+`,"schedule_style":1}`)
}

// params returns the parameters of the generation leg.
func (a *trtllmMeeting) params() []byte {
	b := []byte(`{"request_type":"generation_only","ctx_request_id":` + a.id + `,"disagg_request_id":` + a.id + `,"schedule_style":1`)
	return append(append(b, a.server.params...), '}')
}

// Handoff implements Rendezvous.
func (a *trtllmMeeting) Handoff() Handoff { return a }

// Decode implements Handoff.
func (a *trtllmMeeting) Decode() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	e.Set(trtllmParams, a.params())
	return e.Payload()
}

// Accept implements Attempt. A context engine that ends a request by its first token sends nothing, and the generation engine would
// wait for its time-out.
func (a *trtllmMeeting) Accept(answer []byte) (Handoff, error) {
	said, err := readTRTLLM(answer)
	if err == nil && !said.goesOn() {
		return said.finished(a.api, a.asks)
	}
	if err == nil {
		_, err = said.generation(a.id)
	}
	if err != nil {
		a.dialect.forget(a.prefill)
		return nil, err
	}
	a.cached = said.cached
	return a, nil
}

// Cached implements UsageCorrector: the generation engine counts its own cache.
func (a *trtllmMeeting) Cached() (tokens int64, ok bool) { return a.cached, a.cached >= 0 }

var (
	_ Dialect        = (*trtllmGenerationFirst)(nil)
	_ Pusher         = (*trtllmGenerationFirst)(nil)
	_ Splitter       = (*trtllmGenerationFirst)(nil)
	_ Rendezvous     = (*trtllmMeeting)(nil)
	_ UsageCorrector = (*trtllmMeeting)(nil)
)
