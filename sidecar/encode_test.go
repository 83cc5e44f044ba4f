package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
)

// The hashes of two images, as an encoder tells them.
var (
	hashA = strings.Repeat("a1", 32)
	hashB = strings.Repeat("b2", 32)
)

const (
	imageA = `{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}`
	imageB = `{"image_url":{"url":"data:image/png;base64,BBBB","detail":"low"},"type":"image_url"}`
	grid   = `{"image_grid_thw": [1, 4, 4]}`
	// fetchable is what an encoder adds to an encoding that others can fetch from it.
	fetchable = `,"peer_host":"10.0.0.1","peer_port":5601,"size_bytes":2048,"shape":[4,64]`
)

// seeing returns a chat request about items.
func seeing(items ...string) string {
	return `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[` + strings.Join(append(items, `{"type":"text","text":"what?"}`), ",") +
		`]}],"mm_processor_kwargs":{"min_pixels":9},"max_tokens":7}`
}

// encodes returns the body of an encoder leg.
func encodes(items ...string) string {
	return `{"messages":[{"role":"user","content":[` + strings.Join(items, ",") + `]}],"max_tokens":1,"stream":false,"model":"m","mm_processor_kwargs":{"min_pixels":9}}`
}

// announces answers as an encoder does whose leg had items of these hashes.
func announces(hashes ...string) act {
	entries := make([]string, len(hashes))
	for i, hash := range hashes {
		entries[i] = fmt.Sprintf(`"%s":{"item_indices":[%d],"metadata":%s%s}`, hash, i, grid, fetchable)
	}
	return says(http.StatusOK, "application/json", `{"choices":[{"index":0,"message":{"content":""},"finish_reason":"stop"}],"ec_transfer_params":{`+strings.Join(entries, ",")+`}}`)
}

// referring returns the reference to an image.
func referring(hash string) string {
	return `{"type":"image_embeds","image_embeds":` + grid + `,"uuid":"` + hash + `"}`
}

func encoding(connector string, references bool) option {
	return set(func(c *Config) { c.Encode.Connector, c.Encode.References = connector, references })
}

// legOfChat returns the body of a leg of a chat request: with other items, limit and parameters.
func legOfChat(body, limit, params string) string {
	body = strings.Replace(body, `"max_tokens":7`, `"max_tokens":`+limit, 1)
	if params != "" {
		body = strings.TrimSuffix(body, "}") + `,"kv_transfer_params":` + params + "}"
	}
	return body
}

// The encoder gets the items, and what their encodings depend on. The engines of the pair get the client's body, or what the connector
// needs.
func TestEncode(t *testing.T) {
	params := fmt.Sprintf(`{"%s":{"item_indices":[0],"metadata":%s%s},"%s":{"item_indices":[1],"metadata":%s%s}}`, hashA, grid, fetchable, hashB, grid, fetchable)
	client := seeing(imageA, imageB)
	for _, tc := range []struct {
		name, connector string
		references      bool
		want            string
	}{
		{"files", "ec-example", false, client},
		{"files, references", "ec-example", true, seeing(referring(hashA), referring(hashB))},
		{"NIXL", "ec-nixl", false, strings.TrimSuffix(client, "}") + `,"ec_transfer_params":` + params + "}"},
		{"NIXL, references", "ec-nixl", true, strings.TrimSuffix(seeing(referring(hashA), referring(hashB)), "}") + `,"ec_transfer_params":` + params + "}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			encoder, prefill := startEngine(t, announces(hashA, hashB)), startEngine(t, offering(handoffParams))
			decode := startEngine(t, says(http.StatusOK, "application/json", wholeAnswer))
			spans, tracing := recorder(t)
			s := startRig(t, decode.addr, encoding(tc.connector, tc.references), tracing)
			r := post(t, s.url+chatPath, client, pd.HeaderPrefill, prefill.addr, pd.HeaderEncode, encoder.addr, "Authorization", "Bearer k")
			r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
			encoder.mustSee(t, encodes(imageA, imageB))
			prefill.mustSee(t, legOfChat(tc.want, "1", primed))
			decode.mustSee(t, legOfChat(tc.want, "7", handoffParams))
			leg := encoder.only(t)
			if leg.URL.Path != chatPath || leg.Header.Get("Authorization") != "Bearer k" || leg.Header.Get(pd.HeaderEncode) != "" ||
				leg.Header.Get(pd.HeaderRequestID) != r.header.Get(pd.HeaderRequestID) {
				t.Errorf("the leg to the encoder: %s %v", leg.URL, leg.Header)
			}
			if got := r.phases(t); got != "recv encode prefill handoff first" {
				t.Errorf("phases %s", got)
			}
			if n := s.count(t, "tandem_encode_requests_total", "result", "encoded"); n != 1 {
				t.Errorf("%v requests counted as encoded", n)
			}
			if n := s.count(t, "tandem_leg_seconds", "leg", "encode", "code", "200"); n != 1 {
				t.Errorf("%v encoder legs counted", n)
			}
			names := map[string]int{}
			for _, span := range spans.GetSpans() {
				names[span.Name]++
			}
			if names["encode"] != 1 {
				t.Errorf("spans %v", names)
			}
		})
	}
}

// Without prefill on another pod, the local engine reads the encodings.
func TestEncodeLocal(t *testing.T) {
	encoder, engine := startEngine(t, announces(hashA)), startEngine(t, says(http.StatusOK, "application/json", wholeAnswer))
	s := startRig(t, engine.addr, encoding("ec-example", true))
	r := post(t, s.url+chatPath, seeing(imageA), pd.HeaderEncode, encoder.addr)
	r.mustBe(t, http.StatusOK, "local;reason=unplanned")
	engine.mustSee(t, seeing(referring(hashA)))
	if got := r.phases(t); got != "recv encode first" {
		t.Errorf("phases %s", got)
	}
}

// Encoders share the items. Two items of one content are one encoding.
func TestEncodeShares(t *testing.T) {
	first, second := startEngine(t, announces(hashA)), startEngine(t, announces(hashB))
	engine := startEngine(t, says(http.StatusOK, "application/json", wholeAnswer))
	s := startRig(t, engine.addr, encoding("ec-nixl", true))
	post(t, s.url+chatPath, seeing(imageA, imageB, imageB), pd.HeaderEncode, first.addr+","+second.addr+","+second.addr+","+second.addr).mustBe(t, http.StatusOK, "local;reason=unplanned")
	if n := len(first.requests()) + len(second.requests()); n != 3 {
		t.Errorf("%d legs for three items", n)
	}
	first, second = startEngine(t, announces(hashA, hashB)), startEngine(t, announces(hashB))
	post(t, s.url+chatPath, seeing(imageA, imageB, imageB), pd.HeaderEncode, first.addr+","+second.addr).mustBe(t, http.StatusOK, "local;reason=unplanned")
	first.mustSee(t, encodes(imageA, imageB))
	second.mustSee(t, encodes(imageB))
	want := seeing(referring(hashA), referring(hashB), referring(hashB))
	if got := engine.requests()[1].body; !strings.HasPrefix(got, strings.TrimSuffix(want, "}")) || strings.Count(got, `"item_indices"`) != 2 {
		t.Errorf("the engine got %s", got)
	}
}

// encoderFailures are the ways in which an encoder fails, with the cause that is counted, and whether another one is asked.
var encoderFailures = []struct {
	name   string
	answer act
	cause  string
	next   bool
}{
	{"closed", closes, "connection", true},
	{"reset", resets, "connection", true},
	{"broken off", breaks("application/json", `{"ec_transfer_params":`), "connection", true},
	{"error", says(500, "application/json", `{"error":{}}`), "status", true},
	{"overloaded", says(503, "application/json", `{"error":{}}`), "status", true},
	{"another model", says(404, "application/json", `{"error":{}}`), "status", true},
	{"refused", says(400, "application/json", `{"error":{"message":"Failed to load image"}}`), "status", false},
	{"no JSON", says(200, "text/plain", "OK"), "invalid", true},
	{"no encoder", says(200, "application/json", `{"choices":[{"finish_reason":"length"}],"ec_transfer_params":null}`), "invalid", true},
	{"counters instead of hashes", announces("renderer0-mm-1-image-0"), "invalid", true},
	{"an item too few", says(200, "application/json", `{"ec_transfer_params":{"`+hashA+`":{"item_indices":[],"metadata":`+grid+`}}}`), "invalid", true},
	{"an item too many", announces(hashA, hashB), "invalid", true},
}

// If an encoder fails, the next one encodes, then the engine that computes the prompt: the media is in the body that it gets.
func TestEncoderFails(t *testing.T) {
	for _, tc := range encoderFailures {
		t.Run(tc.name, func(t *testing.T) {
			for _, references := range []bool{false, true} {
				failing, good := startEngine(t, tc.answer), startEngine(t, announces(hashA))
				prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, says(http.StatusOK, "application/json", wholeAnswer))
				s := startRig(t, decode.addr, encoding("ec-example", references))
				body := seeing(imageA)
				post(t, s.url+chatPath, body, pd.HeaderPrefill, prefill.addr, pd.HeaderEncode, failing.addr).mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
				post(t, s.url+chatPath, body, pd.HeaderPrefill, prefill.addr, pd.HeaderEncode, failing.addr+","+good.addr).mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
				encoded := body
				if tc.next && references {
					encoded = seeing(referring(hashA))
				}
				prefill.mustSee(t, legOfChat(body, "1", primed), legOfChat(encoded, "1", primed))
				decode.mustSee(t, legOfChat(body, "7", handoffParams), legOfChat(encoded, "7", handoffParams))
				if asked := len(good.requests()) > 0; asked != tc.next {
					t.Errorf("another encoder was asked: %v", asked)
				}
				if n := s.count(t, "tandem_retries_total", "leg", "encode", "cause", tc.cause); n != 2 {
					t.Errorf("%v failures of cause %s counted", n, tc.cause)
				}
				if got, want := s.count(t, "tandem_encode_requests_total", "result", "fallback"), map[bool]float64{true: 1, false: 2}[tc.next]; got != want {
					t.Errorf("%v requests counted as fallback, want %v", got, want)
				}
			}
		})
	}
}

// One share that fails at all encoders fails the request's encoding, and ends the legs of the others.
func TestEncoderShareFails(t *testing.T) {
	slow, failing := startEngine(t, hangs), startEngine(t, says(400, "application/json", `{}`))
	engine := startEngine(t, says(http.StatusOK, "application/json", wholeAnswer))
	s := startRig(t, engine.addr, encoding("ec-example", true))
	body := seeing(imageA, imageB)
	post(t, s.url+chatPath, body, pd.HeaderEncode, slow.addr+","+failing.addr).mustBe(t, http.StatusOK, "local;reason=unplanned")
	engine.mustSee(t, body)
}

// Encoders that are unreachable, or take too long, cost a request no more than --encode-timeout.
func TestEncoderSlow(t *testing.T) {
	closed := listen(t, "127.0.0.1:0")
	closed.Close()
	slow, engine := startEngine(t, hangs), startEngine(t, says(http.StatusOK, "application/json", wholeAnswer))
	s := startRig(t, engine.addr, encoding("ec-example", false), set(func(c *Config) { c.Encode.Timeout = 50 * time.Millisecond }))
	body := seeing(imageA)
	post(t, s.url+chatPath, body, pd.HeaderEncode, closed.Addr().String()+","+slow.addr).mustBe(t, http.StatusOK, "local;reason=unplanned")
	engine.mustSee(t, body)
	for cause, want := range map[string]float64{"connection": 1, "timeout": 1} {
		if n := s.count(t, "tandem_retries_total", "leg", "encode", "cause", cause); n != want {
			t.Errorf("%v failures of cause %s counted", n, cause)
		}
	}
	if failed := s.Recent().Latest(); len(failed) != 1 {
		t.Errorf("%d requests are remembered", len(failed))
	}
}

// An encoder that hangs is noticed as other engines are, long before --encode-timeout.
func TestEncoderHangs(t *testing.T) {
	hung, good := startEngine(t, hangs), startEngine(t, announces(hashA))
	hung.hang()
	engine := startEngine(t, says(http.StatusOK, "application/json", wholeAnswer))
	s := startRig(t, engine.addr, encoding("ec-example", true))
	post(t, s.url+chatPath, seeing(imageA), pd.HeaderEncode, hung.addr+","+good.addr).mustBe(t, http.StatusOK, "local;reason=unplanned")
	engine.mustSee(t, seeing(referring(hashA)))
}

func TestEncodeClientLeaves(t *testing.T) {
	g := newGate()
	left := make(chan struct{})
	encoder := startEngine(t, then(g.act, func(_ http.ResponseWriter, r *asked) { <-r.Context().Done(); close(left) }))
	engine := startEngine(t)
	s := startRig(t, engine.addr, encoding("ec-example", false))
	ctx, leave := context.WithCancel(within(t))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+chatPath, strings.NewReader(seeing(imageA)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(pd.HeaderEncode, encoder.addr)
	go func() {
		wait(t, g.arrived, "the encoder leg")
		leave()
	}()
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		t.Errorf("status %d", resp.StatusCode)
	}
	wait(t, left, "the end of the encoder leg")
	s.end()
	if n := len(engine.requests()); n > 0 {
		t.Errorf("the engine was asked %d times", n)
	}
}

// An engine that refuses references, or dies of one, costs no client anything, and no other engine gets one.
func TestReferencesFail(t *testing.T) {
	refuses := says(400, "application/json", `{"error":{"message":"image_embeds is not enabled"}}`)
	works := says(http.StatusOK, "application/json", wholeAnswer)
	image, reference := seeing(imageA), seeing(referring(hashA))
	for _, tc := range []struct {
		name            string
		prefill, decode []act
		decision        string
		prefilled       []string // the bodies of the prefill legs, to one pod and the next
		decoded         []string
	}{
		{"prefill dies", []act{closes, offering(handoffParams)}, []act{works}, "remote;reason=external;attempts=2;candidate=1",
			[]string{reference, image}, []string{legOfChat(image, "7", handoffParams)}},
		{"prefill refuses", []act{refuses, offering(handoffParams)}, []act{works}, "remote;reason=external;attempts=2;candidate=1",
			[]string{reference, image}, []string{legOfChat(image, "7", handoffParams)}},
		{"decode refuses", []act{offering(handoffParams)}, []act{refuses, works}, "local;reason=transfer-failed;attempts=1;candidate=0",
			[]string{reference}, []string{legOfChat(reference, "7", handoffParams), image}},
		{"decode fails", []act{offering(handoffParams)}, []act{says(500, "application/json", `{}`), works}, "local;reason=transfer-failed;attempts=1;candidate=0",
			[]string{reference}, []string{legOfChat(reference, "7", handoffParams), image}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			encoder, prefill, decode := startEngine(t, announces(hashA)), startEngine(t, tc.prefill...), startEngine(t, tc.decode...)
			s := startRig(t, decode.addr, encoding("ec-example", true))
			post(t, s.url+chatPath, image, pd.HeaderPrefill, prefill.addr+","+prefill.addr, pd.HeaderEncode, encoder.addr).mustBe(t, http.StatusOK, tc.decision)
			for i, body := range tc.prefilled {
				tc.prefilled[i] = legOfChat(body, "1", primed)
			}
			prefill.mustSee(t, tc.prefilled...)
			decode.mustSee(t, tc.decoded...)
		})
	}
}

// What is not encoded elsewhere reaches the engine as the client sent it, without what clients must not send.
func TestNotEncoded(t *testing.T) {
	image := seeing(imageA)
	audio := seeing(imageA, `{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}`)
	for _, tc := range []struct {
		name, path, body, want string
		asked                  bool
		options                []option
	}{
		{"no connector", chatPath, image, image, false, nil},
		{"text", chatPath, seeing(), seeing(), false, []option{encoding("ec-example", true)}},
		{"another API", completionsPath, `{"prompt":"x"}`, `{"prompt":"x"}`, false, []option{encoding("ec-example", true)}},
		{"no JSON", chatPath, `{"messages":`, `{"messages":`, false, []option{encoding("ec-example", true)}},
		{"of two types", chatPath, seeing(`{"type":"text","image_url":{"url":"x"}}`), seeing(`{"type":"text","image_url":{"url":"x"}}`), false, []option{encoding("ec-example", true)}},
		{"image and audio are not referred to", chatPath, audio, audio, true, []option{encoding("ec-example", true)}},
		{"a client's name of an image", chatPath, seeing(strings.Replace(imageA, "{", `{"uuid":"x",`, 1)), seeing(strings.Replace(imageA, "{", "{", 1)), true, []option{encoding("ec-example", false)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			encoder, engine := startEngine(t, func(w http.ResponseWriter, r *asked) {
				if strings.Contains(r.body, "input_audio") {
					announces(hashA, hashB)(w, r)
					return
				}
				announces(hashA)(w, r)
			}), startEngine(t, says(http.StatusOK, "application/json", wholeAnswer))
			s := startRig(t, engine.addr, tc.options...)
			post(t, s.url+tc.path, tc.body, pd.HeaderEncode, encoder.addr).mustBe(t, http.StatusOK, "local;reason=unplanned")
			engine.mustSee(t, tc.want)
			if asked := len(encoder.requests()) > 0; asked != tc.asked {
				t.Errorf("the encoder was asked: %v", asked)
			}
			if tc.asked && strings.Contains(encoder.only(t).body, "uuid") {
				t.Errorf("the encoder got %s", encoder.only(t).body)
			}
		})
	}
}

func TestEncoderHeader(t *testing.T) {
	engine := startEngine(t, says(http.StatusOK, "application/json", wholeAnswer))
	for _, tc := range []struct {
		name, value string
		reason      pd.Reason
		status      int
		options     []option
	}{
		{"no address", "encoder", pd.BadRequest, 400, nil},
		{"too many", strings.Repeat("10.0.0.1:1,", 16) + "10.0.0.1:1", pd.BadRequest, 400, nil},
		{"without the secret", "127.0.0.1:1", pd.UntrustedPeer, 403, []option{withSecrets(t, "open sesame")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startRig(t, engine.addr, append(tc.options, encoding("ec-example", false))...)
			r := post(t, s.url+chatPath, seeing(imageA), pd.HeaderEncode, tc.value)
			r.mustRefuse(t, tc.status, tc.reason)
		})
	}
	t.Run("not allowed", func(t *testing.T) {
		encoder := startEngine(t, announces(hashA))
		s := startRig(t, engine.addr, encoding("ec-example", false), set(func(c *Config) { c.Trust.Allow = nil }))
		post(t, s.url+chatPath, seeing(imageA), pd.HeaderEncode, encoder.addr).mustBe(t, http.StatusOK, "local;reason=unplanned")
		if n := s.count(t, "tandem_retries_total", "leg", "encode", "cause", "denied"); n != 1 || len(encoder.requests()) > 0 {
			t.Errorf("denied %v times, the encoder was asked %d times", n, len(encoder.requests()))
		}
	})
}

// Simulated engines, whose answers prove which encoding they have read: encode, prefill and decode, and encode with both in one engine.
func TestEncodeSim(t *testing.T) {
	for connector, how := range map[string]sim.EncodingConfig{"ec-example": {Store: t.TempDir()}, "ec-nixl": {Fetch: true}} {
		t.Run(connector, func(t *testing.T) { testEncodeSim(t, connector, how) })
	}
}

func testEncodeSim(t *testing.T, connector string, how sim.EncodingConfig) {
	role := func(r sim.EncodingRole) sim.Config {
		how.Role = r
		return sim.Config{Encoding: how}
	}
	encoder, prefill, reader := startSim(t, role(sim.Encoder)), startSim(t, role(sim.EncodingReader)), startSim(t, role(sim.EncodingReader))
	plain, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{})
	body := func(n int) string {
		return fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/%d"}},{"type":"text","text":"what is it?"}]}],`+
			`"max_tokens":8,"temperature":0,"return_token_ids":true}`, n)
	}
	tokens := func(r reply) (tokens []int) {
		var c struct {
			Choices []struct {
				Tokens []int `json:"token_ids"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(r.body), &c); err != nil || len(c.Choices) == 0 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		return c.Choices[0].Tokens
	}
	for i, references := range []bool{false, true} {
		pair := startRig(t, addrOf(decode), encoding(connector, references))
		one := startRig(t, addrOf(reader), encoding(connector, references))
		want := tokens(post(t, plain.URL+chatPath, body(i)))
		remote := post(t, pair.url+chatPath, body(i), pd.HeaderPrefill, addrOf(prefill), pd.HeaderEncode, addrOf(encoder))
		remote.mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
		local := post(t, one.url+chatPath, body(i), pd.HeaderEncode, addrOf(encoder))
		local.mustBe(t, http.StatusOK, "local;reason=unplanned")
		for name, got := range map[string][]int{"remote": tokens(remote), "local": tokens(local)} {
			if !reflect.DeepEqual(got, want) {
				t.Errorf("references %v: %s %v, a plain engine says %v", references, name, got, want)
			}
		}
	}
	mustFree(t, prefill, decode)
}
