package sidecar

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// pushOffer is the answer of a prefill engine with vLLM's NixlPushConnector. Real engines are in e2e/connectors.
const pushOffer = `{"choices":[{"index":0,"text":"p","finish_reason":"length"}],"usage":{"prompt_tokens":100},"kv_transfer_params":` +
	`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"e","remote_request_id":"cmpl-a-0-8f1a458d",` +
	`"remote_host":"127.0.0.1","remote_port":5601,"tp_size":1,"remote_num_tokens":100,"transfer_mode":"push","remote_prefill_cached_tokens":0}}`

var pushes = set(func(c *Config) { c.Engine.Connector = "nixl-push" })

// Both legs have one X-Request-Id, which is not the client's, and the client gets its own back.
func TestPushRequestID(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		prefill, decode := startEngine(t, says(http.StatusOK, "application/json", pushOffer)), startEngine(t, q.answer())
		s := startRig(t, decode.addr, pushes)
		r := post(t, s.url+"/v1/completions", q.body, pd.HeaderPrefill, prefill.addr, "X-Request-Id", "mine")
		r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
		first, second := prefill.only(t).Header.Values("X-Request-Id"), decode.only(t).Header.Values("X-Request-Id")
		if len(first) != 1 || len(second) != 1 || first[0] != second[0] || first[0] == "mine" || !strings.HasPrefix(first[0], "mine-") {
			t.Errorf("the legs have the ids %q and %q", first, second)
		}
		if got := r.header.Get("X-Request-Id"); got != "mine" {
			t.Errorf("the client gets the id %q", got)
		}
	})
}

// A decode engine waits for ever for the KV cache of a prefill engine that has ended.
func TestPushPrefillEndsAfterItsAnswer(t *testing.T) {
	for _, stream := range []string{"true", "false"} {
		prefill := startEngine(t, says(http.StatusOK, "application/json", pushOffer))
		decode := startEngine(t, hangs, says(http.StatusOK, "application/json", `{"choices":[{"text":"alone"}]}`))
		s := startRig(t, decode.addr, pushes)
		go func() {
			<-prefill.probed // the first probe after its answer
			prefill.crash()
		}()
		r := post(t, s.url+"/v1/completions", `{"prompt":"x","stream":`+stream+`}`, pd.HeaderPrefill, prefill.addr)
		r.mustBe(t, http.StatusOK, "local;reason=transfer-failed;attempts=1;candidate=0")
		s.end()
	}
}

// Of what decode refuses it tells prefill nothing, so that the lease must end.
func TestPushRefused(t *testing.T) {
	prefill, decode := startEngine(t, says(http.StatusOK, "application/json", pushOffer)), startEngine(t, says(http.StatusBadRequest, "application/json", `{"error":{"message":"x"}}`))
	s := startRig(t, decode.addr, pushes)
	r := post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, prefill.addr)
	r.mustBe(t, http.StatusBadRequest, "remote;reason=external;attempts=1;candidate=0")
	s.end()
	if n := len(decode.releases()); n > 0 {
		t.Errorf("decode got %d releases, which do nothing", n)
	}
}

// A sidecar that is set to the other one of vLLM's NIXL connectors says so, and decode serves.
func TestWrongNIXLConnector(t *testing.T) {
	pulled := strings.Replace(pushOffer, `"push"`, `"pull"`, 1)
	for connector, answer := range map[string]string{"nixlv2": pushOffer, "nixl-push": pulled} {
		prefill, decode := startEngine(t, says(http.StatusOK, "application/json", answer)), startEngine(t, says(http.StatusOK, "application/json", `{"choices":[{"text":"alone"}]}`))
		s := startRig(t, decode.addr, set(func(c *Config) { c.Engine.Connector = connector }))
		r := post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, prefill.addr)
		r.mustBe(t, http.StatusOK, "local;reason=wrong-protocol;attempts=1;candidate=0")
		if leg := decode.only(t); strings.Contains(leg.body, "remote_block_ids") {
			t.Errorf("decode got %s", leg.body)
		}
		post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, prefill.addr).mustBe(t, http.StatusOK, "local;reason=wrong-protocol")
		prefill.only(t) // it computes no second prompt in vain
		s.mustCount(t, 1, "tandem_protocol_mismatch", "role", "prefill")
	}
}
