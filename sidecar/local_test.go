package sidecar

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/tandem-serving/tandem/pd"
)

// A local request is passed on while it arrives: the engine has its beginning before the client has sent its end.
func TestLocalIsNotBuffered(t *testing.T) {
	for _, path := range []string{completionsPath, "/v1/rerank"} {
		t.Run(path, func(t *testing.T) {
			beginning := make(chan string, 1)
			whole := make(chan string, 1)
			first := `{"prompt":"` + strings.Repeat("a", 40<<10)
			engine := httptest.NewServer(silent(func(_ http.ResponseWriter, r *http.Request) {
				b := make([]byte, 30<<10)
				if _, err := io.ReadFull(r.Body, b); err != nil {
					t.Error(err)
				}
				beginning <- string(b)
				rest, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				whole <- string(b) + string(rest)
			}))
			defer engine.Close()
			s := startRig(t, engine.Listener.Addr().String())
			body, send := io.Pipe()
			ended := make(chan error, 1)
			go func() {
				resp, err := open(t, within(t), http.MethodPost, s.url+path, body)
				if err == nil {
					err = resp.Body.Close()
				}
				ended <- err
			}()
			if _, err := io.WriteString(send, first); err != nil {
				t.Fatal(err)
			}
			if got := wait(t, beginning, "the engine to read"); !strings.HasPrefix(first, got) {
				t.Error("the beginning was changed")
			}
			if _, err := io.WriteString(send, `b"}`); err != nil {
				t.Fatal(err)
			}
			send.Close()
			if got := wait(t, whole, "the rest"); got != first+`b"}` {
				t.Error("the rest was changed")
			}
			if err := wait(t, ended, "the answer"); err != nil {
				t.Error(err)
			}
		})
	}
}

// forms are the spellings by which a client's own hand-off could reach an engine.
var forms = map[string]string{
	"top":          `{"model":"m","kv_transfer_params":%s,"prompt":"x","messages":[]}`,
	"first":        `{"kv_transfer_params":%s,"model":"m","prompt":"x","messages":[]}`,
	"last":         `{"model":"m","prompt":"x","messages":[] , "kv_transfer_params" : %s }`,
	"alone":        `{"kv_transfer_params":%s}`,
	"escaped":      `{"model":"m","prompt":"x","messages":[],"kv\u005ftransfer_params":%s}`,
	"all escaped":  `{"model":"m","prompt":"x","messages":[],"\u006bv_transfer_param\u0073":%s}`,
	"extra args":   `{"model":"m","prompt":"x","messages":[],"sampling_params":{"extra_args":{"a":1,"kv_transfer_params":%s}}}`,
	"xargs":        `{"model":"m","prompt":"x","messages":[],"vllm_xargs":{"kv_transfer_params":%s,"a":1}}`,
	"marked":       "\xef\xbb\xbf" + `{"model":"m","prompt":"x","messages":[],"kv_transfer_params":%s}`,
	"next to NaN":  `{"model":"m","prompt":"x","messages":[],"y":NaN,"kv_transfer_params":%s}`,
	"many of them": `{"kv_transfer_params":%[1]s,"model":"m","prompt":"x","messages":[],"vllm_xargs":{"kv_transfer_params":%[1]s},"sampling_params":{"extra_args":{"kv_transfer_params":%[1]s}}}`,
}

// forged reports whether a body still has a hand-off where an engine would read it.
func forged(t *testing.T, body string) bool {
	t.Helper()
	body = strings.ReplaceAll(strings.TrimPrefix(body, "\xef\xbb\xbf"), "NaN", "null")
	var b map[string]any
	if err := json.Unmarshal([]byte(body), &b); err != nil {
		t.Errorf("%s: %v", body, err)
	}
	has := func(v any) bool { m, _ := v.(map[string]any); _, ok := m["kv_transfer_params"]; return ok }
	sampling, _ := b["sampling_params"].(map[string]any)
	return has(b) || has(b["vllm_xargs"]) || has(sampling["extra_args"])
}

// A client's own hand-off members reach no engine, on any path.
func TestClientParamsAreRemoved(t *testing.T) {
	paths := []string{chatPath, completionsPath, "/v1/responses", "/v1/messages", "/inference/v1/generate", "/v1/embeddings",
		"/invocations", "/v1/chat/completions/", "/v1%2Fchat/completions", "/v1/chat/complet%69ons", "//v1/completions", "/anything"}
	engine, prefill := startEngine(t, ask(false).answer()), startEngine(t, says(500, "text/plain", ""))
	s := startRig(t, engine.addr, set(func(c *Config) { c.Fallback.Burst = 1000 }))
	n := 0
	for name, form := range forms {
		for _, path := range paths {
			for _, header := range [][]string{nil, {pd.HeaderPrefill, prefill.addr}} {
				sent := fmt.Sprintf(form, handoffParams)
				if got := post(t, s.url+path, sent, header...); got.status != 200 {
					t.Errorf("%s on %s: %d %s", name, path, got.status, got.body)
					continue
				}
				n++
				seen := engine.requests()
				if len(seen) != n {
					t.Fatalf("%s on %s: the engine was asked %d times, want %d", name, path, len(seen), n)
				}
				got := seen[n-1]
				if forged(t, got.body) {
					t.Errorf("%s on %s: the engine got %s", name, path, got.body)
				}
				if got.ContentLength != int64(len(got.body)) || header == nil && len(got.body) != len(sent) {
					t.Errorf("%s on %s: Content-Length %d, %d bytes of %d", name, path, got.ContentLength, len(got.body), len(sent))
				}
			}
		}
	}
	for _, leg := range prefill.requests() {
		if strings.Contains(leg.body, "remote_host\": \"10.9") {
			t.Errorf("prefill got %s", leg.body)
		}
	}
}

// Both legs carry hand-off parameters, but never the client's.
func TestClientParamsAreReplaced(t *testing.T) {
	prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, ask(false).answer())
	s := startRig(t, decode.addr)
	post(t, s.url+completionsPath, `{"kv_transfer_params":{"remote_host":"evil"},"model":"m","prompt":"x","vllm_xargs":{"kv_transfer_params":{"remote_host":"evil"}}}`,
		pd.HeaderPrefill, prefill.addr).mustBe(t, 200, servedRemote)
	prefill.mustSee(t, `{"kv_transfer_params":`+primed+`,"model":"m","prompt":"x","vllm_xargs":{},"max_tokens":1}`)
	decode.mustSee(t, `{"kv_transfer_params":`+handoffParams+`,"model":"m","prompt":"x","vllm_xargs":{}}`)
}

func TestLocalKeepsItsLength(t *testing.T) {
	engine := startEngine(t, ask(false).answer())
	s := startRig(t, engine.addr)
	const body = `{"model": "m",  "prompt":"\u0041\ud83d\ude00", "seed":12345678901234567}`
	post(t, s.url+completionsPath+"?a=b%2Fc;d&&e", body)
	got := engine.only(t)
	if got.body != body || got.ContentLength != int64(len(body)) || len(got.TransferEncoding) != 0 {
		t.Errorf("%d %v %s", got.ContentLength, got.TransferEncoding, got.body)
	}
	if got.RequestURI != completionsPath+"?a=b%2Fc;d&&e" {
		t.Errorf("URI %s", got.RequestURI)
	}
	resp, err := open(t, within(t), http.MethodPost, s.url+completionsPath, io.MultiReader(strings.NewReader(body))) // of unknown length
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := engine.requests()[1]; got.body != body || got.ContentLength != -1 || len(got.TransferEncoding) != 1 {
		t.Errorf("%d %v %s", got.ContentLength, got.TransferEncoding, got.body)
	}
	resp, err = open(t, within(t), http.MethodPost, s.url+completionsPath, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := engine.requests()[2]; got.body != "" || got.ContentLength != 0 || len(got.TransferEncoding) != 0 {
		t.Errorf("%d %v %s", got.ContentLength, got.TransferEncoding, got.body)
	}
}

func wide(s string, little bool) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		if little {
			b = append(b, byte(u), byte(u>>8))
		} else {
			b = append(b, byte(u>>8), byte(u))
		}
	}
	return string(b)
}

// Such bodies are refused before any engine answers, on every path.
func TestBodiesRefused(t *testing.T) {
	plain := `{"model":"m","prompt":"x"}`
	cases := []struct {
		name, body string
		status     int
		reason     pd.Reason
	}{
		{"too large", `{"prompt":"` + strings.Repeat("x", 1000) + `"}`, 413, pd.TooLarge},
		{"duplicate key", `{"model":"m","prompt":"x","model":"n"}`, 400, pd.DuplicateKey},
		{"duplicate key, escaped", `{"model":"m","prompt":"x","stream":true,"str\u0065am":false}`, 400, pd.DuplicateKey},
		{"duplicate hand-off", `{"kv_transfer_params":{},"model":"m","prompt":"x","kv_transfer_params":{}}`, 400, pd.DuplicateKey},
		{"utf-16", wide(plain, true), 400, pd.BadRequest},
		{"utf-16, the other way", wide(plain, false), 400, pd.BadRequest},
		{"utf-16 with a mark", "\xff\xfe" + wide(plain, true), 400, pd.BadRequest},
		{"broken, with a hand-off behind", `{"model":] "kv_transfer_params":{}}`, 400, pd.BadRequest},
		{"broken, with a hand-off in escapes", `{"model":] "kv\u005ftransfer_params":{}}`, 400, pd.BadRequest},
		{"too deep", `{"x":` + strings.Repeat("[", 400) + strings.Repeat("]", 400) + `}`, 200, ""},
	}
	for _, c := range cases {
		for _, way := range []string{"local", "buffered", "passed"} {
			for _, length := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/length=%v", c.name, way, length), func(t *testing.T) {
					prefill, engine := startEngine(t, offering(handoffParams)), startEngine(t, ask(false).answer())
					s := startRig(t, engine.addr, set(func(c *Config) { c.Trust.BodyLimit = 900 }))
					path, header := completionsPath, []string{}
					switch way {
					case "buffered":
						header = []string{pd.HeaderPrefill, prefill.addr}
					case "passed":
						path = "/invocations"
					}
					body := io.Reader(strings.NewReader(c.body))
					if !length {
						body = io.MultiReader(body)
					}
					resp, err := open(t, within(t), http.MethodPost, s.url+path, body, header...)
					if err != nil {
						t.Fatal(err)
					}
					defer resp.Body.Close()
					b, err := io.ReadAll(resp.Body)
					got := reply{resp.StatusCode, resp.Header, nil, string(b), err}
					if c.status == 200 {
						if got.status != 200 {
							t.Errorf("%d %s", got.status, got.body)
						}
						return
					}
					if way == "passed" {
						got.mustBe(t, c.status, "refused;reason="+string(c.reason))
					} else {
						got.mustRefuse(t, c.status, c.reason)
					}
					prefill.mustSee(t)
				})
			}
		}
	}
}

// A body that is not JSON goes to the engine as it came: the engine's own error is the best answer.
func TestBrokenBodiesPass(t *testing.T) {
	for name, body := range map[string]string{"half": `{"model":`, "garbage": "}{", "text": "hello", "list": `[1,2]`, "number": "1", "more": `{"model":"m"} x`} {
		for _, way := range []string{"local", "buffered"} {
			t.Run(name+"/"+way, func(t *testing.T) {
				prefill, engine := startEngine(t, offering(handoffParams)), startEngine(t, says(400, "application/json", "{}"))
				s := startRig(t, engine.addr)
				want := "local;reason=unplanned"
				var header []string
				if way == "buffered" {
					want, header = "local;reason=not-splittable", []string{pd.HeaderPrefill, prefill.addr, pd.HeaderPlan, strictPlan}
				}
				post(t, s.url+completionsPath, body, header...).mustBe(t, 400, want)
				engine.mustSee(t, body)
				prefill.mustSee(t)
			})
		}
	}
}

// Members that were removed before a body turned out to be broken stay removed; a buffered body is refused as a whole.
func TestBrokenBehindHandoff(t *testing.T) {
	const body = `{"kv_transfer_params":{}, "model"`
	prefill, engine := startEngine(t, offering(handoffParams)), startEngine(t, says(400, "application/json", "{}"))
	s := startRig(t, engine.addr)
	post(t, s.url+completionsPath, body).mustBe(t, 400, "local;reason=unplanned")
	engine.mustSee(t, `{                         "model"`)
	post(t, s.url+completionsPath, body, pd.HeaderPrefill, prefill.addr).mustRefuse(t, 400, pd.BadRequest)
	if len(engine.requests()) != 1 {
		t.Error("the engine got the buffered body")
	}
}

// spaces is an endless body that costs no memory.
type spaces struct{ left int64 }

// Read implements io.Reader.
func (s *spaces) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), s.left))
	for i := range p[:n] {
		p[i] = ' '
	}
	s.left -= int64(n)
	return n, nil
}

// A body over the limit costs no more memory than the limit, and none if its length is announced.
func TestHugeBodyCosts(t *testing.T) {
	const size, limit = 100 << 20, 64 << 20
	prefill, engine := startEngine(t, offering(handoffParams)), startEngine(t, ask(false).answer())
	s := startRig(t, engine.addr)
	cases := []struct {
		name   string
		header http.Header
		length int64
		most   uint64 // bytes
	}{
		{"announced, buffered", http.Header{"X-Prefiller-Host-Port": {prefill.addr}}, size, 1 << 20},
		{"announced, local", nil, size, 1 << 20},
		{"buffered", http.Header{"X-Prefiller-Host-Port": {prefill.addr}}, -1, limit + limit/8},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, completionsPath, &spaces{size})
			r.ContentLength = c.length
			for name, v := range c.header {
				r.Header[name] = v
			}
			w := httptest.NewRecorder()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s.Handler().ServeHTTP(w, r)
			runtime.ReadMemStats(&after)
			if w.Code != http.StatusRequestEntityTooLarge {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if cost := after.TotalAlloc - before.TotalAlloc; cost > c.most {
				t.Errorf("%d bytes were allocated, at most %d should be", cost, c.most)
			}
		})
	}
	engine.mustSee(t)
	prefill.mustSee(t)
}

// A dying engine answers all its running requests with an error of its own. Only then may another decode pod try.
func TestDyingEngine(t *testing.T) {
	const dead = `{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}`
	prefill := startEngine(t, offering(handoffParams))
	for name, c := range map[string]struct {
		status, health int
		remote         bool
		want           string // HeaderRetry
	}{
		"dying":                     {500, 503, false, "1"},
		"dying, after a transfer":   {500, 503, true, "1"},
		"well":                      {500, 200, false, ""},
		"well, after a transfer":    {500, 200, true, ""},
		"out of time and dying":     {504, 503, false, "1"},
		"refuses, and does not die": {400, 200, false, ""},
		"refuses, and dies":         {400, 503, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			engine := startEngine(t, says(c.status, "application/json", dead))
			s := startRig(t, engine.addr)
			if c.health != http.StatusOK {
				engine.failHealth()
			}
			var header []string
			if c.remote {
				header = []string{pd.HeaderPrefill, prefill.addr}
			}
			got := post(t, s.url+completionsPath, ask(false).body, header...)
			if got.status != c.status || got.body != dead || got.header.Get(pd.HeaderRetry) != c.want {
				t.Errorf("status %d, %s %q, want %q; %s", got.status, pd.HeaderRetry, got.header.Get(pd.HeaderRetry), c.want, got.body)
			}
		})
	}
}

// An engine that is being stopped may send what it has as a complete answer. That is not an answer, unless the engine goes on:
// then another client has asked it to abort the request.
func TestAbortedAnswer(t *testing.T) {
	const part = `{"choices":[{"text":"a \"finish_reason\":\"abort\"","finish_reason":"abort"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
	whole := strings.ReplaceAll(part, `finish_reason":"abort"}`, `finish_reason":"length"}`)
	prefill := startEngine(t, offering(handoffParams))
	for name, c := range map[string]struct {
		answer string
		dying  bool
		header []string
		want   int
	}{
		"local, dying":                {part, true, nil, 503},
		"remote, dying":               {part, true, []string{pd.HeaderPrefill, prefill.addr}, 503},
		"aborted by another client":   {part, false, nil, 200},
		"finished, and dying":         {whole, true, nil, 200},
		"remote, finished, and dying": {whole, true, []string{pd.HeaderPrefill, prefill.addr}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			engine := startEngine(t, says(200, "application/json", c.answer))
			s := startRig(t, engine.addr)
			if c.dying {
				engine.failHealth()
			}
			got := post(t, s.url+completionsPath, ask(false).body, append(c.header, "Te", "trailers")...)
			if c.want == 503 {
				got.mustRefuse(t, 503, pd.NoEndpoint)
			} else if got.status != 200 || got.body != c.answer {
				t.Errorf("status %d, %s", got.status, got.body)
			}
		})
	}
}
