package sidecar

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/continuation"
)

const toolsAsk = `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":20,"tools":[{"type":"function","function":{"name":"f"}}]}`

// chunk is an event of chat, and token one of a completion.
func chunk(delta string) string {
	return `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":` + delta + "}\n\n"
}

func token(text, finish, ids string) string {
	return fmt.Sprintf(`data: {"id":"cmpl-2","object":"text_completion","created":9,"model":"m","choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":%s,"stop_reason":null,"token_ids":%s}]}`+"\n\n", text, finish, ids)
}

// parses answers questions for parsed tokens: each token from 8 on is the next character of the arguments of a call, and 2 ends the answer.
func parses(t *testing.T) act {
	return func(w http.ResponseWriter, r *asked) {
		var q struct {
			State struct {
				IDs  []int    `json:"output_token_ids"`
				Lens []int    `json:"output_chunk_lens"`
				Call []string `json:"last_tool_call_ids"`
			} `json:"stream_state"`
			Chunk struct {
				Choices []struct {
					IDs []int `json:"token_ids"`
				}
			} `json:"generate_chunk"`
			Prompt []int          `json:"prompt_token_ids"`
			Chat   map[string]any `json:"chat_request"`
		}
		if err := json.Unmarshal([]byte(r.body), &q); err != nil || !slices.Equal(q.Prompt, []int{1, 2}) || !slices.Equal(q.State.Call, []string{"call-1"}) || q.Chat["tools"] == nil {
			t.Errorf("%v in %s", err, r.body)
		}
		text := ""
		for _, c := range q.Chunk.Choices {
			for _, id := range c.IDs {
				text += string(rune('a' + id - 8))
			}
			q.State.IDs, q.State.Lens = append(q.State.IDs, c.IDs...), append(q.State.Lens, len(c.IDs))
		}
		state, err := json.Marshal(map[string]any{"output_token_ids": q.State.IDs, "output_chunk_lens": q.State.Lens, "tools_streamed": true, "last_tool_call_ids": q.State.Call})
		if err != nil {
			t.Error(err)
		}
		says(http.StatusOK, "application/json", fmt.Sprintf(`{"chunk":{"choices":[{"index":0,"delta":{"role":null,"content":null,"tool_calls":[{"id":null,"index":0,"function":{"arguments":%q}}]}}]},"stream_state":%s}`, text, state))(w, r)
	}
}

// A chat's stream breaks off within a call of a tool. Another engine goes on, and parses what it generates.
func TestParsedStreamGoesOn(t *testing.T) {
	begun := []string{chunk(`{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2]`),
		chunk(`{"reasoning":"hm"},"logprobs":null,"finish_reason":null,"token_ids":[3]}]`),
		chunk(`{},"logprobs":null,"finish_reason":null,"token_ids":[4]}]`),
		chunk(`{"tool_calls":[{"id":"call-1","type":"function","index":0,"function":{"name":"f"}}]},"logprobs":null,"finish_reason":null,"token_ids":[5,6]}]`)}
	for name, c := range map[string]struct {
		parse  act
		result string
	}{
		"parsed":           {parses(t), "ok"},
		"not served":       {says(http.StatusForbidden, "application/json", `{"error":{}}`), "parsed"},
		"without a parser": {says(http.StatusOK, "application/json", `{"chunk":{"choices":[{"delta":{"content":"x"}}]},"stream_state":{"output_token_ids":[3,4,5,6]}}`), "parsed"},
		"fails":            {says(http.StatusInternalServerError, "application/json", `{"error":{}}`), "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			leg := streams(token("x", "null", "[8]"), token("y", "null", "[9,10]"), token("z", `"stop"`, "[2]"), "data: [DONE]\n\n")
			other := startEngine(t, func(w http.ResponseWriter, r *asked) {
				if r.URL.Path == continuation.ParsePath {
					c.parse(w, r)
					return
				}
				leg(w, r)
			})
			decode := startEngine(t, then(streams(begun...), closes))
			s := startRig(t, decode.addr, goesOn)
			got := post(t, s.url+pd.APIChat.Path(), toolsAsk, pd.HeaderDestination, decode.addr+","+other.addr)
			s.mustCount(t, 1, "tandem_continuations_total", "result", c.result)
			if c.result != "ok" {
				if kind, _ := lastError(t, pd.APIChat, got.body); kind == "" {
					t.Errorf("no error at the end of %s", got.body)
				}
				return
			}
			var arguments, finish string
			for _, event := range strings.Split(got.body, "\n\n") {
				var e struct {
					ID      string
					Choices []struct {
						Delta struct {
							Calls []struct{ Function struct{ Arguments string } } `json:"tool_calls"`
						}
						Finish string `json:"finish_reason"`
						IDs    []int  `json:"token_ids"`
					}
				}
				data := strings.TrimPrefix(event, "data: ")
				if data == "" || data == "[DONE]" {
					continue
				}
				if err := json.Unmarshal([]byte(data), &e); err != nil || e.ID != "chatcmpl-1" {
					t.Errorf("%v in %s", err, event)
				}
				for _, choice := range e.Choices {
					if choice.IDs != nil {
						t.Errorf("the client gets ids: %s", event)
					}
					finish += choice.Finish
					for _, call := range choice.Delta.Calls {
						arguments += call.Function.Arguments
					}
				}
			}
			if arguments != "abc" || finish != "tool_calls" || !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
				t.Errorf("arguments %q, finish %q in\n%s", arguments, finish, got.body)
			}
			var legs []string
			for _, r := range other.requests() {
				if r.URL.Path != continuation.ParsePath {
					legs = append(legs, r.body)
				}
			}
			if len(legs) != 1 || !strings.HasPrefix(legs[0], `{"prompt":[1,2,3,4,5,6],"max_tokens":16,`) {
				t.Errorf("legs %s", legs)
			}
		})
	}
}

// A chat's stream whose engine turns out to parse it is generated again, if it may be and no other engine can go on from its ids.
func TestStreamThatIsParsedIsRegenerated(t *testing.T) {
	const more = `,"logprobs":null,"finish_reason":null,"token_ids":[%d]}]`
	events := func(id string, ids bool) (all []string) {
		for i, delta := range []string{`{"role":"assistant","content":""}`, `{}`, `{"reasoning":"I"}`, `{"reasoning":" think"}`, `{}`, `{"content":"so"}`, `{"content":" it is"}`, `{}`} {
			end := fmt.Sprintf(more, i+2)
			switch {
			case i == 0:
				end = `,"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2]`
			case i == 7:
				end = strings.Replace(end, "null,\"token", `"stop","stop_reason":null,"token`, 1)
			case !ids && delta == "{}":
				continue // it is sent only because of the ids
			}
			all = append(all, strings.Replace(chunk(delta+end), "chatcmpl-1", id, 1))
		}
		if !ids {
			for i, e := range all {
				e, _, _ = strings.Cut(e, `,"prompt_token_ids"`)
				e, _, _ = strings.Cut(e, `,"token_ids"`)
				all[i] = strings.TrimSuffix(strings.TrimSuffix(e, "}\n\n"), "}]") + "}]}\n\n"
			}
		}
		return append(all, doneEvent)
	}
	stripped := strings.NewReplacer(`,"token_ids":null`, "", `,"prompt_token_ids":null`, "")
	want := strings.Join(events("chatcmpl-1", false), "")
	for name, c := range map[string]struct {
		ask    string
		parses bool
	}{
		"no engine parses":   {`{"messages":[],"stream":true,"temperature":0}`, false},
		"with a stop string": {`{"messages":[],"stream":true,"temperature":0,"stop":"x"}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			first := events("chatcmpl-1", true)
			for at := 2; at < len(first); at++ {
				decode := startEngine(t, then(streams(first[:at]...), closes))
				if !c.parses {
					decode.parsesNot()
				}
				other := startEngine(t, streams(events("chatcmpl-2", false)...))
				s := startRig(t, decode.addr, goesOn)
				got := post(t, s.url+pd.APIChat.Path(), c.ask, pd.HeaderDestination, decode.addr+","+other.addr)
				if body := stripped.Replace(got.body); body != want {
					t.Errorf("after %d events: %s", at, difference(body, want))
				}
				for _, r := range other.requests() {
					if r.body != c.ask {
						t.Errorf("the other engine gets %s", r.body)
					}
				}
			}
		})
	}
}
