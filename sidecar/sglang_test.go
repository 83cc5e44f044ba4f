package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// speaksSGLang has a sidecar speak SGLang's protocol.
var speaksSGLang = set(func(c *Config) { c.Engine.Connector = "sglang" })

// sglangPair are the two engines of a pair as the sidecar sees them. A prefill leg is answered once the decode leg is there, and
// then the decode leg: the engines meet by the number bootstrap_room. Real engines are in e2e/sglang.
type sglangPair struct {
	prefill, decode *fakeEngine
	mode            string // of decode
	ranks           int    // of prefill; 0 = 1
	alone           act    // of an engine that serves requests alone; nil is a right answer

	mu     sync.Mutex
	met    map[string]*sglangRoom // by bootstrap_room
	aborts []string               // rids, with the role before them, each once: they are sent again
}

// sglangRoom is where two legs meet.
type sglangRoom struct {
	arrived chan struct{} // closed when the decode leg is there
	sent    chan struct{} // closed when prefill has answered
}

// leg are the members of a leg that the engines obey.
type sglangLeg struct {
	Room json.Number `json:"bootstrap_room"`
	Host string      `json:"bootstrap_host"`
	Port int         `json:"bootstrap_port"`
	Rid  string      `json:"rid"`
}

// startSGLangPair starts a pair whose engines answer with the acts once both legs are there; nil is a right answer.
func startSGLangPair(t *testing.T, mode string, prefill, decode act) *sglangPair {
	t.Helper()
	p := &sglangPair{mode: mode, met: map[string]*sglangRoom{}}
	const answer = `{"choices":[{"index":0,"text":"right","finish_reason":"length"}],"usage":{"prompt_tokens":1}}`
	if prefill == nil {
		prefill = says(http.StatusOK, "application/json", answer)
	}
	if decode == nil {
		decode = says(http.StatusOK, "application/json", answer)
	}
	p.prefill = startEngine(t, p.serve(t, "prefill", func(w http.ResponseWriter, r *asked) {
		room := p.meeting(legOf(t, r))
		select {
		case <-room.arrived:
			prefill(w, r)
			close(room.sent)
		case <-r.Context().Done():
		}
	}))
	p.decode = startEngine(t, p.serve(t, "decode", func(w http.ResponseWriter, r *asked) {
		room := p.meeting(legOf(t, r))
		close(room.arrived)
		select {
		case <-room.sent:
			decode(w, r)
		case <-r.Context().Done():
		}
	}))
	return p
}

func legOf(t *testing.T, r *asked) (l sglangLeg) {
	if err := json.Unmarshal([]byte(r.body), &l); err != nil || l.Room == "" {
		t.Errorf("a leg without bootstrap_room reached an engine: %s", r.body)
	}
	return l
}

func (p *sglangPair) meeting(l sglangLeg) *sglangRoom {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.met[l.Room.String()] == nil {
		p.met[l.Room.String()] = &sglangRoom{make(chan struct{}), make(chan struct{})}
	}
	return p.met[l.Room.String()]
}

// serve answers the pages of an engine, and has leg answer what generates.
func (p *sglangPair) serve(t *testing.T, role string, leg act) act {
	return func(w http.ResponseWriter, r *asked) {
		switch r.URL.Path {
		case "/server_info":
			fmt.Fprintf(w, `{"disaggregation_mode":%q,"disaggregation_bootstrap_port":8998,"dp_size":%d}`, role, max(1, p.ranks))
		case "/model_info":
			fmt.Fprintf(w, `{"disaggregation_mode":%q}`, p.mode)
		case "/abort_request":
			p.mu.Lock()
			defer p.mu.Unlock()
			if abort := role + " " + r.body; !slices.Contains(p.aborts, abort) {
				p.aborts = append(p.aborts, abort)
			}
		case "/ready", "/v1/models", "/v1/models/org/name":
		default:
			if p.mode == "null" && role == "decode" {
				if p.alone == nil {
					p.alone = says(http.StatusOK, "application/json", `{"choices":[{"text":"alone"}]}`)
				}
				p.alone(w, r)
				return
			}
			leg(w, r)
		}
	}
}

// legs are the bodies of the legs that an engine got.
func legs(e *fakeEngine) (all []*asked) {
	return slices.DeleteFunc(e.requests(), func(r *asked) bool { return !pd.APIOf(r.URL.Path).Generates() })
}

func TestSGLangLegs(t *testing.T) {
	p := startSGLangPair(t, "decode", nil, nil)
	s := startRig(t, p.decode.addr, speaksSGLang)
	const evil = `"bootstrap_room":-1,"bootstrap_host":"2.2.2.2","rid":"a","request_id":"b","routed_dp_rank":7,"disagg_prefill_dp_rank":7`
	r := post(t, s.url+"/v1/completions", `{"model":"m","prompt":"x",`+evil+`}`, pd.HeaderPrefill, p.prefill.addr, "X-Override-Rid", "c", "X-Data-Parallel-Rank", "7")
	r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
	prefill, decode := legs(p.prefill)[0], legs(p.decode)[0]
	one, other := legOf(t, prefill), legOf(t, decode)
	if one.Room != other.Room || one.Host != "127.0.0.1" || one.Port != 8998 || other.Host != one.Host || len(one.Rid) != 32 || one.Rid == other.Rid {
		t.Errorf("legs %s and %s", prefill.body, decode.body)
	}
	for _, leg := range []*asked{prefill, decode} {
		if strings.Contains(leg.body, "rank") || strings.Contains(leg.body, `"a"`) || leg.Header.Get("X-Override-Rid") != "" || leg.Header.Get("X-Data-Parallel-Rank") != "" {
			t.Errorf("what the client sent to direct engines: %s, %v", leg.body, leg.Header)
		}
	}
	if len(p.aborts) > 0 {
		t.Errorf("aborted %v", p.aborts)
	}
}

// Messages have their ids in headers, which no client can set.
func TestSGLangMessages(t *testing.T) {
	const message = `{"type":"message","content":[{"type":"text","text":"right"}]}`
	p := startSGLangPair(t, "decode", says(http.StatusOK, "application/json", message), says(http.StatusInternalServerError, "application/json", `{}`))
	s := startRig(t, p.decode.addr, speaksSGLang)
	post(t, s.url+"/v1/messages", `{"messages":[],"max_tokens":1,"rid":"a"}`, pd.HeaderPrefill, p.prefill.addr, "X-Override-Rid", "b")
	s.end()
	for role, e := range map[string]*fakeEngine{"prefill": p.prefill, "decode": p.decode} {
		leg := legs(e)[0]
		id := leg.Header.Values("X-Override-Rid")
		if len(id) != 1 || len(id[0]) != 32 || strings.Contains(leg.body, "rid") || !slices.Contains(p.aborts, role+` {"rid":"`+id[0]+`"}`) {
			t.Errorf("%s: id %q, body %s, aborted %v", role, id, leg.body, p.aborts)
		}
	}
}

// The ranks of the picker's plan are those of the legs.
func TestSGLangPlannedRanks(t *testing.T) {
	cases := []struct{ name, ranks, prefill, decode string }{
		{"of prefill", ";prefill-ranks=3", `"disagg_prefill_dp_rank":3,"routed_dp_rank":3`, `"disagg_prefill_dp_rank":3`},
		{"of both", ";prefill-ranks=2;decode-rank=1", `"disagg_prefill_dp_rank":2,"routed_dp_rank":2`, `"disagg_prefill_dp_rank":2,"routed_dp_rank":1`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := startSGLangPair(t, "decode", nil, nil)
			p.ranks = 4
			s := startRig(t, p.decode.addr, speaksSGLang)
			plan := "remote;id=0123456789abcdef;reason=uncached;strict=0;epp=1" + c.ranks
			r := post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, p.prefill.addr, pd.HeaderPlan, plan)
			r.mustBe(t, http.StatusOK, "remote;reason=uncached;attempts=1;candidate=0")
			if leg := legs(p.prefill)[0].body; !strings.HasSuffix(leg, c.prefill+"}") {
				t.Errorf("prefill leg %s", leg)
			}
			if leg := legs(p.decode)[0].body; !strings.HasSuffix(leg, c.decode+"}") {
				t.Errorf("decode leg %s", leg)
			}
		})
	}
}

// A leg that fails ends the other one on its engine, and another candidate gets a new room.
func TestSGLangPrefillFails(t *testing.T) {
	healthy := startSGLangPair(t, "decode", nil, nil)
	failing := startEngine(t, healthy.serve(t, "prefill", says(http.StatusInternalServerError, "application/json", `{"message":"Prefill bootstrap failed"}`)))
	s := startRig(t, healthy.decode.addr, speaksSGLang)
	r := post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, failing.addr+","+healthy.prefill.addr)
	r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=2;candidate=1")
	s.end()
	seen := map[string]bool{}
	for _, leg := range append(legs(failing), legs(healthy.prefill)...) {
		seen[legOf(t, leg).Room.String()] = true
	}
	if len(seen) != 2 {
		t.Errorf("two attempts have the numbers %v", seen)
	}
	if len(healthy.aborts) != 2 || !strings.Contains(strings.Join(healthy.aborts, " "), legOf(t, legs(failing)[0]).Rid) {
		t.Errorf("aborted %v", healthy.aborts)
	}
}

// Legs that fail both are aborted too, whichever the sidecar notices first.
func TestSGLangBothFail(t *testing.T) {
	fails := says(http.StatusInternalServerError, "application/json", `{"message":"Transfer failed"}`)
	failed := make(chan struct{})
	p := startSGLangPair(t, "decode", nil, nil)
	again := p.decode.script[0]
	p.decode.script[0] = p.serve(t, "decode", func(w http.ResponseWriter, r *asked) {
		select {
		case <-failed:
			again(w, r)
		default:
			fails(w, r)
			close(failed)
		}
	})
	failing := startEngine(t, p.serve(t, "prefill", func(w http.ResponseWriter, r *asked) {
		<-failed
		fails(w, r)
	}))
	s := startRig(t, p.decode.addr, speaksSGLang)
	r := post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, failing.addr+","+p.prefill.addr)
	r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=2;candidate=1")
	s.end()
	if len(p.aborts) != 2 || !strings.Contains(strings.Join(p.aborts, " "), legOf(t, legs(failing)[0]).Rid) {
		t.Errorf("aborted %v", p.aborts)
	}
}

// What an engine answers with 200 may be a failure: nothing of it reaches the client.
func TestSGLangFailureInStream(t *testing.T) {
	for name, first := range map[string]string{
		"error":  `data: {"error":{"message":"Decode transfer failed","code":500}}` + "\n\ndata: [DONE]\n\n",
		"abort":  `data: {"text":"","meta_info":{"finish_reason":{"type":"abort","message":"Aborted by AbortReq."}}}` + "\n\ndata: [DONE]\n\n",
		"opened": "event: response.created\ndata: {}\n\nevent: response.failed\ndata: {}\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			tries := 0
			p := startSGLangPair(t, "decode", nil, func(w http.ResponseWriter, r *asked) {
				if tries++; tries == 1 {
					streams(first)(w, r)
					return
				}
				streams("data: {\"choices\":[{\"text\":\"right\"}]}\n\ndata: [DONE]\n\n")(w, r)
			})
			s := startRig(t, p.decode.addr, speaksSGLang)
			r := post(t, s.url+"/v1/completions", `{"prompt":"x","stream":true}`, pd.HeaderPrefill, p.prefill.addr+","+p.prefill.addr)
			if r.status != http.StatusOK || !strings.Contains(r.body, "right") || strings.Contains(r.body, "error") || strings.Contains(r.body, "failed") {
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
}

// aborted are answers, to the same request of each API, that SGLang has aborted and sent with status 200: as a whole, and as what follows
// the first event of a stream.
var aborted = map[string]struct{ body, whole, first, rest, right string }{
	"/v1/completions": {`{"prompt":"x"`,
		`{"choices":[{"index":0,"text":"so far \"finish_reason\":\"abort\"","finish_reason":"abort"}]}`,
		`data: {"choices":[{"text":"so far","finish_reason":null}]}`, `data: {"choices":[{"text":"","finish_reason":"abort"}]}`,
		`{"choices":[{"index":0,"text":"says \"finish_reason\":\"abort\"","finish_reason":"length"}]}`},
	"/generate": {`{"text":"x"`,
		`{"text":"so far","meta_info":{"finish_reason":{"type":"abort","message":"Aborted","status_code":null}}}`,
		`data: {"text":"so far","meta_info":{"finish_reason":null}}`, `data: {"text":"so far","meta_info":{"finish_reason":{"type":"abort","message":"Aborted"}}}`,
		`{"text":"abort","meta_info":{"finish_reason":{"type":"length","length":1}}}`},
	"/v1/responses": {`{"input":"x"`,
		`{"output":[{"content":[{"text":"so far"}]}],"status":"failed","error":{"code":"server_error","message":"Aborted"}}`, "", "",
		`{"output":[{"content":[{"text":"failed"}]}],"status":"completed","error":null,"metadata":{"status":"failed"}}`},
}

// A whole answer that an engine has aborted does not go to the client: another candidate gets the request, under another number.
func TestSGLangAbortedWhole(t *testing.T) {
	for path, c := range aborted {
		for name, long := range map[string]string{"short": "", "long": strings.Repeat(" ", 100_000)} {
			t.Run(path+" "+name, func(t *testing.T) {
				tries := 0
				p := startSGLangPair(t, "decode", says(http.StatusOK, "application/json", c.right), func(w http.ResponseWriter, r *asked) {
					if tries++; tries == 1 {
						says(http.StatusOK, "application/json", c.whole+long)(w, r)
						return
					}
					says(http.StatusOK, "application/json", c.right+long)(w, r)
				})
				s := startRig(t, p.decode.addr, speaksSGLang)
				r := post(t, s.url+path, c.body+`}`, pd.HeaderPrefill, p.prefill.addr+","+p.prefill.addr)
				if r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=2;candidate=1"); r.body != c.right+long {
					t.Errorf("%.200s", r.body)
				}
				s.end()
				numbers := map[json.Number]bool{}
				for _, leg := range legs(p.decode) {
					numbers[legOf(t, leg).Room] = true
				}
				if len(numbers) != 2 || len(p.aborts) != 2 {
					t.Errorf("numbers %v, aborted %v", numbers, p.aborts)
				}
			})
		}
	}
}

// The client of a stream that an engine has aborted gets an error event, and neither the event that says so nor the end of the stream.
func TestSGLangAbortedStream(t *testing.T) {
	for path, c := range aborted {
		if c.first == "" {
			continue // it ends with an error event of its own
		}
		for _, mode := range []string{"decode", "null"} {
			t.Run(path+" "+mode, func(t *testing.T) {
				answer := streams(c.first + "\n\n" + c.rest + "\n\ndata: [DONE]\n\n")
				p := startSGLangPair(t, mode, says(http.StatusOK, "application/json", c.right), answer)
				p.alone = answer
				s := startRig(t, p.decode.addr, speaksSGLang)
				header := []string{pd.HeaderPrefill, p.prefill.addr}
				if mode == "null" {
					header = nil
				}
				r := post(t, s.url+path, c.body+`,"stream":true}`, header...)
				begun, failed, _ := strings.Cut(r.body, "\n\n")
				if r.status != http.StatusOK || begun != c.first || !strings.Contains(failed, `"code":"internal"`) || strings.Contains(r.body, "abort") {
					t.Errorf("%d %s", r.status, r.body)
				}
				if s.end(); mode == "decode" && len(p.aborts) != 2 {
					t.Errorf("aborted %v", p.aborts)
				}
			})
		}
	}
}

// A plain engine has no other candidate: another decode pod may serve the request.
func TestSGLangAbortedAlone(t *testing.T) {
	for path, c := range aborted {
		t.Run(path, func(t *testing.T) {
			p := startSGLangPair(t, "null", nil, nil)
			p.alone = says(http.StatusOK, "application/json", c.whole)
			post(t, startRig(t, p.decode.addr, speaksSGLang).url+path, c.body+`}`).mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
			p.alone = says(http.StatusOK, "application/json", c.right)
			if r := post(t, startRig(t, p.decode.addr, speaksSGLang).url+path, c.body+`}`); r.status != http.StatusOK || r.body != c.right {
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
}

// Both engines check a request: the first refusal is the client's answer, and ends the other leg.
func TestSGLangRefusal(t *testing.T) {
	const refusal = `{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}`
	p := startSGLangPair(t, "decode", nil, hangs)
	refusing := startEngine(t, p.serve(t, "prefill", says(http.StatusBadRequest, "application/json", refusal)))
	s := startRig(t, p.decode.addr, speaksSGLang)
	for path, body := range map[string]string{"/v1/completions": `{"prompt":"x"}`, "/v1/chat/completions": `{"messages":[],"tool_choice":"required"}`} {
		r := post(t, s.url+path, body, pd.HeaderPrefill, refusing.addr)
		if r.status != http.StatusBadRequest || r.body != refusal {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}
}

// An engine in mode decode gets no request alone; a plain one does.
func TestSGLangAlone(t *testing.T) {
	cases := []struct {
		name, path, body string
		header           []string
		reason           pd.Reason
		status           int // without reason, or of it
	}{
		{"no prefill pod", "/v1/completions", `{"prompt":"x"}`, nil, pd.DecodeOnly, 503},
		{"bypass", "/v1/chat/completions", `{"messages":[]}`, []string{pd.HeaderMode, "bypass"}, pd.DecodeOnly, 503},
		{"SGLang's own call", "/generate", `{"text":"x"}`, nil, pd.DecodeOnly, 503},
		{"embeddings", "/v1/embeddings", `{"input":"x"}`, nil, pd.NotSplittable, 400},
		{"every prefill pod down", "/v1/completions", `{"prompt":"x"}`, []string{pd.HeaderPrefill, "127.0.0.1:1"}, pd.DecodeOnly, 503},
		{"cannot be split", "/v1/completions", `{"prompt":"x","use_beam_search":true}`, []string{pd.HeaderPrefill, "127.0.0.1:1"}, pd.NotSplittable, 400},
		{"no JSON", "/v1/completions", `{"prompt":`, []string{pd.HeaderPrefill, "127.0.0.1:1"}, pd.NotSplittable, 400},
		{"an empty prompt", "/v1/completions", `{"prompt":["x",""]}`, []string{pd.HeaderPrefill, "127.0.0.1:1"}, pd.BadRequest, 400},
		{"a negative token id", "/v1/completions", `{"prompt":[5,-1]}`, []string{pd.HeaderPrefill, "127.0.0.1:1"}, pd.BadRequest, 400},
		{"a negative token id of a chat", "/v1/chat/completions", `{"messages":[],"input_ids":[5,-1]}`, nil, pd.BadRequest, 400},
		{"a negative token id in SGLang's own call", "/generate", `{"input_ids":[[5],[-1]]}`, nil, pd.BadRequest, 400},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := startSGLangPair(t, "decode", nil, nil)
			s := startRig(t, p.decode.addr, speaksSGLang)
			post(t, s.url+c.path, c.body, c.header...).mustRefuse(t, c.status, c.reason)
			if seen := legs(p.decode); len(seen) > 0 {
				t.Errorf("the engine got %s", seen[0].body)
			}
			plain := startSGLangPair(t, "null", nil, nil)
			alone := startRig(t, plain.decode.addr, speaksSGLang)
			r := post(t, alone.url+c.path, c.body, c.header...)
			if want := c.reason != pd.BadRequest; (r.status == http.StatusOK) != want {
				t.Errorf("a plain engine: %d %s", r.status, r.body)
			}
		})
	}
}

// Pickers learn where an engine publishes KV events, and nothing else of the page that tells it, which has keys.
func TestSGLangEventSources(t *testing.T) {
	events := `{"publisher":"zmq","endpoint_port_base":5557,"replay_endpoint_port_base":5567,"topic":"kv","dp_size":2}`
	status := http.StatusOK
	engine := startEngine(t, func(w http.ResponseWriter, r *asked) {
		switch r.URL.Path {
		case "/server_info":
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"api_key":"secret","kv_events":%s}`, events)
		case "/model_info":
			fmt.Fprint(w, `{"disaggregation_mode":"decode"}`)
		}
	})
	s := startRig(t, engine.addr, speaksSGLang)
	ask := func() (int, string) {
		resp, err := open(t, within(t), http.MethodGet, s.url+pd.PathEventSources, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	const want = `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5567","topic":"kv"},` +
		`"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","replay_endpoint":"tcp://*:5568","topic":"kv"}}`
	if code, text := ask(); code != http.StatusOK || text != want {
		t.Errorf("%d %s\nwant %s", code, text, want)
	}
	events = "null"
	if code, text := ask(); code != http.StatusOK || text != "{}" {
		t.Errorf("%d %s of an engine that publishes nothing", code, text)
	}
	for _, bad := range []string{`{"dp_size":1000000}`, `"zmq"`} {
		events = bad
		if code, text := ask(); code != http.StatusServiceUnavailable || !strings.Contains(text, "KV events") {
			t.Errorf("%d %s for %s", code, text, bad)
		}
	}
	status = http.StatusUnauthorized
	if code, text := ask(); code != http.StatusServiceUnavailable || !strings.Contains(text, "401") || strings.Contains(text, "secret") {
		t.Errorf("%d %s of an engine that wants a key", code, text)
	}
}

func TestSGLangCalls(t *testing.T) {
	p := startSGLangPair(t, "decode", nil, nil)
	s := startRig(t, p.decode.addr, speaksSGLang)
	if r := post(t, s.url+"/abort_request", `{"abort_all":true}`); r.status != http.StatusBadRequest || len(p.aborts) > 0 {
		t.Errorf("%d %s, aborted %v", r.status, r.body, p.aborts)
	}
	for path, want := range map[string]int{"/v1/models": 200, "/kv_event_sources": 200, "/flush_cache": 400, "/server_info": 400, "/v1/models/org/name": 200,
		"/v1/models/../../flush_cache": 400, "/v1/models/%2e%2e/%2e%2e/flush_cache": 400} {
		resp, err := open(t, within(t), http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("GET %s: %s", path, resp.Status)
		}
	}
}

// lateDialect is a dialect whose prefill legs take long to make.
type lateDialect struct {
	dialect.Dialect
	wait func()
}

func (d *lateDialect) Strips() []string { return d.Dialect.(dialect.Stripper).Strips() }

func (d *lateDialect) Attempt(ctx context.Context, r *request.Request, prefill pd.Target) (dialect.Attempt, error) {
	a, err := d.Dialect.Attempt(ctx, r, prefill)
	if err != nil {
		return nil, err
	}
	return lateAttempt{a.(dialect.Rendezvous), d.wait}, nil
}

type lateAttempt struct {
	dialect.Rendezvous
	wait func()
}

func (a lateAttempt) Prefill() (request.Payload, error) {
	a.wait()
	return a.Rendezvous.Prefill()
}

// When decode answers early, as with a refusal, the body of the request is dropped: by then both legs are made.
func TestBothLegsAreMadeFirst(t *testing.T) {
	arrived := make(chan struct{})
	decode := startEngine(t, func(w http.ResponseWriter, r *asked) {
		close(arrived)
		says(http.StatusBadRequest, "application/json", `{"message":"no"}`)(w, r)
	})
	d, _ := dialect.New("sglang", dialect.Options{BootstrapPort: 8998})
	late := &lateDialect{d, func() {
		select {
		case <-arrived:
			t.Error("the decode leg was sent before the prefill leg was made")
		case <-time.After(50 * time.Millisecond): // enough for a leg that was sent
		}
	}}
	s := startRig(t, decode.addr, set(func(c *Config) { c.Engine.Dialect = late }))
	r := post(t, s.url+"/v1/completions", `{"prompt":"x"}`, pd.HeaderPrefill, startEngine(t, hangs).addr)
	if r.status != http.StatusBadRequest {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// The responses call answers 400 for a failed transfer: the next candidate gets the request.
func TestSGLangFailureAsRefusal(t *testing.T) {
	const failure = `{"error":{"message":"500: Prefill bootstrap failed for request rank=0","type":"invalid_request_error"}}`
	fails := says(http.StatusBadRequest, "application/json", failure)
	const answer = `{"output":[],"status":"incomplete"}`
	right := says(http.StatusOK, "application/json", answer)
	tries := 0
	failsFirst := func(w http.ResponseWriter, r *asked) {
		if tries++; tries == 1 {
			fails(w, r)
			return
		}
		right(w, r)
	}
	healthy := startSGLangPair(t, "decode", right, right)
	failing := startEngine(t, healthy.serve(t, "prefill", fails))
	pair := startSGLangPair(t, "decode", right, failsFirst)
	for name, c := range map[string]struct{ decode, candidates string }{
		"prefill": {healthy.decode.addr, failing.addr + "," + healthy.prefill.addr},
		"decode":  {pair.decode.addr, pair.prefill.addr + "," + pair.prefill.addr},
	} {
		t.Run(name, func(t *testing.T) {
			r := post(t, startRig(t, c.decode, speaksSGLang).url+"/v1/responses", `{"input":"x"}`, pd.HeaderPrefill, c.candidates)
			if r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=2;candidate=1"); r.body != answer {
				t.Errorf("body %s", r.body)
			}
		})
	}
}
