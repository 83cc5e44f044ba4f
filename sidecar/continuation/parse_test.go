package continuation

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

const askTools = `{"model":"m","messages":[],"stream":true,"max_tokens":20,"tools":[{"type":"function","function":{"name":"f"}}]}`

// chatEvent is one of chat, as vLLM writes it.
func chatEvent(delta, finish, ids string) string {
	if finish != "null" {
		finish += `,"stop_reason":null`
	}
	return fmt.Sprintf(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s,"token_ids":%s}]}`+"\n\n",
		delta, finish, ids)
}

// opening is the first event of chat.
const opening = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2]}` + "\n\n"

// opened is what the client gets of it.
var opened = strings.Replace(opening, "[1,2]", "null", 1)

var idsList = regexp.MustCompile(`\[[0-9,]+\]`)

// take gives events of a leg to a Parsing, and returns the bodies of the questions. Each answer has the delta of the same number.
func take(t *testing.T, p *Parsing, leg string, deltas ...string) (questions []string, events string) {
	t.Helper()
	ask := func() error {
		q := p.Question()
		if q != nil {
			questions = append(questions, string(q))
			told := strings.Repeat(",9", int(p.count+p.told))
			answer := fmt.Sprintf(`{"chunk":{"choices":[{"index":0,"delta":%s}]},"stream_state":{"output_token_ids":[%s],"tools_streamed":%t,"n":%d}}`,
				deltas[len(questions)-1], strings.TrimPrefix(told, ","), strings.Contains(strings.Join(deltas, ""), `"tool_calls":[{`), len(questions))
			if err := p.Answer([]byte(answer)); err != nil {
				return err
			}
		}
		events += string(p.Events())
		return nil
	}
	var split body.Events
	err := split.Feed([]byte(leg), func(e body.Event) error {
		if p.Take(e); p.Full() {
			return ask()
		}
		return nil
	})
	if err == nil {
		err = ask()
	}
	if err != nil {
		t.Fatal(err)
	}
	return questions, events
}

// A stream has reasoning and the beginning of a call, then breaks off. The other engine gets what came, in the same pieces, and the client
// the rest of the call.
func TestParsedStreamGoesOn(t *testing.T) {
	s := start(t, pd.APIChat, askTools, 1<<20)
	first := []string{chatEvent(`{}`, "null", "[3]"), chatEvent(`{"reasoning":"hm"}`, "null", "[4,5]"),
		chatEvent(`{"tool_calls":[{"id":"call-1","type":"function","index":0,"function":{"name":"f"}}]}`, "null", "[6]"),
		chatEvent(`{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}`, "null", "[7]")}
	want := opened
	for _, one := range first[1:] {
		want += idsList.ReplaceAllString(one, "null")
	}
	if got := feed(t, s, append([]string{opening}, first...)...); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if why := s.Refusal(); why != "" {
		t.Fatal(why)
	}
	if leg := string(bytes.Join(s.Leg(0).Segments, nil)); !strings.HasPrefix(leg, `{"prompt":[1,2,3,4,5,6,7],"max_tokens":15,`) || strings.Contains(leg, "tools") {
		t.Error(leg)
	}
	p := s.Parsing()
	s.Moved()
	state := `"chat_request":` + askTools + `,"stream_state":{"role_sent":true,"output_token_ids":[3,4,5,6,7],"output_chunk_lens":[1,2,1,1],"tools_streamed":true,"last_tool_call_ids":["call-1"]}`
	if q := string(p.Check()); q != `{"stream":true,"prompt_token_ids":[1,2],`+state+`,"generate_chunk":{"request_id":"tandem","choices":[]}}` {
		t.Error(q)
	}
	questions, events := take(t, p, event("x", "null", "[1,2,3,4,5,6,7]", "[8]")+event("y", "null", "null", "[9,10]")+event("z", `"stop"`, "null", "[2]")+"data: [DONE]\n\n",
		`{"role":null,"content":null,"reasoning":null,"tool_calls":[{"id":null,"type":null,"index":0,"function":{"name":null,"arguments":"\"<é>\"}"}}]}`)
	if len(questions) != 1 || !strings.HasSuffix(questions[0], state+`,"generate_chunk":{"request_id":"tandem","choices":[{"index":0,"token_ids":[8,9,10],"finish_reason":"stop"}]}}`) {
		t.Errorf("questions %s", questions)
	}
	got := feed(t, s, events)
	want = idsList.ReplaceAllString(chatEvent(`{"tool_calls":[{"index":0,"function":{"arguments":"\"<é>\"}"}}]}`, `"tool_calls"`, "[8]"), "null") + "data: [DONE]\n\n"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A stream that goes on twice: the state of the parser has the pieces of the second engine too.
func TestParsedStreamGoesOnTwice(t *testing.T) {
	s := start(t, pd.APIChat, askTools, 1<<20)
	feed(t, s, opening, chatEvent(`{"content":"a"}`, "null", "[3]"))
	p := s.Parsing()
	s.Moved()
	questions, events := take(t, p, event("b", "null", "[1,2,3]", "[4,5]"), `{"tool_calls":[{"id":"call-2","type":"function","index":0,"function":{"name":"f"}}]}`)
	if !strings.HasSuffix(questions[0], `"token_ids":[4,5]}]}}`) {
		t.Error(questions)
	}
	feed(t, s, events)
	if q := string(s.Parsing().Check()); !strings.Contains(q, `"output_token_ids":[3,4,5],"output_chunk_lens":[1,2],"tools_streamed":true,"last_tool_call_ids":["call-2"]`) {
		t.Error(q)
	}
	if leg := string(bytes.Join(s.Leg(0).Segments, nil)); !strings.HasPrefix(leg, `{"prompt":[1,2,3,4,5],"max_tokens":17,`) {
		t.Error(leg)
	}
}

// Before its first reasoning, a stream of an engine with a parser begins anew.
func TestStreamWithoutParsedTextBeginsAnew(t *testing.T) {
	s := start(t, pd.APIChat, `{"model":"m","messages":[],"stream":true,"max_tokens":20}`, 1<<20)
	if got := feed(t, s, opening, chatEvent(`{}`, "null", "[3,4]")); got != opened {
		t.Error(got)
	}
	p := s.Parsing()
	if leg := string(bytes.Join(s.Leg(0).Segments, nil)); !strings.HasPrefix(leg, `{"prompt":[1,2],"max_tokens":20,`) {
		t.Error(leg)
	}
	s.Moved()
	if q := string(p.Check()); !strings.Contains(q, `"output_token_ids":[],"output_chunk_lens":[],"tools_streamed":false,"last_tool_call_ids":[]`) {
		t.Error(q)
	}
	_, events := take(t, p, event("<think>", "null", "[1,2]", "[3]"), `{}`)
	_, more := take(t, p, event("hm", "null", "null", "[4]"), `{"reasoning":"hm"}`)
	if got, want := feed(t, s, events, more), idsList.ReplaceAllString(chatEvent(`{"reasoning":"hm"}`, "null", "[4]"), "null"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// The request of a chat whose text is content as it is is not kept.
func TestRequestIsForgotten(t *testing.T) {
	mem := pd.NewBufferedBytes(1 << 20)
	r, _ := read(t, pd.APIChat, `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("x", 5000)+`"}],"stream":true}`, true)
	s := NewStream(r, mem)
	if mem.Bytes() < 5000 {
		t.Errorf("%v bytes are counted", mem.Bytes())
	}
	feed(t, s, opening, chatEvent(`{"content":"a"}`, "null", "[3]"))
	if mem.Bytes() > 2000 || s.Parsing() != nil || s.Refusal() != "" {
		t.Errorf("%v bytes are counted, parsed %v, refused %q", mem.Bytes(), s.Parsing() != nil, s.Refusal())
	}
	if s.Close(); mem.Bytes() != 0 {
		t.Errorf("%v bytes are left", mem.Bytes())
	}
}

func TestParsedStreamsThatDoNotGoOn(t *testing.T) {
	s := start(t, pd.APIChat, `{"messages":[],"stream":true,"stop":"x"}`, 1<<20)
	feed(t, s, opening, chatEvent(`{"reasoning":"a"}`, "null", "[3]"))
	if why := s.Refusal(); why != Stop {
		t.Errorf("with a stop string: %q", why)
	}
	s = start(t, pd.APIChat, askTools, 10) // less than the request
	feed(t, s, opening)
	if why := s.Refusal(); why == "" {
		t.Error("without memory for the request it is taken for one that can go on")
	}
	s = start(t, pd.APIChat, askTools, 1<<20)
	feed(t, s, opening, chatEvent(`{"content":"a"}`, "null", "[3]"))
	for answer, want := range map[string]error{
		`{"chunk":{"choices":[{"delta":{"content":"<tool_call>"}}]},"stream_state":{"output_token_ids":[3],"prev_tokens":["a"]}}`: ErrNoParser,
		`{"chunk":{"choices":[]}}`: nil,
		`x`:                        nil,
	} {
		p := s.Parsing()
		var split body.Events
		if err := split.Feed([]byte(event("b", "null", "[1,2,3]", "[4]")), func(e body.Event) error { p.Take(e); return nil }); err != nil {
			t.Fatal(err)
		}
		p.Question()
		if err := p.Answer([]byte(answer)); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

// The log probabilities of a part of a character wait for the rest: no other engine would complete them.
func TestScoresOfPartsAreHeldBack(t *testing.T) {
	s := start(t, pd.APIChat, strings.Replace(askTools, `"stream"`, `"logprobs":true,"stream"`, 1), 1<<20)
	scored := func(delta, token, ids string) string {
		return strings.Replace(chatEvent(delta, "null", ids), `"logprobs":null`, `"logprobs":{"content":[{"token":"x","logprob":-1,"bytes":[],"top_logprobs":[]},{"token":`+token+`,"logprob":-1,"bytes":[],"top_logprobs":[{"token":"y"}]}]}`, 1)
	}
	first := scored(`{"reasoning":"a"}`, `"a"`, "[3]")
	if got, want := feed(t, s, opening, first, scored(`{}`, `""`, "[4,5]")), opened+strings.Replace(first, "[3]", "null", 1); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if q := string(s.Parsing().Check()); !strings.Contains(q, `"output_token_ids":[3],"output_chunk_lens":[1],`) {
		t.Error(q)
	}
	rest := scored(`{"reasoning":"é"}`, `"é"`, "[6]")
	if got, want := feed(t, s, rest), strings.NewReplacer("[4,5]", "null", "[6]", "null").Replace(scored(`{}`, `""`, "[4,5]")+rest); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if q := string(s.Parsing().Check()); !strings.Contains(q, `"output_token_ids":[3,4,5,6],"output_chunk_lens":[1,2,1],`) {
		t.Error(q)
	}
}

// Events with log probabilities are parsed one by one, so that none has those of others.
func TestScoredEventsAreParsedOneByOne(t *testing.T) {
	s := start(t, pd.APIChat, strings.Replace(askTools, `"stream"`, `"logprobs":true,"stream"`, 1), 1<<20)
	feed(t, s, opening, chatEvent(`{"content":"a"}`, "null", "[3]"))
	p := s.Parsing()
	s.Moved()
	questions, _ := take(t, p, event("b", "null", "[1,2,3]", "[4]")+event("c", "null", "null", "[5]"), `{"content":"b"}`, `{"content":"c"}`)
	if len(questions) != 2 {
		t.Errorf("%d questions", len(questions))
	}
}
