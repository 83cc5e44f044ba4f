package sidecar

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

const (
	offloadingPrefilled = `{"choices":[{"index":0,"text":"p","finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":64}},"kv_transfer_params":null}`
	offloadingDecoded   = `{"choices":[{"index":0,"text":"right","finish_reason":"length"}],"usage":{"prompt_tokens":100,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":96}}}`
	offloadingPage      = "# TYPE vllm:prompt_tokens_by_source_total counter\n# TYPE vllm:kv_offload_tiering_read_bytes_total counter\n"
	nixlPage            = "# TYPE vllm:prompt_tokens_by_source_total counter\n# TYPE vllm:nixl_xfer_time_seconds histogram\n"
)

// offloadingPrefill is a prefill engine with a metrics page. Real engines are in e2e/connectors.
func offloadingPrefill(t *testing.T, page string, leg act) *fakeEngine {
	t.Helper()
	e := startEngine(t, leg)
	e.becomes(page)
	return e
}

// offloadingDecode is a decode engine that answers alone without parameters.
func offloadingDecode(t *testing.T, remote act) *fakeEngine {
	t.Helper()
	return startEngine(t, func(w http.ResponseWriter, r *asked) {
		if strings.Contains(r.body, "remote_prefiller") {
			remote(w, r)
			return
		}
		says(http.StatusOK, "application/json", `{"choices":[{"text":"alone"}]}`)(w, r)
	})
}

var offloads = set(func(c *Config) { c.Engine.Connector = "offloading" })

// The usage is prefill's, and what a client says of third pods reaches no engine.
func TestOffloading(t *testing.T) {
	prefill := offloadingPrefill(t, offloadingPage, says(http.StatusOK, "application/json", offloadingPrefilled))
	decode := offloadingDecode(t, says(http.StatusOK, "application/json", offloadingDecoded))
	s := startRig(t, decode.addr, offloads)
	r := post(t, s.url+"/v1/completions", `{"prompt":"x","kv_transfer_params":{"remote_kv_source":{"kv_request_id":"x","remote_host":"10.0.0.1","remote_port":9}}}`,
		pd.HeaderPrefill, prefill.addr, "X-Kv-Cache-Source-Host-Port", "10.0.0.1:9", "X-Data-Parallel-Rank", "7")
	r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
	if want := strings.Replace(offloadingDecoded, `"cached_tokens":96`, `"cached_tokens":64`, 1); r.body != want {
		t.Errorf("%s, want %s", r.body, want)
	}
	for _, leg := range append(prefill.requests(), decode.requests()...) {
		if strings.Contains(leg.body, "remote_kv_source") || leg.Header.Get("X-Kv-Cache-Source-Host-Port")+leg.Header.Get("X-Data-Parallel-Rank") != "" {
			t.Errorf("a leg has %v %s", leg.Header, leg.body)
		}
	}
}

// Decode would wait for half a minute for a prefill engine that fails, or that has another connector.
func TestOffloadingPrefillFails(t *testing.T) {
	for name, c := range map[string]struct {
		page string
		leg  act
		want string
	}{
		"error":             {offloadingPage, says(http.StatusInternalServerError, "application/json", `{"error":{"message":"x"}}`), "local;reason=prefill-failed;attempts=1;candidate=0"},
		"aborted":           {offloadingPage, says(http.StatusOK, "application/json", `{"choices":[{"finish_reason":"abort"}]}`), "local;reason=handoff-invalid;attempts=1;candidate=0"},
		"another connector": {nixlPage, says(http.StatusOK, "application/json", offloadingPrefilled), "local;reason=wrong-protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			decode := offloadingDecode(t, hangs)
			s := startRig(t, decode.addr, offloads)
			r := post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, offloadingPrefill(t, c.page, c.leg).addr)
			r.mustBe(t, http.StatusOK, c.want)
		})
	}
}

// A prefill engine that ends after its answer may keep decode waiting.
func TestOffloadingPrefillEndsAfterItsAnswer(t *testing.T) {
	prefill := offloadingPrefill(t, offloadingPage, says(http.StatusOK, "application/json", offloadingPrefilled))
	s := startRig(t, offloadingDecode(t, hangs).addr, offloads)
	go func() {
		<-prefill.probed // the first probe after its answer
		prefill.crash()
	}()
	r := post(t, s.url+"/v1/completions", `{"prompt":"x","stream":true}`, pd.HeaderPrefill, prefill.addr)
	r.mustBe(t, http.StatusOK, "local;reason=prefill-failed;attempts=1;candidate=0")
}
