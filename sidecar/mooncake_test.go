package sidecar

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// mooncakePair are the engines of a pair as the sidecar sees them, with prefill's bootstrap server. Decode answers a leg with parameters
// when prefill has answered the same transfer with 200, and waits for ever otherwise. Real engines are in e2e/connectors.
type mooncakePair struct {
	prefill, decode *fakeEngine
	bootstrap       *fakeEngine

	mu        sync.Mutex
	transfers map[string]chan struct{} // closed when prefill has the KV cache of one
}

const (
	mooncakePrefilled = `{"choices":[{"index":0,"text":"p","finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":64}}}`
	mooncakeDecoded   = `{"choices":[{"index":0,"text":"right","finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":100}}}`
)

// startMooncakePair starts a pair. prefill and decode answer their legs; nil is a right answer.
func startMooncakePair(t *testing.T, prefill, decode act) *mooncakePair {
	t.Helper()
	p := &mooncakePair{transfers: map[string]chan struct{}{}}
	if prefill == nil {
		prefill = says(http.StatusOK, "application/json", mooncakePrefilled)
	}
	if decode == nil {
		decode = says(http.StatusOK, "application/json", mooncakeDecoded)
	}
	p.bootstrap = startEngine(t, says(http.StatusOK, "application/json", `{"0":{"engine_id":"e-1","worker_addr":{"0":{"0":"tcp://127.0.0.1:1"}}}}`))
	p.prefill = startEngine(t, func(w http.ResponseWriter, r *asked) {
		prefill(w, r)
		close(p.transfer(t, r))
	})
	p.decode = startEngine(t, func(w http.ResponseWriter, r *asked) {
		if !strings.Contains(r.body, "kv_transfer_params") {
			says(http.StatusOK, "application/json", `{"choices":[{"text":"alone"}]}`)(w, r)
			return
		}
		select {
		case <-p.transfer(t, r):
			decode(w, r)
		case <-r.Context().Done():
		}
	})
	return p
}

func (p *mooncakePair) transfer(t *testing.T, r *asked) chan struct{} {
	var leg struct {
		Params struct {
			ID string `json:"transfer_id"`
		} `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(r.body), &leg); err != nil || leg.Params.ID == "" {
		t.Errorf("a leg without a transfer_id reached an engine: %s", r.body)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.transfers[leg.Params.ID] == nil {
		p.transfers[leg.Params.ID] = make(chan struct{})
	}
	return p.transfers[leg.Params.ID]
}

// sidecar starts one in front of the pair.
func (p *mooncakePair) sidecar(t *testing.T, options ...option) *rig {
	t.Helper()
	_, port, err := net.SplitHostPort(p.bootstrap.addr)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	speaks := set(func(c *Config) { c.Engine.Connector, c.Prefill.MooncakePort = "mooncake", number })
	return startRig(t, p.decode.addr, append(options, speaks)...)
}

// A client's own parameters reach no engine, and the usage is prefill's.
func TestMooncake(t *testing.T) {
	p := startMooncakePair(t, nil, nil)
	s := p.sidecar(t)
	r := post(t, s.url+"/v1/completions", `{"prompt":"x","kv_transfer_params":{"do_remote_decode":true}}`, pd.HeaderPrefill, p.prefill.addr, "X-Data-Parallel-Rank", "7")
	r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
	if want := strings.Replace(mooncakeDecoded, `"cached_tokens":100`, `"cached_tokens":64`, 1); r.body != want {
		t.Errorf("%s, want %s", r.body, want)
	}
	for _, e := range []*fakeEngine{p.prefill, p.decode} {
		if leg := e.only(t); leg.Header.Get("X-Data-Parallel-Rank") != "" {
			t.Errorf("the client has named a rank: %v", leg.Header)
		}
	}
	s.end()
	if n := len(p.decode.releases()); n > 0 {
		t.Errorf("%d releases of a hand-off that decode has read", n)
	}
}

// Decode would wait for minutes. Another candidate gets another transfer, and the last resort is decode itself.
func TestMooncakePrefillFails(t *testing.T) {
	for name, prefill := range map[string]act{
		"error":   says(http.StatusInternalServerError, "application/json", `{"error":{"message":"x"}}`),
		"aborted": says(http.StatusOK, "application/json", `{"choices":[{"finish_reason":"abort"}]}`),
		"other":   says(http.StatusOK, "application/json", `{"choices":[{"finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true}}`),
	} {
		t.Run(name, func(t *testing.T) {
			p := startMooncakePair(t, nil, nil)
			failing := startEngine(t, prefill)
			s := p.sidecar(t)
			r := post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, failing.addr+","+p.prefill.addr)
			r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=2;candidate=1")
			r = post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, failing.addr)
			if r.body != `{"choices":[{"text":"alone"}]}` {
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
}

// A prefill engine that ends a request with its first token drops the KV cache, and so does any other.
func TestMooncakeEndsWithItsFirstToken(t *testing.T) {
	p := startMooncakePair(t, says(http.StatusOK, "application/json", `{"stop_reason":"end_turn","content":[]}`), nil)
	another := startEngine(t)
	s := p.sidecar(t)
	r := post(t, s.url+"/v1/messages", `{"messages":[],"max_tokens":9}`, pd.HeaderPrefill, p.prefill.addr+","+another.addr)
	r.mustBe(t, http.StatusOK, "local;reason=handoff-invalid;attempts=1;candidate=0")
	if n := len(another.requests()); n > 0 {
		t.Errorf("another prefill pod was asked %d times", n)
	}
}

// A prefill pod that ends after its answer leaves decode waiting, which the sidecar notices.
func TestMooncakePrefillEndsAfterItsAnswer(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"false", "true"} {
		p := startMooncakePair(t, nil, nil)
		gone := startEngine(t, says(http.StatusOK, "application/json", mooncakePrefilled))
		s := p.sidecar(t)
		go func() {
			<-gone.probed // the first probe after its answer
			gone.crash()
		}()
		r := post(t, s.url+"/v1/completions", `{"prompt":"x","stream":`+stream+`}`, pd.HeaderPrefill, gone.addr)
		r.mustBe(t, http.StatusOK, "local;reason=prefill-failed;attempts=1;candidate=0")
		s.end()
	}
}

// What decode does not read it releases, by a request that it refuses.
func TestMooncakeReleases(t *testing.T) {
	for name, decode := range map[string]act{
		"refused": says(http.StatusBadRequest, "application/json", `{"error":{"message":"x"}}`),
		"failed":  says(http.StatusInternalServerError, "application/json", `{"error":{"message":"x"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			p := startMooncakePair(t, nil, decode)
			s := p.sidecar(t)
			post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, p.prefill.addr)
			s.end()
			released, leg := p.decode.releases(), p.decode.requests()[0]
			if len(released) != 1 || p.transfer(t, released[0]) != p.transfer(t, leg) || !strings.Contains(released[0].body, `"remote_engine_id":"e-1"`) {
				t.Errorf("releases %v", released)
			}
			if n := len(p.bootstrap.requests()); n != 1 {
				t.Errorf("the bootstrap server was asked %d times", n)
			}
		})
	}
}

// Without its bootstrap server a prefill pod cannot be used, and no leg is sent.
func TestMooncakeWithoutBootstrapServer(t *testing.T) {
	p := startMooncakePair(t, nil, nil)
	p.bootstrap.crash()
	s := p.sidecar(t)
	r := post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, p.prefill.addr)
	r.mustBe(t, http.StatusOK, "local;reason=prefill-failed")
	if n := len(p.prefill.requests()); n > 0 {
		t.Errorf("prefill got %d legs", n)
	}
}
