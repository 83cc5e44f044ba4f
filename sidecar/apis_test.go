package sidecar

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
)

// questionsOf are the members of a request of each API that is split, besides model and stream. %q is the prompt.
var questionsOf = map[pd.API]string{
	pd.APIChat:        `"messages":[{"role":"user","content":%q}],"max_tokens":8,"temperature":0`,
	pd.APICompletions: `"prompt":%q,"max_tokens":8,"temperature":0`,
	pd.APIResponses:   `"input":%q,"instructions":"Be short.","max_output_tokens":8,"temperature":0`,
	pd.APIGenerate:    "", // askIn writes it
	pd.APIMessages:    `"system":"Be short.","messages":[{"role":"user","content":[{"type":"text","text":%q}]}],"max_tokens":8,"temperature":0`,
}

// askIn returns a request of an API for a prompt that no engine has seen.
func askIn(api pd.API, stream bool) string {
	if api == pd.APIGenerate {
		ids := strings.TrimSuffix(strings.Repeat(strconv.FormatInt(20+prompts.Add(1)%900, 10)+",7,8,9,", 30), ",")
		return fmt.Sprintf(`{"model":"tiny","stream":%t,"token_ids":[%s],"sampling_params":{"max_tokens":8,"temperature":0}}`, stream, ids)
	}
	prompt := strings.Repeat("the cache of a block "+strconv.FormatInt(prompts.Add(1), 10)+" ", 20)
	return fmt.Sprintf(`{"model":"tiny","stream":%t,`+questionsOf[api]+`}`, stream, prompt)
}

// said is the text and the usage of an answer in any API.
type said struct {
	text  string
	usage body.Usage
	ended bool // a stream is complete
}

// piece is a whole answer, or the data of an event.
type piece struct {
	Choices []struct {
		Text           string
		Message, Delta struct{ Content string }
		TokenIDs       []int `json:"token_ids"`
	}
	Output []struct {
		Content []struct{ Text string }
	}
	Content []struct{ Text string }
	Type    string
	Delta   json.RawMessage
}

func readSaid(t *testing.T, stream bool, text string) (s said) {
	t.Helper()
	s.usage = body.NoUsage
	var usage body.UsageReader
	take := func(data []byte) {
		var p piece
		if err := json.Unmarshal(data, &p); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if u, ok := usage.Event(data); ok {
			s.usage = s.usage.Merge(u)
		}
		s.text += p.spoken()
	}
	if !stream {
		take([]byte(text))
		s.ended = true
		return s
	}
	var events body.Events
	if err := events.Feed([]byte(text), func(e body.Event) error {
		if e.Error() {
			t.Errorf("the stream has an error: %s", e.Data)
		}
		s.ended = s.ended || e.Done()
		if string(e.Data) != "[DONE]" {
			take(e.Data)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// spoken returns the text that a piece adds. Events of responses repeat the text at the end.
func (p *piece) spoken() (text string) {
	for _, c := range p.Choices {
		text += c.Text + c.Message.Content + c.Delta.Content
		for _, id := range c.TokenIDs {
			text += strconv.Itoa(id) + " "
		}
	}
	for _, o := range p.Output {
		for _, c := range o.Content {
			text += c.Text
		}
	}
	for _, c := range p.Content {
		text += c.Text
	}
	var delta string
	var block struct{ Text string }
	switch p.Type {
	case "response.output_text.delta":
		_ = json.Unmarshal(p.Delta, &delta) // a text of another type is missed by the comparison
	case "content_block_delta":
		_ = json.Unmarshal(p.Delta, &block)
	}
	return text + delta + block.Text
}

// Each API is split over real legs, and the client gets what a plain engine says. A transfer that fails when the stream has
// already begun is redone without a trace.
func TestAPIsAreSplit(t *testing.T) {
	cases := []struct {
		name    string
		prefill *fault.Fault
		verdict pd.Verdict
		reason  pd.Reason
	}{
		{"handed off", nil, pd.Remote, pd.External},
		{"the transfer fails", &fault.Fault{Leg: "prefill", Fault: "bad-handoff", Arg: "far-blocks"}, pd.Local, pd.TransferFailed},
	}
	for _, c := range cases {
		for api := range questionsOf {
			for _, stream := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/stream=%v", c.name, api, stream), func(t *testing.T) {
					t.Parallel()
					scaled := sim.Config{ScaleOut: true}
					prefill, decode, plain := startSim(t, scaled), startSim(t, scaled), startSim(t, scaled)
					if c.prefill != nil {
						if err := prefill.Faults.Add(*c.prefill); err != nil {
							t.Fatal(err)
						}
					}
					s := startRig(t, addrOf(decode), set(func(c *Config) { c.Prefill.BlockSize = 32 }))
					q := askIn(api, stream)
					reply := post(t, s.url+api.Path(), q, pd.HeaderPrefill, addrOf(prefill))
					if d := reply.decision(t); reply.status != 200 || reply.err != nil || d.Verdict != c.verdict || d.Reason != c.reason {
						t.Fatalf("%d %v, %v: %s", reply.status, d, reply.err, reply.body)
					}
					got, want := readSaid(t, stream, reply.body), readSaid(t, stream, post(t, plain.URL+api.Path(), q).body)
					if got.text != want.text || got.text == "" || got.usage.Prompt != want.usage.Prompt || !got.ended {
						t.Errorf("got %+v, want %+v", got, want)
					}
					s.end()
					mustFree(t, prefill, decode)
					s.mustCount(t, 0, "tandem_kv_stranded_total")
				})
			}
		}
	}
}

// Events that open a stream say nothing about the transfer: an engine that fails after them has not answered yet.
func TestOpeningEventsAreHeldBack(t *testing.T) {
	const (
		created = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\"}}\n\n" +
			"event: response.in_progress\ndata: {\"type\":\"response.in_progress\",\"response\":{\"id\":\"resp_1\"}}\n\n"
		started   = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":40}}}\n\nevent: ping\ndata: {}\n\n"
		completed = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n" +
			"event: response.completed\ndata: {\"type\":\"response.completed\"}\n\n"
		stopped = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"x\"}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
		failed = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"x\"}}}\n\n"
		broken = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":\"x\"}}\n\n"
	)
	cases := []struct {
		name  string
		api   pd.API
		fails act
		right string
	}{
		{"responses break off", pd.APIResponses, then(streams(created), resets), created + completed},
		{"responses end", pd.APIResponses, streams(created), created + completed},
		{"responses fail", pd.APIResponses, streams(created, failed), created + completed},
		{"messages break off", pd.APIMessages, then(streams(started), resets), started + stopped},
		{"messages fail", pd.APIMessages, streams(started, broken), started + stopped},
		{"messages fail at once", pd.APIMessages, streams(broken), started + stopped},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, c.fails, streams(c.right))
			s := startRig(t, decode.addr)
			got := post(t, s.url+c.api.Path(), askIn(c.api, true), pd.HeaderPrefill, prefill.addr, "TE", "trailers")
			got.mustBe(t, 200, "local;reason=transfer-failed;attempts=1;candidate=0")
			if got.body != c.right || got.err != nil || !strings.HasPrefix(got.trailer.Get(pd.HeaderOutcome), "done") {
				t.Errorf("%q, %v, outcome %q", got.body, got.err, got.trailer.Get(pd.HeaderOutcome))
			}
		})
	}
}

// If prefill's engine does not hand its count of cached tokens over, decode's is wrong in the shape of each API.
func TestUsageOfAPIsIsCorrected(t *testing.T) {
	const ofPrompt = `{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":8},"completion_tokens":1}`
	offers := map[pd.API]string{
		pd.APIChat:        ofPrompt,
		pd.APICompletions: ofPrompt,
		pd.APIGenerate:    ofPrompt,
		pd.APIResponses:   `{"input_tokens":40,"input_tokens_details":{"cached_tokens":8},"output_tokens":1}`,
		pd.APIMessages:    `{"input_tokens":22,"cache_read_input_tokens":8,"cache_creation_input_tokens":10,"output_tokens":1}`,
	}
	const (
		choices   = `{"choices":[],"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":40},"completion_tokens":2}}`
		chunks    = firstEvent + "data: " + choices + "\n\n" + doneEvent
		whole     = `{"usage":{"input_tokens":40,"input_tokens_details":{"cached_tokens":40},"output_tokens":2}}`
		completed = "event: response.completed\ndata: {\"response\":" + whole + "}\n\n"
		message   = `{"usage":{"input_tokens":0,"output_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":40}}`
		started   = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":40,\"output_tokens\":0}}}\n\n"
		stopped   = "event: message_delta\ndata: " + message + "\n\nevent: message_stop\ndata: {}\n\n"
	)
	right := strings.NewReplacer(`"cached_tokens":40`, `"cached_tokens":8`, `"input_tokens":0,`, `"input_tokens":32,`, `"cache_read_input_tokens":40`, `"cache_read_input_tokens":8`)
	cases := []struct {
		name   string
		api    pd.API
		answer string
	}{
		{"chat, whole", pd.APIChat, choices},
		{"chat, stream", pd.APIChat, chunks},
		{"completions, whole", pd.APICompletions, choices},
		{"completions, stream", pd.APICompletions, chunks},
		{"generate, whole", pd.APIGenerate, choices},
		{"generate, stream", pd.APIGenerate, chunks},
		{"responses, whole", pd.APIResponses, whole},
		{"responses, stream", pd.APIResponses, completed},
		{"messages, whole", pd.APIMessages, message},
		{"messages, stream", pd.APIMessages, started + stopped},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			decodes, stream := says(200, "application/json", c.answer), c.answer[0] != '{'
			if stream {
				decodes = streams(c.answer)
			}
			prefill := startEngine(t, says(200, "application/json", `{"usage":`+offers[c.api]+`,"kv_transfer_params":`+oldHandoff+`}`))
			s := startRig(t, startEngine(t, decodes).addr)
			got := post(t, s.url+c.api.Path(), askIn(c.api, stream), pd.HeaderPrefill, prefill.addr, "TE", "trailers")
			got.mustBe(t, 200, servedRemote)
			if got.body != right.Replace(c.answer) || got.err != nil {
				t.Errorf("got %s, %v\nwant %s", got.body, got.err, right.Replace(c.answer))
			}
			if outcome := got.header.Get(pd.HeaderOutcome) + got.trailer.Get(pd.HeaderOutcome); outcome != "done;prompt=40;cached=8;completion=2" {
				t.Errorf("outcome %q", outcome)
			}
		})
	}
}

// vLLM serves the generate API only if it is told to. A prefill engine that was not told is no reason to refuse the request.
func TestGenerateIsOffAtPrefill(t *testing.T) {
	for _, stream := range []bool{true, false} {
		prefill, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{ScaleOut: true})
		s := startRig(t, addrOf(decode))
		post(t, s.url+pd.APIGenerate.Path(), askIn(pd.APIGenerate, stream), pd.HeaderPrefill, addrOf(prefill)).
			mustBe(t, 200, "local;reason=prefill-failed;attempts=1;candidate=0")
	}
}

// A budget for thinking must be below the limit, which the prefill leg sets to 1: an engine that minds is not the client's
// mistake.
func TestThinkingThatPrefillRefuses(t *testing.T) {
	const q = `{"model":"m","messages":[],"max_tokens":2048,"thinking":{"type":"enabled","budget_tokens":1024}}`
	prefill, decode := startEngine(t, says(400, "application/json", "{}")), startEngine(t, says(200, "application/json", "{}"))
	s := startRig(t, decode.addr)
	post(t, s.url+pd.APIMessages.Path(), q, pd.HeaderPrefill, prefill.addr).mustBe(t, 200, "local;reason=prefill-failed;attempts=1;candidate=0")
	decode.mustSee(t, q)
}
