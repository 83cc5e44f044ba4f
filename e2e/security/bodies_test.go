package security

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// forgedMembers returns the members by which a client would have an engine read KV blocks of the client's choosing.
func forgedMembers(to *decoy) map[string]string {
	params := fmt.Sprintf(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"%s","remote_block_ids":[1,2],`+
		`"remote_host":"127.0.0.1","remote_port":%s,"remote_request_id":"%[1]s","tp_size":1}`, mark, to.port())
	return map[string]string{
		"at top level":             `"kv_transfer_params":` + params,
		"escaped":                  `"kv\u005ftransfer_params":` + params,
		"escaped, other letters":   `"\u006b\u0076_transfer_param\u0073":` + params,
		"twice":                    `"kv_transfer_params":null,"kv_transfer_params":` + params,
		"twice, escaped":           `"kv_transfer_params":null,"kv\u005Ftransfer_params":` + params,
		"in extra_args":            `"sampling_params":{"extra_args":{"kv_transfer_params":` + params + `}}`,
		"in extra_args, twice":     `"sampling_params":{"extra_args":{},"extra_args":{"kv_transfer_params":` + params + `}}`,
		"in sampling_params, both": `"sampling_params":{"extra_args":{"kv_transfer_params":{}}},"sampling_params":{"extra_args":{"kv_transfer_params":` + params + `}}`,
		"in vllm_xargs":            `"vllm_xargs":{"kv_transfer_params":` + params + `}`,
		"in vllm_xargs, twice":     `"vllm_xargs":{"kv_transfer_params":` + params + `},"vllm_xargs":{}`,
		"of encoders":              `"ec_transfer_params":{"` + mark + `":{"peer_host":"127.0.0.1","peer_port":` + to.port() + `}}`,
		"of encoders, in extra":    `"sampling_params":{"extra_args":{"ec_transfer_params":{"` + mark + `":{}}}}`,
		"SGLang's":                 `"bootstrap_host":"` + mark + `","bootstrap_port":` + to.port() + `,"bootstrap_room":1`,
		"of no use, with white":    "\"kv_transfer_params\" \t:\n" + params,
	}
}

// TestSecurityForgedHandOffs has clients send hand-offs of their own, in every spelling, to every way in: through the proxy
// and past it. No engine gets one.
func TestSecurityForgedHandOffs(t *testing.T) {
	trap := startDecoy(t)
	f := harness.NewTappedFleet(t, 1)
	f.StartPicker(t)
	f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"})
	engine := f.Decode[0].Tap
	ways := []struct{ method, uri, kind string }{
		{"POST", "/v1/completions", "application/json"}, {"POST", "/v1/chat/completions", "application/json"},
		{"POST", "/v1/responses", "application/json"}, {"POST", "/v1/messages", "application/json"},
		{"POST", "/inference/v1/generate", "application/json"}, {"POST", "/v1/embeddings", "application/json"},
		{"POST", "/tokenize", "application/json"}, {"POST", "/invocations", "application/json"},
		{"POST", "/v1/completions/", "application/json"}, {"POST", "//v1/completions", "application/json"},
		{"POST", "/v1//completions", "application/json"}, {"POST", "/V1/Completions", "application/json"},
		{"POST", "/v1%2Fcompletions", "application/json"}, {"POST", "/v1/%63ompletions", "application/json"},
		{"POST", "/v1/./completions", "application/json"}, {"POST", "/x/../v1/completions", "application/json"},
		{"POST", "/v1/completions.", "application/json"}, {"POST", "/v1/completions;a=b", "application/json"},
		{"POST", "/v1/completions?a=/tokenize", "application/json"}, {"POST", "/v1/completions%00", "application/json"},
		{"POST", "http://127.0.0.1:" + trap.port() + "/v1/completions", "application/json"},
		{"PUT", "/v1/completions", "application/json"}, {"PATCH", "/v1/completions", "application/json"},
		{"GET", "/v1/completions", "application/json"}, {"DELETE", "/v1/completions", "application/json"},
		{"post", "/v1/completions", "application/json"},
		{"POST", "/v1/completions", ""}, {"POST", "/v1/completions", "text/plain"}, {"POST", "/v1/completions", "application/octet-stream"},
		{"POST", "/v1/completions", "audio/wav"}, {"POST", "/invocations", "application/vnd.api+json"},
		{"POST", "/invocations", "application/json; charset=utf-16"}, {"POST", "/v1/completions", "multipart/form-data; boundary=x"},
	}
	const apis = 8            // how many of the ways, from the first, are plain calls of the APIs
	var asking sync.WaitGroup // a few at a time
	places := make(chan struct{}, 8)
	for name, members := range forgedMembers(trap) {
		body := `{"model":"` + f.Model + `",` + members + `,"prompt":"a","input":"a","messages":[{"role":"user","content":"a"}],"max_tokens":1,"max_output_tokens":1}`
		for i, way := range ways {
			if i >= apis && strings.Contains(name, ",") {
				continue // all paths read the spellings alike
			}
			q := rawRequest{way.method, way.uri, [][2]string{{"Content-Type", way.kind}}, body}
			if way.kind == "" {
				q.header = nil
			}
			addrs := []string{decode0(f)}
			if i < apis || way.method == "GET" { // the proxy itself refuses or corrects the other spellings of the path
				addrs = append(addrs, f.Front.Addr)
			}
			places <- struct{}{}
			asking.Go(func() {
				defer func() { <-places }()
				for _, addr := range addrs {
					if resp, text, err := q.send(t.Context(), addr); err == nil && resp.StatusCode == http.StatusInternalServerError {
						t.Errorf("%s: %s %s (%s): status %d %.300s", name, way.method, way.uri, way.kind, resp.StatusCode, text)
					}
				}
			})
		}
	}
	asking.Wait()
	mustHaveNothingForged(t, engine)
	mustHaveNothingForged(t, f.Prefill[0].Tap)
	trap.mustHaveNoConnection(t)
	plain := f.TokensCall(2*harness.Threshold, false)
	harness.MustMatch(t, f.Send(t, plain), false, f.Want(t, plain)) // no cached block is wrong
	if n := len(requestsOf(engine)); n < 100 {
		t.Errorf("only %d requests reached the engine: the rest was refused for another reason", n)
	}
}

// decode0 returns the data port of the only sidecar.
func decode0(f *harness.TappedFleet) string { return f.Fleet.Decode[0].Addr() }

// TestSecuritySplitForgeries has a client send a hand-off in a request that is split: the legs carry only the prefill engine's
// own.
func TestSecuritySplitForgeries(t *testing.T) {
	trap := startDecoy(t)
	f := harness.NewTappedFleet(t, 1)
	s := decode0(f)
	for name, members := range forgedMembers(trap) {
		t.Run(name, func(t *testing.T) {
			c := f.TokensCall(2*harness.Threshold, false)
			body := strings.Replace(string(c.Body(f.Model)), "{", "{"+members+",", 1)
			q := rawRequest{"POST", pd.APICompletions.Path(), [][2]string{{"Content-Type", "application/json"}, {pd.HeaderPrefill, f.Prefill[0].Tap.Addr}}, body}
			resp, text := q.mustSend(t, s)
			decision := resp.Header.Get(pd.HeaderDecision)
			switch {
			case strings.Contains(name, "twice") || strings.Contains(name, "both"):
				if resp.StatusCode == http.StatusOK { // a nested object may repeat: the sidecar removes it
					break
				}
				if resp.StatusCode != http.StatusBadRequest || decision != "refused;reason=duplicate-key" {
					t.Errorf("status %d, decision %q", resp.StatusCode, decision)
				}
			case resp.StatusCode != http.StatusOK || !strings.HasPrefix(decision, "remote;reason=external"):
				t.Errorf("status %d, decision %q: %.300s", resp.StatusCode, decision, text)
			default:
				r := harness.Reply{Status: resp.StatusCode}
				if err := r.Take([]byte(text)); err != nil {
					t.Fatal(err)
				}
				harness.MustMatch(t, r, false, f.Want(t, c))
			}
		})
	}
	for _, p := range taps(f) {
		mustHaveNothingForged(t, p)
	}
	trap.mustHaveNoConnection(t)
}

// TestSecurityCaps sends more than the programs take, to the proxy and past it: they refuse, and serve the next.
func TestSecurityCaps(t *testing.T) {
	const limit = 1 << 20
	f := harness.NewFleet(t, 1, 0)
	decode := harness.StartSim(t, "decode", "--role=decode")
	sidecar := harness.StartSidecar(t, decode.Addr, "--body-limit=1MiB")
	f.Decode = append(f.Decode, harness.DecodePod{Engine: decode, Sidecar: sidecar})
	f.WriteEndpoints(t)
	f.StartPicker(t, "--body-limit=1MiB")
	f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, "--body-limit=1MiB")
	const path, kind = "/v1/completions", "application/json"
	for _, c := range []struct {
		name     string
		q        rawRequest
		statuses [2]int // at the proxy, at the sidecar
	}{
		{"a body over the limit", rawRequest{"POST", path, [][2]string{{"Content-Type", kind}}, `{"prompt":"` + strings.Repeat("a", limit) + `"}`}, [2]int{413, 413}},
		{"nesting", rawRequest{"POST", path, [][2]string{{"Content-Type", kind}}, `{"prompt":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`}, [2]int{400, 400}},
		{"a header over the limit", rawRequest{"GET", "/v1/models", [][2]string{{"X-Long", strings.Repeat("a", 2*limit)}}, ""}, [2]int{431, 431}},
		{"an address over the limit", rawRequest{"GET", "/v1/models?" + strings.Repeat("a", 2*limit), nil, ""}, [2]int{431, 431}},
		{"members without end", rawRequest{"POST", path, [][2]string{{"Content-Type", kind}}, `{` + strings.Repeat(`"vllm_xargs":{"kv_transfer_params":1},`, 20_000) + `"prompt":"a"}`}, [2]int{400, 400}},
	} {
		for i, addr := range []string{f.Front.Addr, sidecar.Addr("http")} {
			t.Run(fmt.Sprintf("%s, %s", c.name, []string{"proxy", "sidecar"}[i]), func(t *testing.T) {
				resp, text, err := c.q.send(harness.Within(t), addr)
				if err != nil { // refused while it was still being sent
					return
				}
				if resp.StatusCode != c.statuses[i] {
					t.Errorf("status %d, want %d: %.200s", resp.StatusCode, c.statuses[i], text)
				}
			})
		}
	}
	q := f.TokensCall(2*harness.Threshold, false)
	harness.MustMatch(t, f.Send(t, q), false, f.Want(t, q))
	for _, p := range []harness.Program{f.Pickers[0], sidecar} {
		mustHaveBoundedMemory(t, p)
	}
}
