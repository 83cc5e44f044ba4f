package api_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// TestRequestIDs: a request id names an answer, one for each prompt of a batch, and is in use while its request runs.
func TestRequestIDs(t *testing.T) {
	s := simtest.SGLang(t, sglang.Plain)
	for _, c := range []struct {
		name   string
		prompt any
		rid    any
		want   []string // nil: the handler breaks
	}{
		{"one", []int{11, 12}, "mine", []string{"mine"}},
		{"for a batch", [][]int{{11, 12}, {13}}, "mine", []string{"mine_0", "mine_1"}},
		{"list for a batch", [][]int{{11, 12}, {13}}, []string{"a", "b"}, []string{"a", "b"}},
		{"list for one prompt", []int{11, 12}, []string{"a"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := simtest.Post(t, s.URL+"/generate", simtest.Generate(nil, 2, map[string]any{"input_ids": c.prompt, "rid": c.rid}))
			if c.want == nil {
				if r.Status != http.StatusInternalServerError || string(r.Body) != "Internal Server Error" {
					t.Errorf("answer is %d %s", r.Status, r.Body)
				}
				return
			}
			var list []simtest.Generated
			if json.Unmarshal(r.Body, &list) != nil {
				list = []simtest.Generated{r.Decoded(t)}
			}
			var got []string
			for _, g := range list {
				got = append(got, g.MetaInfo.ID)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("ids %v, want %v", got, c.want)
			}
		})
	}
}

func TestDuplicateRequestID(t *testing.T) {
	s := simtest.SGLang(t, sglang.Prefill)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	body := simtest.Generate(simtest.Prompt(1, 10), 2, simtest.Meet(s, 1), map[string]any{"rid": "dupdup"})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/generate", strings.NewReader(string(mustJSON(t, body))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}()
	simtest.WaitForSGLang(t, s, "the first request", func(st sglang.State) bool { return st.Bootstrap == 1 })
	r := simtest.Post(t, s.URL+"/generate", body)
	if want := `{"error":{"message":"Duplicate request ID detected: dupdup"}}`; r.Status != http.StatusBadRequest || string(r.Body) != want {
		t.Errorf("answer is %d %s, want %s", r.Status, r.Body, want)
	}
	leave()
	<-ended
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFailedHandoffs: each API has its own form for a hand-off that fails. /v1/responses takes it for an error of the request.
func TestFailedHandoffs(t *testing.T) {
	const cause = "Prefill bootstrap failed for request"
	chat := map[string]any{"model": "tiny", "max_tokens": 4, "messages": []any{map[string]any{"role": "user", "content": "a"}}}
	for _, c := range []struct {
		path     string
		body     map[string]any
		status   int
		whole    string
		streamed string
	}{
		{"/generate", simtest.Generate([]int{11}, 4), 500, `{"object":"error","message":"` + cause, `"status_code":500`},
		{"/v1/completions", map[string]any{"prompt": "a", "max_tokens": 4}, 500, `{"object":"error","message":"` + cause, `data: {"error": {"object": "error", "message": "` + cause},
		{"/v1/chat/completions", chat, 500, `{"object":"error","message":"` + cause, `"type": "INTERNAL_SERVER_ERROR", "param": null, "code": 500}}`},
		{"/v1/responses", map[string]any{"input": "a", "max_output_tokens": 4}, 400, `{"error":{"message":"500: ` + cause, "event: response.failed"},
		{"/v1/messages", chat, 500, `{"type":"error","error":{"type":"api_error","message":"Internal server error"}}`, `{"type":"error","error":{"type":"api_error","message":"` + cause},
	} {
		t.Run(c.path, func(t *testing.T) {
			s := simtest.SGLang(t, sglang.Prefill, recordedEngine)
			body := maps.Clone(c.body)
			maps.Copy(body, simtest.Meet(s, 1))
			if r := simtest.Post(t, s.URL+c.path, body); r.Status != c.status || !strings.Contains(string(r.Body), c.whole) {
				t.Errorf("whole: %d %s, want %d with %s", r.Status, r.Body, c.status, c.whole)
			}
			if r := simtest.Post(t, s.URL+c.path, simtest.Streamed(body)); r.Status != http.StatusOK || !strings.Contains(string(r.Body), c.streamed) {
				t.Errorf("streamed: %d %s, want 200 with %s", r.Status, r.Body, c.streamed)
			}
		})
	}
}

// TestGenerateStreamIsCumulative: each event of /generate has all of the answer so far.
func TestGenerateStreamIsCumulative(t *testing.T) {
	s := simtest.SGLang(t, sglang.Plain)
	body := simtest.Generate(simtest.Prompt(1, 10), 5)
	want := simtest.Post(t, s.URL+"/generate", body).Decoded(t)
	n := 0
	for event := range strings.SplitSeq(string(simtest.Post(t, s.URL+"/generate", simtest.Streamed(body)).Body), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: {")
		if !ok {
			continue
		}
		var g simtest.Generated
		if err := json.Unmarshal([]byte("{"+data), &g); err != nil {
			t.Fatal(err)
		}
		if n++; !slices.Equal(g.OutputIDs, want.OutputIDs[:n]) || !strings.HasPrefix(want.Text, g.Text) {
			t.Errorf("event %d has %v %q of %v %q", n, g.OutputIDs, g.Text, want.OutputIDs, want.Text)
		}
	}
	if n != len(want.OutputIDs) {
		t.Errorf("%d events for %d tokens", n, len(want.OutputIDs))
	}
}

// TestStopToken: a stop token has no text, and prefill says that it ended by its length.
func TestStopToken(t *testing.T) {
	pair, plain := simtest.SGLangPair(t), simtest.SGLang(t, sglang.Plain)
	prompt := simtest.Prompt(1, 40)
	first := simtest.Post(t, plain.URL+"/generate", simtest.Generate(prompt, 1)).Decoded(t).OutputIDs[0]
	body := simtest.Generate(prompt, 8, simtest.Meet(pair.Prefill, 9))
	body["sampling_params"] = map[string]any{"max_new_tokens": 8, "stop_token_ids": []int{first}}
	p, d := pair.Send(t, "/generate", body)
	if got := p.Decoded(t).MetaInfo.FinishReason; got.Type != "length" || got.Length != 0 {
		t.Errorf("prefill ended by %+v", got)
	}
	if got := d.Decoded(t); got.MetaInfo.FinishReason.Type != "stop" || got.Text != "" || !slices.Equal(got.OutputIDs, []int{first}) {
		t.Errorf("decode answered %+v", got)
	}
}

// TestFaults: faults hit the legs that they name, here the request id of which they match a part.
func TestFaults(t *testing.T) {
	pair := simtest.SGLangPair(t, recordedEngine)
	for _, c := range []struct {
		name   string
		fault  fault.Fault
		status int
	}{
		{"prefill leg", fault.Fault{Leg: fault.LegPrefill, Fault: fault.Status, Arg: "503", Count: 1}, 503},
		{"request id in the body", fault.Fault{Fault: fault.Status, Arg: "429", Match: "mine", Count: 1}, 429},
		{"decode leg", fault.Fault{Leg: fault.LegDecode, Fault: fault.Status, Arg: "429", Count: 1}, 500}, // not this engine's
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := pair.Prefill.Faults.Add(c.fault); err != nil {
				t.Fatal(err)
			}
			defer pair.Prefill.Faults.Clear()
			r := simtest.Post(t, pair.Prefill.URL+"/generate", simtest.Generate([]int{11}, 1, simtest.Meet(pair.Prefill, 1), map[string]any{"rid": "mine"}))
			if r.Status != c.status {
				t.Errorf("status %d, want %d: %s", r.Status, c.status, r.Body)
			}
		})
	}
	t.Run("crash", func(t *testing.T) {
		if err := pair.Prefill.Faults.Add(fault.Fault{Fault: fault.Crash}); err != nil {
			t.Fatal(err)
		}
		if r, err := simtest.Try(t, http.MethodGet, pair.Prefill.URL+"/ready", ""); err == nil {
			t.Errorf("the engine answered %d", r.Status)
		}
		if err := pair.Prefill.Wait(); err == nil {
			t.Error("the engine has not died")
		}
	})
}
