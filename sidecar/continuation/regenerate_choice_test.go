package continuation

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// chatStream is a stream of chat as vLLM writes it. Each step is a delta, or ends the choice with its reason after a bar.
func chatStream(id string, steps ...string) string {
	var out strings.Builder
	head := fmt.Sprintf(`data: {"id":"chatcmpl-%s","object":"chat.completion.chunk","created":%d,"model":"m",`, id, len(id))
	for _, step := range steps {
		delta, finish, finishes := strings.Cut(step, "|")
		end := "null"
		if finishes {
			end = `"` + finish + `","stop_reason":null`
		}
		fmt.Fprintf(&out, `%s"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]}`+"\n\n", head, strings.ReplaceAll(delta, "TOOL", "chatcmpl-tool-"+id), end)
	}
	return out.String()
}

// completionStream is a stream of a completion with its text in pieces, of which the last one ends it.
func completionStream(id string, texts ...string) string {
	var out strings.Builder
	for i, text := range texts {
		finish := "null"
		if i == len(texts)-1 {
			finish = `"length"`
		}
		fmt.Fprintf(&out, `data: {"id":"cmpl-%s","object":"text_completion","created":%d,"model":"m","choices":[{"index":0,"text":"%s","logprobs":null,"finish_reason":%s,"stop_reason":null}]}`+"\n\n",
			id, len(id), text, finish)
	}
	return out.String()
}

const (
	role     = `{"role":"assistant","content":""}`
	theUsage = `data: {"id":"chatcmpl-%[1]s","object":"chat.completion.chunk","created":%[2]d,"model":"m","choices":[],"usage":{"prompt_tokens":5}}` + "\n\n"
	theEnd   = "data: [DONE]\n\n"
)

// header begins a tool call, and input goes on with its arguments; calls is the delta that has some of them.
func header(index int, name, arguments string) string {
	return fmt.Sprintf(`{"index":%d,"id":"TOOL%d","type":"function","function":{"name":%q,"arguments":"%s"}}`, index, index, name, arguments)
}

func input(index int, arguments string) string {
	return fmt.Sprintf(`{"index":%d,"function":{"arguments":"%s"}}`, index, arguments)
}

func calls(calls ...string) string { return `{"tool_calls":[` + strings.Join(calls, ",") + `]}` }

// chatAnswer is what a client makes of a stream of chat or completions.
type chatAnswer struct {
	IDs, Roles, Reasoning, Content, Finish string
	Calls                                  [2]struct{ ID, Kind, Name, Arguments string }
	Usages, Ends                           int
}

// joined reads a stream as clients do: it adds what each event says.
func joined(t *testing.T, stream string) (a chatAnswer) {
	t.Helper()
	for _, event := range strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		data := strings.TrimPrefix(event, "data: ")
		if data == "[DONE]" {
			a.Ends++
			continue
		}
		var e struct {
			ID      string
			Created int
			Choices []struct {
				Text  string
				Delta struct {
					Role, Reasoning, Content string
					ToolCalls                []struct {
						Index    int
						ID, Type string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				Finish string `json:"finish_reason"`
			}
			Usage any
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%v in %s", err, event)
		}
		if own := fmt.Sprint(e.ID, " ", e.Created); !strings.Contains(a.IDs, own) {
			a.IDs += own + ";"
		}
		if e.Usage != nil {
			a.Usages++
		}
		for _, c := range e.Choices {
			a.Roles += c.Delta.Role
			a.Reasoning += c.Delta.Reasoning
			a.Content += c.Text + c.Delta.Content
			a.Finish += c.Finish
			for _, call := range c.Delta.ToolCalls {
				to := &a.Calls[call.Index]
				to.ID += call.ID
				to.Kind += call.Type
				to.Name += call.Function.Name
				to.Arguments += call.Function.Arguments
			}
		}
	}
	return a
}

// Another engine generates a stream of chat or completions again whose first engine died after any event. It is busier or less busy, so that
// its events have other parts of the answer. The client gets one answer.
func TestChoiceIsRegenerated(t *testing.T) {
	content := func(text string) string { return `{"content":"` + text + `"}` }
	tools := []string{role, `{"content":"Let"}`, `{"content":" me"}`, calls(header(0, "weather", "")), calls(input(0, "{")), calls(input(0, `\"city\":`)), calls(input(0, `\"Rome\"}`)),
		calls(header(1, "time", `{`)), calls(input(1, `}`)), `{}|tool_calls`}
	busyTools := []string{role, `{"content":"Let me","tool_calls":[` + header(0, "weather", `{\"ci`) + `]}`, calls(input(0, `ty\":\"Ro`)), calls(input(0, `me\"}`), header(1, "time", "")), calls(input(1, `{}`)) + `|tool_calls`}
	list := strings.Trim(calls(header(0, "weather", `{\"city\":\"Rome\"}`), header(1, "time", "{}")), "{}")
	oneEvent, listFirst := []string{role, `{"content":"Let me",` + list + `}|tool_calls`}, []string{role, `{` + list + `,"content":"Let me"}|tool_calls`}
	thinks := []string{role, `{"reasoning":"I "}`, `{"reasoning":"thi"}`, `{"reasoning":"nk"}`, content("It"), content(""), content(` is \"`), content(`😀\"`), content("") + "|stop"}
	busyThinks := []string{role, `{"reasoning":"I thi"}`, `{"content":"It i","reasoning":"nk"}`, content(`s \"😀\"`) + "|stop"}
	usage := func(id string) string { return fmt.Sprintf(theUsage, id, len(id)) }
	for name, c := range map[string]struct{ first, other string }{
		"chat that thinks":                   {chatStream("1", thinks...), chatStream("22", thinks...)},
		"chat that thinks, busy":             {chatStream("1", thinks...), chatStream("22", busyThinks...)},
		"chat that thinks, less busy":        {chatStream("1", busyThinks...), chatStream("22", thinks...)},
		"chat with tool calls":               {chatStream("1", tools...), chatStream("22", tools...)},
		"chat with tool calls, busy":         {chatStream("1", tools...), chatStream("22", busyTools...)},
		"chat with tool calls, less busy":    {chatStream("1", busyTools...), chatStream("22", tools...)},
		"chat with tool calls, one event":    {chatStream("1", tools...), chatStream("22", oneEvent...)},
		"chat with tool calls, list first":   {chatStream("1", tools...), chatStream("22", listFirst...)},
		"chat with tool calls, at once":      {chatStream("1", oneEvent...), chatStream("22", tools...)},
		"chat with its usage":                {chatStream("1", thinks...) + usage("1"), chatStream("22", busyThinks...) + usage("22")},
		"a completion":                       {completionStream("1", "a", "", `\"b`, "é", "c"), completionStream("22", "a", "", `\"b`, "é", "c")},
		"a completion of one event":          {completionStream("1", "a", "", `\"b`, "é", "c"), completionStream("22", `a\"béc`)},
		"a completion of events less filled": {completionStream("1", `a\"bé`, "c"), completionStream("22", "a", `\"`, "b", "é", "c")},
	} {
		t.Run(name, func(t *testing.T) {
			first, other := c.first+theEnd, c.other+theEnd
			events := strings.SplitAfter(first, "\n\n")
			for at := 1; at < len(events); at++ {
				before := strings.Join(events[:at], "")
				r := regenerateUsage(strings.Contains(first, `"usage"`))
				if got := relayed(t, r, before); got != before {
					t.Fatalf("the events of the first engine are changed: %s", got)
				}
				if r.Moved(); strings.HasSuffix(before, theEnd) {
					break
				}
				got := before + relayed(t, r, other)
				if r.Broken() != nil {
					t.Fatalf("after %d events: %v", at, r.Broken())
				}
				for call := range 2 { // one that the client has not seen has the other engine's id
					if mine := fmt.Sprintf(`"chatcmpl-tool-1%d"`, call); !strings.Contains(before, mine) {
						got = strings.ReplaceAll(got, fmt.Sprintf(`"chatcmpl-tool-22%d"`, call), mine)
					}
				}
				if a, b := joined(t, got), joined(t, first); !reflect.DeepEqual(a, b) {
					t.Errorf("after %d events:\n%+v\nwant\n%+v", at, a, b)
				}
				same := strings.NewReplacer("-22", "-1", "tool-22", "tool-1", `"created":2`, `"created":1`).Replace(other) == first
				if same && got != first {
					t.Errorf("after %d events the other engine's are the same, and the client gets\n%s\nwant\n%s", at, got, first)
				}
				r.Close()
			}
		})
	}
}

// regenerateUsage begins the stream of a request that may ask for its usage.
func regenerateUsage(usage bool) *Regeneration {
	text := fmt.Sprintf(`{"stream_options":{"include_usage":%t}}`, usage)
	return NewRegeneration(request.Payload{Segments: [][]byte{[]byte(text)}, Length: int64(len(text))}, pd.NewBufferedBytes(100))
}

// An engine that says something else, or in a form that cannot be cut, ends the stream before the client gets any of it.
func TestChoiceDiffers(t *testing.T) {
	sent := chatStream("1", role, `{"content":"Let"}`, calls(header(0, "weather", `{`)))
	scored := func(text, ids, tokens string) string {
		return fmt.Sprintf(`data: {"id":"x","choices":[{"text":%q,"token_ids":[%s],"logprobs":{"tokens":[%s]}}]}`+"\n\n", text, ids, tokens)
	}
	for name, c := range map[string]struct{ first, other string }{
		"another text":           {sent, chatStream("2", role, `{"content":"Left"}`)},
		"a shorter text":         {sent, chatStream("2", role, `{"content":"Le"}`, calls(header(0, "weather", `{}`)))},
		"a longer text":          {sent, chatStream("2", role, `{"content":"Let me"}`, calls(header(0, "weather", `{}`)))},
		"reasoning":              {sent, chatStream("2", role, `{"reasoning":"Let"}`)},
		"another tool":           {sent, chatStream("2", role, `{"content":"Let"}`, calls(header(0, "time", `{}`)))},
		"another argument":       {sent, chatStream("2", role, `{"content":"Let"}`, calls(header(0, "weather", `[]`)))},
		"another call":           {sent, chatStream("2", role, `{"content":"Let"}`, calls(header(1, "weather", `{}`)))},
		"an early end":           {sent, chatStream("2", role, `{"content":"Let"}|stop`) + theEnd},
		"no more":                {sent, chatStream("2", role, `{"content":"Let"}`) + theEnd},
		"an early usage":         {sent, chatStream("2", role, `{"content":"Let"}`) + fmt.Sprintf(theUsage, "2", 1)},
		"another reason":         {chatStream("1", role, `{"content":"a"}|stop`), chatStream("2", role, `{"content":"a"}|length`)},
		"a member of the delta":  {sent, chatStream("2", role, `{"content":"Let me","refusal":null}`)},
		"a member of the call":   {sent, chatStream("2", role, `{"content":"Let"}`, calls(`{"index":0,"more":1,"function":{"arguments":"{}"}}`))},
		"a member of a function": {sent, chatStream("2", role, `{"content":"Let"}`, calls(`{"index":0,"function":{"arguments":"{}","more":1}}`))},
		"a call without index":   {sent, chatStream("2", role, `{"content":"Let"}`, calls(`{"function":{"arguments":"{}"}}`))},
		"a function of one word": {sent, chatStream("2", role, `{"content":"Let"}`, calls(`{"index":0,"function":"weather"}`))},
		"no list":                {sent, chatStream("2", role, `{"content":"Let","tool_calls":{}}`)},
		"no text":                {sent, chatStream("2", role, `{"content":7}`)},
		"two choices":            {sent, `data: {"choices":[{"index":0,"delta":{}},{"index":1,"delta":{}}]}` + "\n\n"},
		"no choices":             {sent, `data: {"choices":[]}` + "\n\n"},
		"no JSON":                {sent, "data: {\n\n"},
		"a role with a text":     {chatStream("1", role), chatStream("2", `{"role":"assistant","content":"Let"}`)},
		"ids of half a text":     {scored("a", "7", ""), scored("ab", "7,8", "")},
		"scores of half a text":  {scored("a", "", `"a"`), scored("ab", "", `"a","b"`)},
		"ids of a text without":  {scored("a", "", ""), scored("ab", "7,8", "")},
		"fewer ids of a text":    {scored("a", "7,8", ""), scored("ab", "7", "")},
	} {
		t.Run(name, func(t *testing.T) {
			r := regenerate(100)
			relayed(t, r, c.first)
			r.Moved()
			if got := relayed(t, r, c.other); got != "" || r.Broken() == nil {
				t.Errorf("the client gets %q, error %v", got, r.Broken())
			}
		})
	}
}

// An event of the first engine in another form than vLLM's passes as it is, and its stream does not go on.
func TestChoiceIsNotKnown(t *testing.T) {
	for _, data := range []string{`{"choices":{}}`, `{"choices":[{},{}]}`, `{"choices":[{"index":0,"delta":{"audio":{}}}]}`, `{"choices":[]}`} {
		r := regenerate(100)
		event := "data: " + data + "\n\n"
		if got := relayed(t, r, event); got != event || r.Refusal() != Unreadable {
			t.Errorf("the client gets %q of %q, refusal %q", got, event, r.Refusal())
		}
	}
}

// Token ids and log probabilities are sent once each, also those of events that have no text.
func TestChoiceWithTokens(t *testing.T) {
	const form = `data: {"id":"%s","created":1,"choices":[{"index":0,"text":"%s","logprobs":%s,"finish_reason":null,"token_ids":%s}]}` + "\n\n"
	for name, details := range map[string][3][2]string{
		"ids":               {{"null", "[1]"}, {"null", "[2]"}, {"null", "[3]"}},
		"log probabilities": {{`{"tokens":["a"]}`, "null"}, {`{"tokens":["b"]}`, "null"}, {`{"tokens":["c"]}`, "null"}},
		"both":              {{`{"tokens":["a"]}`, "[1]"}, {`{"tokens":["b"]}`, "[2]"}, {`{"tokens":["c"]}`, "[3]"}},
	} {
		t.Run(name, func(t *testing.T) {
			stream := func(id string) (all string) {
				for i, text := range []string{"a", "", "é"} {
					all += fmt.Sprintf(form, id, text, details[i][0], details[i][1])
				}
				return all
			}
			events := strings.SplitAfter(stream("x"), "\n\n")
			for at := 1; at < len(events); at++ {
				r := regenerate(100)
				got := relayed(t, r, strings.Join(events[:at], ""))
				r.Moved()
				if got += relayed(t, r, stream("y")); got != stream("x") || r.Broken() != nil {
					t.Errorf("after %d events, %v:\n%s", at, r.Broken(), got)
				}
			}
		})
	}
}

// What lacks of a stream is only its end, if the client has the finish reason, and its usage if it has asked for it.
func TestEndOfARegeneration(t *testing.T) {
	finish, usage := chatStream("1", role, `{"content":"a"}|stop`), fmt.Sprintf(theUsage, "1", 1)
	for name, c := range map[string]struct {
		usage bool
		sent  string
		ends  bool
	}{
		"in the middle":     {false, chatStream("1", role, `{"content":"a"}`), false},
		"without usage":     {false, finish, true},
		"before the usage":  {true, finish, false},
		"after the usage":   {true, finish + usage, true},
		"usage all the way": {false, finish + usage, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := regenerateUsage(c.usage)
			relayed(t, r, c.sent)
			end := string(r.End())
			if ends := end == theEnd; ends != c.ends || !ends && end != "" {
				t.Errorf("it ends with %q", end)
			}
			if r.Moved(); c.ends && relayed(t, r, end) != theEnd { // after an engine that has not said all of it again
				t.Error("the client does not get the end")
			}
		})
	}
}

func TestRegenerable(t *testing.T) {
	for _, c := range []struct {
		api  pd.API
		text string
		want Refusal
	}{
		{pd.APIChat, `{"stream":true,"temperature":0}`, ""},
		{pd.APIChat, `{"stream":true,"temperature":0.0,"n":1,"use_beam_search":false}`, ""},
		{pd.APIChat, `{"stream":true,"temperature":1,"seed":7}`, ""},
		{pd.APIChat, `{"stream":true,"temperature":1,"seed":-1}`, Sampled},
		{pd.APIChat, `{"stream":true,"temperature":1,"seed":null}`, Sampled},
		{pd.APIChat, `{"stream":true}`, Sampled},
		{pd.APIChat, `{"temperature":0}`, Whole},
		{pd.APIChat, `{"stream":true,"temperature":0,"n":2}`, Choices},
		{pd.APIChat, `{"stream":true,"temperature":0,"use_beam_search":true}`, Choices},
		{pd.APIChat, `{"stream":true,"temperature":0,"tools":[{"type":"function"},{"type":"custom"}]}`, ""},
		{pd.APIChat, `{"stream":true,"temperature":0,"temperature":1}`, Unreadable},
		{pd.APIChat, `[]`, Unreadable},
		{pd.APICompletions, `{"stream":true,"temperature":0,"prompt":"x"}`, ""},
		{pd.APICompletions, `{"stream":true,"temperature":0,"prompt":[1,2]}`, ""},
		{pd.APICompletions, `{"stream":true,"temperature":0,"prompt":["x"]}`, Choices},
		{pd.APICompletions, `{"stream":true,"temperature":0,"prompt":[[1,2]]}`, Choices},
		{pd.APICompletions, `{"stream":true,"temperature":0,"prompt":"x","best_of":2}`, Choices},
		{pd.APICompletions, `{"stream":true,"temperature":0}`, Choices},
		{pd.APIResponses, `{"stream":true,"temperature":0,"tools":[{"type":"function"}]}`, ""},
		{pd.APIResponses, `{"stream":true,"temperature":0,"tools":[{"type":"web_search"}]}`, Tools},
		{pd.APIResponses, `{"stream":true,"temperature":0,"background":true}`, Whole},
		{pd.APIMessages, `{"stream":true,"temperature":1,"seed":7}`, Sampled},
		{pd.APIEmbeddings, `{"stream":true,"temperature":0}`, OtherAPI},
	} {
		var b body.Body
		b.Append([]byte(c.text))
		if why := Regenerable(c.api, &b, true); why != c.want {
			t.Errorf("%s %s: %q, want %q", c.api, c.text, why, c.want)
		}
	}
}

func TestRegenerationAllocs(t *testing.T) {
	for name, stream := range map[string]string{"chat": chatStream("1", role, `{"content":" hello"}`, `{"content":" there"}`), "a completion": completionStream("1", "a", " hello", " there")} {
		t.Run(name, func(t *testing.T) {
			r := regenerate(100)
			events := strings.SplitAfter(stream, "\n\n")
			relayed(t, r, strings.Join(events[:2], ""))
			e := parsed(t, strings.Replace(events[1], `" hello"`, `" there"`, 1))
			if n := testing.AllocsPerRun(100, func() { r.Event(e) }); n > 0 {
				t.Errorf("%v allocations for an event", n)
			}
		})
	}
}
