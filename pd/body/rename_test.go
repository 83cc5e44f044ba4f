package body

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// rename runs an answer through a Renamer from "tiny" to "big/模型", in the given chunks, each of which is overwritten when
// it has been used.
func rename(events bool, chunks [][]byte) string {
	r := NewRenamer("tiny", "big/模型", events)
	var out []byte
	var parts [][]byte
	for _, c := range chunks {
		c = bytes.Clone(c)
		parts = r.Feed(parts[:0], c)
		for _, part := range parts {
			if len(part) == 0 {
				panic("an empty part")
			}
			out = append(out, part...)
		}
		for i := range c {
			c[i] = '#'
		}
	}
	return string(append(out, r.Close()...))
}

func TestRenamer(t *testing.T) {
	const sse = true
	for _, c := range []struct {
		name     string
		events   bool
		in, want string // want "" = as it came
	}{
		{"chat", false, `{"id":"1","model":"tiny","choices":[{"message":{"model":"tiny","content":"tiny"}}],"usage":{}}`,
			`{"id":"1","model":"big/模型","choices":[{"message":{"model":"tiny","content":"tiny"}}],"usage":{}}`},
		{"embeddings, the name last", false, `{"data":[{"embedding":[0.1,2e-3,-4]}],"model" : "tiny"}` + "\n", `{"data":[{"embedding":[0.1,2e-3,-4]}],"model" : "big/模型"}` + "\n"},
		{"messages", false, `{"type":"message","model":"tiny"}`, `{"type":"message","model":"big/模型"}`},
		{"inside response and message", false, `{"response":{"model":"tiny"},"message":{"model":"tiny","x":{"model":"tiny"}}}`,
			`{"response":{"model":"big/模型"},"message":{"model":"big/模型","x":{"model":"tiny"}}}`},
		{"escapes", false, `{"m\u006fdel":"t\u0069n\u0079"}`, `{"m\u006fdel":"big/模型"}`},
		{"an escape that is another letter", false, `{"model":"t\u0069nx"}`, ``},
		{"an escape that is none", false, `{"model":"t\xny"}`, ``},
		{"another model", false, `{"model":"tiny2"}`, ``},
		{"a longer name", false, `{"model":"` + strings.Repeat("tiny", 100) + `","x":"tiny"}`, ``},
		{"a shorter name", false, `{"model":"tin"}`, ``},
		{"no name", false, `{"model":""}`, ``},
		{"no string", false, `{"model":["tiny"],"message":"tiny","response":{"model":{"model":"tiny"}}}`, ``},
		{"null", false, `{"model":null}`, ``},
		{"in an array", false, `[{"model":"tiny"}]`, ``},
		{"an error that names it", false, `{"error":{"message":"The model tiny does not exist.","code":404}}`, ``},
		{"twice", false, `{"model":"tiny","model":"tiny"}`, `{"model":"big/模型","model":"big/模型"}`},
		{"broken off", false, `{"model":"ti`, ``},
		{"no JSON behind it", false, `{"model":"tiny" "model":"tiny"}`, `{"model":"big/模型" "model":"tiny"}`},
		{"no JSON", false, `model: "tiny"`, ``},
		{"nothing", false, ``, ``},
		{"deeper than JSON goes here", false, strings.Repeat("[", 1000) + `{"model":"tiny"}`, ``},

		{"events", sse, "data: {\"model\":\"tiny\"}\n\ndata:{\"model\":\"tiny\"}\n\ndata: [DONE]\n\n",
			"data: {\"model\":\"big/模型\"}\n\ndata:{\"model\":\"big/模型\"}\n\ndata: [DONE]\n\n"},
		{"events of messages", sse, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"tiny\"}}\n\nevent: ping\ndata: {}\n\n",
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"big/模型\"}}\n\nevent: ping\ndata: {}\n\n"},
		{"events of responses", sse, "event: response.created\r\ndata: {\"response\":{\"model\":\"tiny\"}}\r\n\r\ndata: {\"response\":{\"model\":\"tiny\"}}\r\n\r\n",
			"event: response.created\r\ndata: {\"response\":{\"model\":\"big/模型\"}}\r\n\r\ndata: {\"response\":{\"model\":\"big/模型\"}}\r\n\r\n"},
		{"lines that end in \\r", sse, "data: {\"model\":\"tiny\"}\r\rdata: {\"model\":\"tiny\"}\r\r",
			"data: {\"model\":\"big/模型\"}\r\rdata: {\"model\":\"big/模型\"}\r\r"},
		{"data of two lines", sse, "data: {\"model\":\ndata: \"tiny\"}\n\n", "data: {\"model\":\ndata: \"big/模型\"}\n\n"},
		{"a string of two lines", sse, "data: {\"model\":\"ti\ndata:ny\"}\n\n", ``},
		{"an event after one that is broken", sse, "data: {\"model\":\"ti\n\ndata: {\"model\":\"tiny\"}\n\n", "data: {\"model\":\"ti\n\ndata: {\"model\":\"big/模型\"}\n\n"},
		{"several that are broken", sse, "data: {\"model\":\"a\n\ndata: {\"model\":\"b\n\ndata: {\"model\":\"c\n\n", ``},
		{"an event after one that is no JSON", sse, "data: {\"model\"!\n\ndata: {\"model\":\"tiny\"}\n\n", "data: {\"model\"!\n\ndata: {\"model\":\"big/模型\"}\n\n"},
		{"other lines", sse, ": {\"model\":\"tiny\"}\ndatas: {\"model\":\"tiny\"}\ndat: {\"model\":\"tiny\"}\n{\"model\":\"tiny\"}\nid: data: {\"model\":\"tiny\"}\n\n", ``},
		{"the last line is not ended", sse, "data: {\"model\":\"tiny\"}", "data: {\"model\":\"big/模型\"}"},
		{"the last line broke off", sse, "data: {\"model\":\"tin", ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := c.want
			if want == "" {
				want = c.in
			}
			for n := 1; n <= 31; n++ {
				if got := rename(c.events, inChunks(c.in, n)); got != want {
					t.Fatalf("chunks of %d bytes:\n%s\nwant\n%s", n, got, want)
				}
			}
			if got := rename(c.events, [][]byte{[]byte(c.in)}); got != want {
				t.Errorf("whole:\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// A complete event passes at once: it is not held until the next one.
func TestRenamerHoldsBackOnlyNames(t *testing.T) {
	const event = "data: {\"id\":\"x\",\"model\":\"tiny\",\"choices\":[]}\n\n"
	r := NewRenamer("tiny", "big", true)
	at := strings.Index(event, `"tiny"`)
	for i := range len(event) {
		r.Feed(nil, []byte(event[i:i+1]))
		want := 0
		if i >= at && i < at+len(`"tiny"`)-1 {
			want = i - at + 1
		}
		if held := len(r.Close()); held != want {
			t.Fatalf("after byte %d %d bytes are held, want %d", i, held, want)
		}
	}
	long := NewRenamer("tiny", "big", false)
	long.Feed(nil, []byte(`{"model":"`+strings.Repeat("a", 30)))
	if held := len(long.Close()); held > 26 {
		t.Errorf("%d bytes are held of what is too long to be the name", held)
	}
}

// What was given out stays as it is while the same chunk is read on.
func TestRenamerLeavesReturnedBytesUnchanged(t *testing.T) {
	r := NewRenamer("tiny", "big", true)
	r.Feed(nil, []byte(`data: {"model":"oth`))
	got := bytes.Join(r.Feed(nil, []byte("er\"}\n\ndata: {\"model\":\"tiny\"}\n\ndata: {\"model\":\"ti")), nil)
	if want := "\"other\"}\n\ndata: {\"model\":\"big\"}\n\ndata: {\"model\":"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRenamerWritesAnyName(t *testing.T) {
	for _, name := range []string{"a\"b\\c", "\x00\n\u2028", "</script>", "é"} {
		r := NewRenamer(name, "x"+name, false)
		in, _ := json.Marshal(map[string]string{"model": name})
		got := bytes.Join(r.Feed(nil, in), nil)
		var out map[string]string
		if err := json.Unmarshal(got, &out); err != nil || out["model"] != "x"+name {
			t.Errorf("%q: %s is %q, %v", name, got, out, err)
		}
	}
}

func TestRenamerAllocatesNothing(t *testing.T) {
	event := []byte("data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"model\":\"t\\u0069ny\",\"choices\":[{\"delta\":{\"content\":\" a\"}}]}\n\n")
	cut := bytes.Index(event, []byte("ny"))
	r := NewRenamer("tiny", "big", true)
	var parts [][]byte
	use := func() {
		parts = r.Feed(parts[:0], event[:cut])
		parts = r.Feed(parts[:0], event[cut:])
	}
	use()
	use()
	if n := testing.AllocsPerRun(100, use); n > 0 {
		t.Errorf("%v allocations an event", n)
	}
}

// renamed is what must become of a JSON value.
func renamed(v any) any {
	change := func(v any) {
		if m, ok := v.(map[string]any); ok && m["model"] == "tiny" {
			m["model"] = "big/模型"
		}
	}
	change(v)
	if m, ok := v.(map[string]any); ok {
		change(m["message"])
		change(m["response"])
	}
	return v
}

func decode(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("more than one value")
	}
	return v, nil
}

// checkValue compares a value before and after with what encoding/json says.
func checkValue(t *testing.T, before, after []byte) {
	t.Helper()
	const deep = 400 // less than DefaultDepth
	v, err := decode(before)
	if err != nil || bytes.Count(before, []byte("{"))+bytes.Count(before, []byte("[")) > deep {
		return
	}
	got, err := decode(after)
	if want := renamed(v); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%s became %s, %v; want %v", before, after, err, want)
	}
}

func FuzzRenamer(f *testing.F) {
	for _, s := range []string{
		`{"model":"tiny"}`, `{"model":"t\u0069ny","model":"tiny"}`, `{"message":{"model":"tiny"}}`, `{"response":{"model":"tiny"},"model":1}`,
		`{"model":"tiny`, `{"a":[{"model":"tiny"}],"\u006dodel":"\u0074iny"}`, "data: {\"model\":\"tiny\"}\n\ndata: [DONE]\n\n",
		"event: a\r\ndata: {\"model\":\r\ndata: \"tiny\"}\r\n\r\n", "data: {\"message\":{\"model\":\"tiny\"}}\r\rdata:{\"model\":\"tiny\"}\n\n",
	} {
		f.Add([]byte(s), []byte{3, 1, 9}, strings.Contains(s, "data:"))
	}
	f.Fuzz(func(t *testing.T, in, cuts []byte, events bool) {
		whole := rename(events, [][]byte{in})
		if got := rename(events, split(in, cuts)); got != whole {
			t.Fatalf("%q in chunks is %q, whole %q", in, got, whole)
		}
		if !events {
			checkValue(t, in, []byte(whole))
			return
		}
		if bytes.HasPrefix(in, []byte(mark)) { // hides the first line's name
			return
		}
		before, after := eventsOf(in), eventsOf([]byte(whole))
		if len(before) != len(after) {
			t.Fatalf("%q: %d events became %d", in, len(before), len(after))
		}
		for i := range before {
			checkValue(t, before[i], after[i])
		}
	})
}

// eventsOf returns the data of all events.
func eventsOf(stream []byte) (all [][]byte) {
	var v Events
	_ = v.Feed(stream, func(e Event) error { // too large an event ends both lists alike
		all = append(all, slices.Clone(e.Data))
		return nil
	})
	return all
}

func BenchmarkRenamer(b *testing.B) {
	event := "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"tiny\"," +
		"\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
	var vector strings.Builder
	for i := range 4096 {
		fmt.Fprintf(&vector, "%.8f,", float64(i)/4096)
	}
	for _, c := range []struct {
		name   string
		in     string
		events bool
	}{
		{"event", event, true},
		{"chat-32K", `{"id":"1","model":"tiny","choices":[{"message":{"content":"` + strings.Repeat("word ", 6500) + `"}}]}`, false},
		{"embedding-4096", `{"data":[{"embedding":[` + vector.String() + `0]}],"model":"tiny"}`, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			in := []byte(c.in)
			r := NewRenamer("tiny", "meta-llama/Llama-3.1-8B-Instruct", c.events)
			var parts [][]byte
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			for b.Loop() {
				if !c.events {
					r.begin()
				}
				parts = r.Feed(parts[:0], in)
			}
			if len(parts) != 3 {
				b.Fatalf("%d parts", len(parts))
			}
		})
	}
}
