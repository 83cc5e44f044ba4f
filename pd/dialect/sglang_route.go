package dialect

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// A decode engine asks the bootstrap server of a prefill engine once where each rank listens, and forgets the answer when the bootstrap
// server has missed two heartbeats, at least ten seconds, or when a request has waited for its KV cache until
// SGLANG_DISAGGREGATION_WAITING_TIMEOUT. A prefill engine that is started anew within those ten seconds listens at other ports: it never
// hears of the requests that decode has, and every request waits until both give up. Both say meanwhile that they are healthy. Aborted
// requests do not change that, so a coordinator whose own time-out is shorter never gets a request through again.

// startTrust is how long the answer of a prefill pod is used to tell that it was started anew.
const startTrust = 2 * time.Second

// sglangLoads is the part of /v1/loads that tells which requests wait for their other leg.
type sglangLoads struct {
	Loads []struct {
		Disaggregation struct {
			Bootstrap int `json:"prefill_bootstrap_queue_reqs"` // at prefill, for decode to say that it has pages
			Transfer  int `json:"decode_transfer_queue_reqs"`   // at decode, which has pages, for the KV cache
		} `json:"disaggregation"`
	} `json:"loads"`
}

// Misrouted implements Rerouter: the process is not the one that served this decode engine before, requests wait at prefill for decode,
// and requests wait at decode for prefill. A prefill engine that is only slow has heard of decode.
func (a *sglangAttempt) Misrouted(ctx context.Context, get func(ctx context.Context, role pd.Role, path string) ([]byte, error)) (bool, error) {
	d := a.dialect
	if restarted, err := d.restarted(ctx, a.prefill, a.server); err != nil || !restarted {
		return false, err
	}
	waiting := map[pd.Role]int{}
	for _, role := range []pd.Role{pd.RolePrefill, pd.RoleDecode} {
		answer, err := get(ctx, role, "/v1/loads")
		if err != nil {
			return false, err
		}
		var l sglangLoads
		if err := json.Unmarshal(answer, &l); err != nil {
			return false, fmt.Errorf("reading the /v1/loads of the %s engine: %w", role, err)
		}
		for _, rank := range l.Loads {
			waiting[role] += map[pd.Role]int{pd.RolePrefill: rank.Disaggregation.Bootstrap, pd.RoleDecode: rank.Disaggregation.Transfer}[role]
		}
	}
	return waiting[pd.RolePrefill] > 0 && waiting[pd.RoleDecode] > 0, nil
}

// restarted reports whether a prefill pod was started anew since its last hand-off. server is what an attempt knows of it.
func (d *sglang) restarted(ctx context.Context, prefill pd.Target, server sglangServer) (bool, error) {
	d.mu.Lock()
	proved := d.proved[prefill]
	d.mu.Unlock()
	switch {
	case proved == "":
		return false, nil
	case server.started != "" && server.started != proved:
		return true, nil
	case time.Since(server.asked) < startTrust:
		return false, nil
	}
	d.forget(prefill, startTrust)
	server, err := d.server(ctx, prefill)
	return err == nil && server.started != "" && server.started != proved, err
}

// prove notes that a process of a prefill pod has handed a request over.
func (d *sglang) prove(prefill pd.Target, started string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.proved) >= maxServers {
		clear(d.proved)
	}
	d.proved[prefill] = started
}

// Forget implements Rerouter: the leg is a stream, whose end an engine notices at once.
func (a *sglangAttempt) Forget() (path string, b []byte) {
	rank := ""
	if number, ok := a.decode.Number(); ok {
		rank = fmt.Sprintf(`,"routed_dp_rank":%d`, number)
	}
	if number, ok := a.rank.Number(); ok {
		rank += fmt.Sprintf(`,"disagg_prefill_dp_rank":%d`, number)
	}
	return pd.APISGLang.Path(), fmt.Appendf(nil, `{"text":"a","stream":true,"sampling_params":{"max_new_tokens":1},"rid":"%016x%016x","bootstrap_host":%s,"bootstrap_port":%d,"bootstrap_room":%d%s}`,
		rand.Uint64(), rand.Uint64(), strconv.Quote(a.prefill.Host), a.server.port, 1+rand.Uint64N(maxRoom), rank)
}
