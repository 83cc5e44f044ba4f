package sidecar

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strconv"
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

// tierOf has the sidecar take the port of a listener for that of all memories.
func tierOf(t *testing.T) (net.Listener, option) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	port := l.Addr().(*net.TCPAddr).Port
	return l, set(func(c *Config) { c.Prefill.P2PPort = port })
}

// pulled returns the memory from which a leg pulls, "" for none.
func pulled(t *testing.T, leg *asked) string {
	t.Helper()
	var b struct {
		Params map[string]struct {
			ID   string `json:"kv_request_id"`
			Host string `json:"remote_host"`
			Port int    `json:"remote_port"`
		} `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(leg.body), &b); err != nil {
		return "" // not an object of objects: NIXL's
	}
	s, ok := b.Params["remote_kv_source"]
	if !ok {
		return ""
	}
	if s.ID == "" {
		t.Errorf("%s pulls without a number", leg.body)
	}
	return net.JoinHostPort(s.Host, strconv.Itoa(s.Port))
}

// TestPull: the engine that computes the prompt, and no other, fetches blocks from the pod that the picker names.
func TestPull(t *testing.T) {
	prefill := offloadingPrefill(t, offloadingPage, says(http.StatusOK, "application/json", offloadingPrefilled))
	decode := offloadingDecode(t, says(http.StatusOK, "application/json", offloadingDecoded))
	l, port := tierOf(t)
	s := startRig(t, decode.addr, offloads, port)
	memory, source := l.Addr().String(), "127.0.0.1:8000"
	legsOf := func(e *fakeEngine) []string {
		var from []string
		for _, leg := range e.requests() {
			from = append(from, pulled(t, leg))
		}
		return from
	}
	post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, prefill.addr, pd.HeaderSource, source).mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
	if p, d := legsOf(prefill), legsOf(decode); !slices.Equal(p, []string{memory}) || !slices.Equal(d, []string{""}) {
		t.Errorf("split: prefill pulls from %q, decode from %q", p, d)
	}
	for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
		post(t, s.url+path, `{"prompt":"x","messages":[],"kv_transfer_params":{"remote_kv_source":"x"}}`, pd.HeaderSource, source).mustBe(t, http.StatusOK, "local;reason=unplanned")
		if d := legsOf(decode); d[len(d)-1] != memory {
			t.Errorf("%s: the local engine pulls from %q", path, d)
		}
	}
	s.mustCount(t, 3, "tandem_kv_pull_requests_total", "result", "asked")
	for name, header := range map[string]string{"not allowed": "10.0.0.1:8000", "two": source + "," + source, "malformed": "x"} {
		post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderSource, header).mustBe(t, http.StatusOK, "local;reason=unplanned")
		if d := legsOf(decode); d[len(d)-1] != "" {
			t.Errorf("%s: the local engine pulls from %q", name, d)
		}
	}
	post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, prefill.addr, pd.HeaderSource, prefill.addr).mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
	if p := legsOf(prefill); p[1] != "" {
		t.Errorf("prefill pulls from itself, %q", p)
	}
	s.mustCount(t, 1, "tandem_kv_pull_requests_total", "result", "not-needed")
}

// TestPullFromItself: a picker that is not up to date names the pod that it sends the request to.
func TestPullFromItself(t *testing.T) {
	decode := offloadingDecode(t, says(http.StatusOK, "application/json", offloadingDecoded))
	_, port := tierOf(t)
	s := startRig(t, decode.addr, offloads, port, set(func(c *Config) { c.Prefill.PodIP = "127.0.0.1" }))
	post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderSource, "127.0.0.1:8000").mustBe(t, http.StatusOK, "local;reason=unplanned")
	if from := pulled(t, decode.requests()[0]); from != "" {
		t.Errorf("the engine pulls from %q", from)
	}
	s.mustCount(t, 1, "tandem_kv_pull_requests_total", "result", "not-needed")
}

// TestPullFromTheDead: an engine that is sent to an address where none listens would lose its sessions.
func TestPullFromTheDead(t *testing.T) {
	decode := offloadingDecode(t, says(http.StatusOK, "application/json", offloadingDecoded))
	l, port := tierOf(t)
	l.Close()
	s := startRig(t, decode.addr, offloads, port)
	for range 3 {
		post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderSource, "127.0.0.1:8000").mustBe(t, http.StatusOK, "local;reason=unplanned")
	}
	for _, leg := range decode.requests() {
		if from := pulled(t, leg); from != "" {
			t.Errorf("the engine pulls from %q", from)
		}
	}
	s.mustCount(t, 3, "tandem_kv_pull_requests_total", "result", "unreachable")
}

// TestPullOfStrangers: a sender without the secret of the pool does not choose where an engine connects to.
func TestPullOfStrangers(t *testing.T) {
	decode := offloadingDecode(t, says(http.StatusOK, "application/json", offloadingDecoded))
	_, port := tierOf(t)
	s := startRig(t, decode.addr, offloads, port, set(func(c *Config) { c.Trust.Secrets = func() pd.Secrets { return pd.Secrets{"secret"} } }))
	for _, auth := range []string{"guess", "secret"} {
		post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderSource, "127.0.0.1:8000", pd.HeaderAuth, auth).mustBe(t, http.StatusOK, "local;reason=unplanned")
	}
	if legs := decode.requests(); pulled(t, legs[0]) != "" || pulled(t, legs[1]) == "" {
		t.Errorf("legs %s, %s", legs[0].body, legs[1].body)
	}
}

// TestPullByNIXL: engines of both connectors hand over by one, and pull by the other, if the user says so.
func TestPullByNIXL(t *testing.T) {
	for name, on := range map[string]bool{"on": true, "off": false} {
		t.Run(name, func(t *testing.T) {
			prefill := startEngine(t, offering(handoffParams))
			decode := startEngine(t, says(http.StatusOK, "application/json", offloadingDecoded))
			_, port := tierOf(t)
			s := startRig(t, decode.addr, port, set(func(c *Config) { c.Prefill.Pull = on }))
			post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, prefill.addr, pd.HeaderSource, "127.0.0.1:8000").mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
			leg, decoding := prefill.requests()[0].body, decode.requests()[0].body
			if strings.Contains(leg, `"remote_kv_source":{"kv_request_id":"tandem-`) != on || !strings.Contains(leg, `"do_remote_decode":true`) || strings.Contains(decoding, "remote_kv_source") {
				t.Errorf("legs %s, %s", leg, decoding)
			}
		})
	}
}
