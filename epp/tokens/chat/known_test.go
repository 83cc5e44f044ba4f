package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/tokens/jinja"
)

// fresh returns a template that has not seen a message.
func (t *Template) fresh() *Template {
	return &Template{usual: t.usual, withTools: t.withTools, special: t.special}
}

// same compares what a template makes of a body with what a fresh one makes of it.
func same(t *testing.T, seen *Template, body []byte) {
	t.Helper()
	want, wantErr := seen.fresh().Append(t.Context(), nil, body, time.Time{})
	got, err := seen.Append(t.Context(), nil, body, time.Time{})
	if fmt.Sprint(err) != fmt.Sprint(wantErr) || !bytes.Equal(got.Text, want.Text) || got.Special != want.Special {
		t.Errorf("%.400s:\ngot  %q, %v\nwant %q, %v", body, got.Text, err, want.Text, wantErr)
	}
}

// families are those with a template.
var families = []string{"qwen2_5", "qwen3", "llama3_1", "llama3_2", "deepseek_v3", "mistral_nemo", "gemma3", "internlm2", "command_r_plus"}

// TestKnownMessagesChangeNothing: prompts are the same whatever the template saw before. Conversations of messages in any order, of all roles,
// with tools, calls and reasoning, grow turn by turn; some go on otherwise from an earlier turn.
func TestKnownMessagesChangeNothing(t *testing.T) {
	var messages []json.RawMessage
	var tools json.RawMessage
	for _, body := range requests(t) {
		var r struct {
			Messages []json.RawMessage `json:"messages"`
			Tools    json.RawMessage   `json:"tools"`
		}
		if json.Unmarshal(body, &r) == nil {
			messages = append(messages, r.Messages...)
		}
		if len(r.Tools) > len(tools) {
			tools = r.Tools
		}
	}
	for _, text := range []string{
		`{"role":"assistant","content":"<think>\nwhy\n</think>\n\nso"}`,
		`{"role":"assistant","content":"so","reasoning_content":"why"}`,
		`{"role":"user","content":"<tool_response>\n5\n</tool_response>"}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"123456789","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}`,
		`{"role":"tool","tool_call_id":"123456789","content":"5"}`,
		` { "role" : "user", "content" : "a \\" , } ] \" b" } `,
		`{"role":"user","content":"{\"role\":\"user\"}"}`,
	} {
		messages = append(messages, json.RawMessage(text))
	}
	if len(messages) < 30 || tools == nil {
		t.Fatalf("there are %d messages, and the tools %s", len(messages), tools)
	}
	for _, name := range families {
		t.Run(name, func(t *testing.T) {
			seen := family(t, name)
			random := rand.New(rand.NewPCG(1, 2))
			prompts := 0
			body := func(turns []json.RawMessage) []byte {
				var with string
				switch random.IntN(4) {
				case 0:
					with = `"tools":` + string(tools) + `,`
				case 1:
					with = `"add_generation_prompt":false,`
				}
				return fmt.Appendf(nil, `{%s"messages":[%s]}`, with, bytes.Join(raw(turns), []byte(",")))
			}
			for range 20 {
				turns := []json.RawMessage{json.RawMessage(`{"role":"system","content":"a system"}`)}
				for i := range 8 {
					// Turns alternate in half of the conversations, as most templates want them.
					one := messages[random.IntN(len(messages))]
					if random.IntN(2) == 0 {
						one = json.RawMessage(fmt.Sprintf(`{"role":%q,"content":"%d"}`, []string{"user", "assistant"}[i%2], random.IntN(3)))
					}
					turns = append(turns, one)
					b := body(turns)
					same(t, seen, b)
					if _, err := seen.Append(t.Context(), nil, b, time.Time{}); err == nil {
						prompts++
					}
				}
				same(t, seen, body(turns[:1+random.IntN(8)]))
			}
			if prompts < 20 {
				t.Errorf("only %d requests have a prompt", prompts)
			}
		})
	}
}

func raw(messages []json.RawMessage) (out [][]byte) {
	for _, m := range messages {
		out = append(out, m)
	}
	return out
}

// TestKnownMessagesOfSeveralRequests makes prompts of the same messages in several goroutines, also of developers, whose messages become
// others for templates that do not know them.
func TestKnownMessagesOfSeveralRequests(t *testing.T) {
	template, err := Read(nil, []byte(chatml))
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"messages":[{"role":"user","content":"a"},{"role":"developer","content":"b"},{"role":"user","content":[{"type":"text","text":"c"}]}]}`)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				p, err := template.Append(t.Context(), nil, body, time.Time{})
				if want := "<system>b<user>a<user>c<assistant>"; err != nil || string(p.Text) != want {
					t.Errorf("got %q, %v, want %q", p.Text, err, want)
				}
			}
		})
	}
	all.Wait()
}

// TestKnownMessagesTakeLittleMemory: old messages are forgotten, and one that is used again is not.
func TestKnownMessagesTakeLittleMemory(t *testing.T) {
	var k known
	add := func(text string) { k.Add([]byte(text), &jinja.Dict{}) }
	const size = 10_000
	padding := string(bytes.Repeat([]byte("x"), size))
	add("used")
	for i := range 2 * knownBytes / size {
		add(fmt.Sprint(i, padding))
		if k.Find([]byte("used")) == nil {
			t.Fatalf("a message that is used was forgotten after %d others", i)
		}
	}
	bytes := 0
	for i := range k {
		for _, generation := range []map[uint64]*message{k[i].young, k[i].old} {
			for _, m := range generation {
				bytes += m.size
			}
		}
	}
	if bytes > knownBytes {
		t.Errorf("messages take %d bytes, want at most %d", bytes, knownBytes)
	}
	if k.Find([]byte("0"+padding)) != nil {
		t.Error("the oldest message is still known")
	}
	add(string(make([]byte, knownBytes)))
	if k.Find(make([]byte, knownBytes)) != nil {
		t.Error("a message that takes all memory is remembered")
	}
}

// TestKnownMessagesOfManyValues: what takes much more memory than its text is counted, as it is read and as the template gets it.
func TestKnownMessagesOfManyValues(t *testing.T) {
	empty := "[" + strings.Repeat("{},", 400) + "{}]"
	many := "[" + strings.Repeat("{},", 20_000) + "{}]"
	call := func(arguments string) string {
		return `{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":` + strconv.Quote(`{"a":`+arguments+`}`) + `}}]}`
	}
	for _, c := range []struct {
		name, text        string
		remembered, whole bool // whole: also as the template gets it
	}{
		{"some values", `{"role":"user","content":"a","x":` + empty + `}`, true, true},
		{"many values", `{"role":"user","content":"a","x":` + many + `}`, false, false},
		{"some arguments", call(empty), true, true},
		{"many arguments", call(many), true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			template, err := Read(nil, []byte(chatml))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := template.Append(t.Context(), nil, []byte(`{"messages":[`+c.text+`]}`), time.Time{}); err != nil {
				t.Fatal(err)
			}
			v := template.known.Find([]byte(c.text))
			m, ok := v.(*message)
			if ok != c.remembered || ok && (m.prepared[0].Load() != nil) != c.whole {
				t.Fatalf("remembered: %v, want %v, as the template gets it: %v", ok, c.remembered, c.whole)
			}
			if ok && c.whole && (m.size < 400*valueBytes || template.known[m.hash%shards].bytes != m.size) {
				t.Errorf("it takes %d bytes, its shard %d", m.size, template.known[m.hash%shards].bytes)
			}
		})
	}
}
