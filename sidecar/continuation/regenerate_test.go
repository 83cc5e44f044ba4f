package continuation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// named is an event of responses or messages.
func named(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }

// said are events of messages with text of one block.
func said(kind, member string, index int, texts ...string) (all []string) {
	for _, text := range texts {
		all = append(all, named("content_block_delta", fmt.Sprintf(`{"type":"content_block_delta","delta":{"type":%q,%q:"%s"},"index":%d}`, kind, member, text, index)))
	}
	return all
}

// toolStream is a stream of messages that thinks, speaks and calls a tool, with its texts in pieces.
func toolStream(id string, thoughts, texts, arguments []string) string {
	block := func(index int, block string) string {
		return named("content_block_start", fmt.Sprintf(`{"type":"content_block_start","content_block":%s,"index":%d}`, block, index))
	}
	stop := func(index int) string {
		return named("content_block_stop", fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, index))
	}
	all := []string{named("message_start", `{"type":"message_start","message":{"id":"chatcmpl-`+id+`","usage":{"input_tokens":5,"output_tokens":0}}}`),
		block(0, `{"type":"thinking","thinking":""}`)}
	all = append(append(all, said("thinking_delta", "thinking", 0, thoughts...)...), stop(0), block(1, `{"type":"text","text":""}`))
	all = append(append(all, said("text_delta", "text", 1, texts...)...), stop(1), block(2, `{"type":"tool_use","id":"toolu-`+id+`","name":"weather","input":{}}`))
	all = append(append(all, said("input_json_delta", "partial_json", 2, arguments...)...), stop(2),
		named("message_delta", `{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"input_tokens":5,"output_tokens":9}}`),
		named("message_stop", `{"type":"message_stop"}`))
	return strings.Join(all, "")
}

// responseStream is a stream of responses with its text in pieces.
func responseStream(id string, texts ...string) string {
	n := -1
	event := func(name, members string) string {
		n++
		return named(name, fmt.Sprintf(`{%s,"sequence_number":%d,"type":%q}`, members, n, name))
	}
	response := fmt.Sprintf(`"response":{"id":"resp_%s","created_at":%d,"output":[]}`, id, len(id))
	all := event("response.created", response) + event("response.in_progress", response) +
		event("response.output_item.added", `"item":{"id":"msg_`+id+`","type":"message"},"output_index":0`)
	for _, text := range texts {
		all += event("response.output_text.delta", fmt.Sprintf(`"content_index":0,"delta":"%s","item_id":"msg_%s","logprobs":[],"output_index":0`, text, id))
	}
	whole := strings.Join(texts, "")
	return all + event("response.output_text.done", `"content_index":0,"item_id":"msg_`+id+`","output_index":0,"text":"`+whole+`"`) +
		event("response.output_item.done", `"item":{"id":"msg_`+id+`","type":"message","text":"`+whole+`"},"output_index":0`) +
		event("response.completed", fmt.Sprintf(`"response":{"id":"resp_%s","created_at":%d,"output":[{"id":"msg_%s","text":"%s"}]}`, id, len(id), id, whole))
}

// regenerate begins a stream.
func regenerate(memory int64) *Regeneration {
	return NewRegeneration(request.Payload{Segments: [][]byte{[]byte("{"), []byte("}")}, Length: 2}, pd.NewBufferedBytes(memory))
}

// relayed gives events to a stream, and returns what the client gets.
func relayed(t testing.TB, r *Regeneration, events string) string {
	t.Helper()
	var out strings.Builder
	var split body.Events
	if err := split.Feed([]byte(events), func(e body.Event) error {
		out.Write(r.Event(e).Raw)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// textsOf joins the texts of successive events of one kind: how an answer is cut into events is not part of it.
func textsOf(t testing.TB, stream string) string {
	t.Helper()
	var out strings.Builder
	var split body.Events
	last := ""
	if err := split.Feed([]byte(stream), func(e body.Event) error {
		data := string(e.Data)
		for _, mark := range []string{`"delta":"`, `"text":"`, `"thinking":"`, `"partial_json":"`} {
			if at := strings.Index(data, mark); at >= 0 && strings.HasSuffix(string(e.Name), "delta") {
				text := data[at+len(mark):]
				end := 0
				for text[end] != '"' {
					if text[end] == '\\' {
						end++
					}
					end++
				}
				if mark != last {
					fmt.Fprintf(&out, "\n%s ", mark)
				}
				last = mark
				out.WriteString(text[:end])
				return nil
			}
		}
		last = ""
		fmt.Fprintf(&out, "\n%s %s", e.Name, data)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Another engine generates a stream again whose first engine died after any event: its thoughts, texts and tool calls are cut into other
// events, and have other ids. The client gets one answer.
func TestRegeneration(t *testing.T) {
	for name, c := range map[string]struct{ first, other, want string }{
		"messages": {
			toolStream("1", []string{"I ", "think"}, []string{"It", ` is \"`, `é😀\"`, " and\\n"}, []string{"{", `\"city\":`, `\"Rome\"}`}),
			toolStream("22", []string{"I th", "in", "k"}, []string{`It is \"é😀`, `\" `, "an", "d\\n"}, []string{`{\"city\":\"Ro`, `me\"}`}),
			toolStream("1", []string{"I think"}, []string{`It is \"é😀\" and\n`}, []string{`{\"city\":\"Rome\"}`}),
		},
		"responses": {responseStream("1", "a", `\"b`, "c😀", "d"), responseStream("22", "a", `\"bc`, "😀", "d"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.want
			if want == "" {
				want = c.first
			}
			events := strings.SplitAfter(c.first, "\n\n")
			for at := 1; at < len(events); at++ {
				r := regenerate(100)
				got := relayed(t, r, strings.Join(events[:at], ""))
				if got != strings.Join(events[:at], "") {
					t.Fatalf("the events of the first engine are changed: %s", got)
				}
				r.Moved()
				got += relayed(t, r, c.other)
				if r.Broken() != nil {
					t.Fatalf("after %d events: %v", at, r.Broken())
				}
				inOrder(t, got)
				for _, kind := range []string{"chatcmpl-", "toolu-", "resp_", "msg_"} { // an item that the client has not seen has the other engine's id
					if first := `"` + kind + `1"`; !strings.Contains(strings.Join(events[:at], ""), first) {
						got = strings.ReplaceAll(got, `"`+kind+`22"`, first)
					}
				}
				if a, b := textsOf(t, unnumbered(got)), textsOf(t, unnumbered(want)); a != b {
					t.Fatalf("after %d events:\n%s\nwant\n%s", at, a, b)
				}
				r.Close()
			}
		})
	}
}

// numbers finds the numbers of events of responses.
func numbers(stream string) []string {
	parts := strings.Split(stream, `"sequence_number":`)
	for i, p := range parts {
		parts[i] = p[:max(strings.IndexByte(p, ','), 0)]
	}
	return parts[1:]
}

// unnumbered replaces the numbers, which depend on how the text was cut.
func unnumbered(stream string) string {
	for _, n := range numbers(stream) {
		stream = strings.Replace(stream, `"sequence_number":`+n+",", "", 1)
	}
	return stream
}

func inOrder(t *testing.T, stream string) {
	t.Helper()
	for i, n := range numbers(stream) {
		if n != fmt.Sprint(i) {
			t.Fatalf("event %d has number %s: %s", i, n, stream)
		}
	}
}

// An engine that says something else ends the stream, before the client gets any of it.
func TestRegenerationDiffers(t *testing.T) {
	first := toolStream("1", []string{"I ", "think"}, []string{"It", " is"}, []string{"{", "}"})
	for name, other := range map[string]string{
		"another text":     toolStream("2", []string{"I thinc"}, []string{"It is"}, []string{"{}"}),
		"a shorter text":   toolStream("2", []string{"I "}, []string{"It is"}, []string{"{}"}),
		"a longer text":    toolStream("2", []string{"I think so"}, []string{"It is"}, []string{"{}"}),
		"another block":    strings.ReplaceAll(toolStream("2", []string{"I think"}, []string{"It is"}, []string{"{}"}), "thinking", "text"),
		"another tool":     strings.ReplaceAll(toolStream("2", []string{"I think"}, []string{"It is"}, []string{"{}"}), "weather", "time"),
		"no JSON":          named("message_start", "{"),
		"ends too early":   named("message_start", `{"type":"message_start","message":{"id":"chatcmpl-2"}}`) + named("message_stop", `{"type":"message_stop"}`),
		"another argument": toolStream("2", []string{"I think"}, []string{"It is"}, []string{"[]"}),
	} {
		t.Run(name, func(t *testing.T) {
			r := regenerate(100)
			relayed(t, r, first[:strings.Index(first, named("message_delta", "")[:20])])
			r.Moved()
			if got := relayed(t, r, other); got != "" || r.Broken() == nil {
				t.Errorf("the client gets %q, error %v", got, r.Broken())
			}
		})
	}
	t.Run("log probabilities of a token that was half sent", func(t *testing.T) {
		r := regenerate(100)
		relayed(t, r, strings.Join(strings.SplitAfter(responseStream("1", "ab"), "\n\n")[:4], ""))
		r.Moved()
		other := strings.ReplaceAll(responseStream("2", "abc"), `"logprobs":[]`, `"logprobs":[{"token":"abc"}]`)
		if got := relayed(t, r, other); got != "" || r.Broken() == nil {
			t.Errorf("the client gets %q, error %v", got, r.Broken())
		}
	})
}

func TestRegenerationMemory(t *testing.T) {
	mem := pd.NewBufferedBytes(2)
	payload := request.Payload{Segments: [][]byte{[]byte("{}")}, Length: 2}
	r := NewRegeneration(payload, mem)
	if again := NewRegeneration(payload, mem); r.Refusal() != "" || again.Refusal() != Memory {
		t.Errorf("refusals %q and %q", r.Refusal(), again.Refusal())
	}
	relayed(t, r, strings.Repeat(named("response.queued", `{}`), maxParts+1))
	if r.Refusal() != Memory || len(r.parts) != maxParts {
		t.Errorf("refusal %q after %d parts", r.Refusal(), len(r.parts))
	}
	r.Close()
	if n := mem.Bytes(); n != 0 {
		t.Errorf("%v bytes are counted in the end", n)
	}
}

// BenchmarkRegenerable measures what an event costs while no engine dies.
func BenchmarkRegenerable(b *testing.B) {
	for name, stream := range map[string]string{"messages": toolStream("1", []string{"a"}, strings.Split(strings.Repeat(" hello", 200), "l"), []string{"{}"}),
		"responses": responseStream("1", strings.Split(strings.Repeat(" hello", 200), "l")...), "chat": chatStream("1", append([]string{role}, strings.Split(strings.Repeat(`{"content":" he"};{"content":"llo"};`, 200)+role, ";")...)...)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var events []body.Event
			var split body.Events
			if err := split.Feed([]byte(stream), func(e body.Event) error { events = append(events, e); return nil }); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				r := regenerate(100)
				for _, e := range events {
					r.Event(e)
				}
				r.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
		})
	}
}
