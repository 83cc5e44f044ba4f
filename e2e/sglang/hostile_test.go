package sglang_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// members are what a client may send of the engines' own protocol. Most of them end an engine that gets them, or have it answer
// nonsense, wait for minutes, or connect to where the client says.
var members = map[string]string{
	"negative rendezvous":     `"bootstrap_room":-1`,
	"rendezvous zero":         `"bootstrap_room":0`,
	"rendezvous null":         `"bootstrap_room":null`,
	"rendezvous too large":    `"bootstrap_room":18446744073709551616`,
	"rendezvous as text":      `"bootstrap_room":"777123"`,
	"rendezvous without host": `"bootstrap_room":7,"bootstrap_host":null`,
	"lists of one":            `"bootstrap_room":[7],"bootstrap_host":["127.0.0.1"],"bootstrap_port":[8998]`,
	"host for health checks":  `"bootstrap_host":"2.2.2.2"`,
	"foreign host":            `"bootstrap_host":"127.0.0.1","bootstrap_port":9`,
	"pair key":                `"bootstrap_pair_key":"x","decode_tp_size":4`,
	"escaped name":            `"bootstrap\u005froom":-1`,
	"name twice":              `"bootstrap_room":7,"bootstrap_room":-1`,
	"rank that is not there":  `"routed_dp_rank":7`,
	"older name of the rank":  `"data_parallel_rank":7`,
	"rank of prefill":         `"disagg_prefill_dp_rank":1`,
	"short id":                `"rid":"a"`,
	"empty id":                `"rid":""`,
	"list of ids":             `"rid":["a","b"]`,
}

// headers are what a client may say in headers of the same.
var headers = map[string]string{
	"x-override-rid": "a", "x-override-bootstrap-host": "2.2.2.2", "x-override-bootstrap-port": "9", "x-override-bootstrap-room": "-1",
	"x-override-routed-dp-rank": "7", "x-override-disagg-prefill-dp-rank": "7", "x-data-parallel-rank": "7",
}

// testHostileMembers sends each in requests that must be answered as if it was not there: through Envoy and picker, and to the
// sidecar itself, in every API.
func testHostileMembers(t *testing.T, e *engines) {
	f := newStack(t, e, e.prefill)
	for _, api := range apis {
		for i, name := range slices.Sorted(maps.Keys(members)) {
			t.Run(api.String()+"/"+name, func(t *testing.T) {
				a := newAsk(api, 40, 4, i%2 == 0)
				mustEqual(t, a, a.smuggling(t, members[name], f.Front.Addr), a.at(t, e.plain.Address()))
				direct := newAsk(api, 40, 4, i%2 == 1).from(e.prefill.Address())
				mustEqual(t, direct, direct.smuggling(t, members[name], f.Decode[0].Addr()), direct.at(t, e.plain.Address()))
			})
		}
		for name, value := range headers {
			t.Run(api.String()+"/"+name, func(t *testing.T) {
				a := newAsk(api, 40, 4, false)
				mustEqual(t, a, a.told(name, value).at(t, f.Front.Addr), a.at(t, e.plain.Address()))
			})
		}
	}
	f.MustRest(t)
	e.mustRest(t, restWithin)
}

// smuggling makes the request with further members, which are not valid in a map.
func (a ask) smuggling(t *testing.T, members, addr string) answer.Answer {
	t.Helper()
	body, err := json.Marshal(a.members)
	if err != nil {
		t.Fatal(err)
	}
	body = append([]byte("{"+members+","), body[1:]...)
	got, err := answer.Post(harness.Within(t), harness.Client.Transport, "http://"+addr+a.api.Path(), body, a.header)
	if err != nil {
		t.Fatalf("%s with %s: %v", a.api, members, err)
	}
	return got
}

// bodies are whole bodies that end engines, or have them wait, by path. What becomes of them is the engine's to say, or the
// sidecar's; but there must be an answer, and the engines must live.
var bodies = map[string][]string{
	"/v1/completions": {
		`{"model":"tiny","prompt":[[301,302],[]],"max_tokens":2}`,
		`{"model":"tiny","prompt":[[]],"max_tokens":2}`,
		`{"model":"tiny","prompt":[],"max_tokens":2}`,
		`{"model":"tiny","prompt":"","max_tokens":2}`,
		`{"model":"tiny","prompt":["a",""],"max_tokens":2}`,
		`{"model":"tiny","prompt":"a b c","max_tokens":5000}`,
		`{"model":"tiny","prompt":"a b c","max_tokens":-1}`,
		`{"model":"tiny","prompt":"a b c","max_tokens":"many"}`,
		`{"model":"tiny","prompt":"a b c","n":0}`,
		`{"model":"tiny","prompt":"a b c","n":-1}`,
		`{"model":"tiny","prompt":[301,-1],"max_tokens":2}`,
		`{"model":"tiny","prompt":[301,"-1"],"max_tokens":2}`,
		`{"model":"tiny","prompt":[[301],[301,1000000]],"max_tokens":2}`,
		`{"model":"tiny","prompt":"a b c","best_of":3,"max_tokens":2}`,
		`{"model":"tiny","prompt":"a b c","temperature":-1}`,
		`{"model":"tiny","prompt":"a b c","logprobs":-1}`,
		`"text"`, `[]`, `{`, ``,
	},
	"/v1/chat/completions": {
		`{"model":"tiny","messages":[]}`,
		`{"model":"tiny","messages":"x"}`,
		`{"model":"tiny","messages":[{"role":"user","content":"x"}],"input_ids":[301,-1],"max_tokens":2}`,
		`{"model":"tiny","messages":[{"role":"user","content":"\ud800"}],"max_tokens":2}`,
		`"text"`, `null`,
	},
	"/v1/responses": {`{"model":"tiny","input":""}`, `{"model":"tiny","input":[]}`, `{"model":"tiny"}`},
	"/v1/messages":  {`{"model":"tiny","messages":[],"max_tokens":2}`, `{"model":"tiny","max_tokens":2}`},
	"/generate": {
		`{"text":"","sampling_params":{"max_new_tokens":2}}`,
		`{"text":["a",""],"sampling_params":{"max_new_tokens":2}}`,
		`{"text":[],"sampling_params":{"max_new_tokens":2}}`,
		`{"input_ids":[],"sampling_params":{"max_new_tokens":2}}`,
		`{"input_ids":[[301],[]],"sampling_params":{"max_new_tokens":2}}`,
		`{"input_ids":[301,-1],"sampling_params":{"max_new_tokens":2}}`,
		`{"input_ids":[[301],[301,-1]],"sampling_params":{"max_new_tokens":2}}`,
		`{"input_ids":[301,2147483648],"sampling_params":{"max_new_tokens":2}}`,
		`{"input_ids":[301,1.5],"sampling_params":{"max_new_tokens":2}}`,
		`{"input_ids":[301],"text":"a","sampling_params":{"max_new_tokens":2}}`,
		`{"input_ids":[301],"sampling_params":[{"max_new_tokens":2},{"max_new_tokens":3}]}`,
		`{"text":"a b c","sampling_params":{"max_new_tokens":0}}`,
		`{"text":"a b c","sampling_params":{"max_new_tokens":-1}}`,
		`{"text":"a b c","sampling_params":{"n":0}}`,
		`{"text":"a b c","sampling_params":"x"}`,
		`{"sampling_params":{"max_new_tokens":2}}`,
	},
}

// testHostileBodies sends them through the stack and to the sidecar.
func testHostileBodies(t *testing.T, e *engines) {
	f := newStack(t, e, e.prefill)
	for path, all := range bodies {
		for _, body := range all {
			t.Run(path+" "+body, func(t *testing.T) {
				for addr, header := range map[string]map[string]string{
					f.Front.Addr:       nil,
					f.Decode[0].Addr(): {pd.HeaderPrefill: e.prefill.Address()},
				} {
					mustBeAnswered(t, addr+path, body, header)
				}
				e.mustLive(t)
			})
		}
	}
	a := newAsk(pd.APICompletions, 40, 4, false)
	mustEqual(t, a, a.at(t, f.Front.Addr), a.at(t, e.plain.Address()))
	f.MustRest(t)
	e.mustRest(t, restWithin)
}

func mustBeAnswered(t *testing.T, url, body string, header map[string]string) {
	t.Helper()
	r, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "http://"+url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		r.Header.Set(name, value)
	}
	response, err := harness.Client.Do(r)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	_ = response.Body.Close()
}

// testWithoutPrefill has requests that name no prefill pod reach the sidecar of an engine that cannot prefill: each is refused
// at once, and none reaches the engine.
func testWithoutPrefill(t *testing.T, e *engines) {
	s := startSidecar(t, e.decode.Address())
	for _, api := range apis {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			got := newAsk(api, 40, 4, stream).with(map[string]any{"bootstrap_room": 7, "bootstrap_host": "2.2.2.2"}).at(t, s.Addr("http"))
			if got.Status != http.StatusServiceUnavailable || got.Decision.Reason != pd.DecodeOnly || got.Header.Get("Retry-After") != "1" {
				t.Errorf("%s: status %d, decision %v, Retry-After %q: %s", api, got.Status, got.Decision, got.Header.Get("Retry-After"), got.Body)
			}
		})
	}
	e.mustRest(t, restWithin)
}

// testOperatorsPaths are what an engine has for its operators and no client may use.
func testOperatorsPaths(t *testing.T, e *engines) {
	f := newStack(t, e, e.prefill)
	a := newAsk(pd.APICompletions, 40, 400, true)
	want := a.at(t, e.plain.Address())
	running := a.begin(t, f.Front.Addr)
	await(t, e.decode, "decode generates", harness.Patience, generating)
	for path, body := range map[string]string{"/abort_request": `{"abort_all":true}`, "/flush_cache": `{}`} {
		mustBeAnswered(t, f.Front.Addr+path, body, nil)
		mustBeAnswered(t, f.Decode[0].Addr()+path, body, nil)
	}
	mustEqual(t, a, <-running, want)
	e.mustRest(t, restWithin)
}
