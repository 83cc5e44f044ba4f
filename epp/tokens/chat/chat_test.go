package chat

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const tools = "../../../.tools/"

func need(t testing.TB, path string) string {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("there is no %s: make .tools/vocabularies .tools/tokenizers", path)
	}
	return path
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// family reads the template of a family in .tools/vocabularies.
func family(t testing.TB, name string) *Template {
	t.Helper()
	path := need(t, filepath.Join(tools, "vocabularies", name, "tokenizer_config.json"))
	template, err := Read(read(t, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	return template
}

// requests returns the bodies of testdata/requests.json.
func requests(t testing.TB) []json.RawMessage {
	t.Helper()
	var all []json.RawMessage
	if err := json.Unmarshal(read(t, "testdata/requests.json"), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// prepared is what testdata/prepare.py has recorded: the form of messages of each family, and for each request what vLLM hands to the template
// in each form, null if it refuses the request.
func prepared(t testing.TB) (forms map[string]string, all []map[string]json.RawMessage) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(read(t, "testdata/prepared.jsonl")))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if forms == nil {
			if err := json.Unmarshal(lines.Bytes(), &forms); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var one map[string]json.RawMessage
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return forms, all
}

// asked is a request to be compared.
type asked struct {
	family  string
	body    json.RawMessage
	handed  json.RawMessage // by vLLM to the template
	want    *string         // what transformers makes of it, nil where it fails
	against *Template
}

// render has transformers make the texts.
func render(t *testing.T, all []asked) {
	t.Helper()
	var in, out bytes.Buffer
	for _, a := range all {
		line, err := json.Marshal([]any{filepath.Join(tools, "vocabularies", a.family, "tokenizer_config.json"), a.handed})
		if err != nil {
			t.Fatal(err)
		}
		in.Write(append(line, '\n'))
	}
	cmd := exec.Command(need(t, tools+"tokenizers/bin/python"), "testdata/render.py")
	cmd.Stdin, cmd.Stdout = &in, &out
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	lines := json.NewDecoder(&out)
	for i := range all {
		if err := lines.Decode(&all[i].want); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPromptsAreTheEngines compares with what vLLM hands to a template, as recorded, and transformers makes of it.
func TestPromptsAreTheEngines(t *testing.T) {
	bodies := requests(t)
	forms, recorded := prepared(t)
	if len(recorded) != len(bodies) {
		t.Fatalf("%d of %d requests are recorded: run testdata/prepare.py", len(recorded), len(bodies))
	}
	var all []asked
	for _, name := range families {
		template := family(t, name)
		form := "string"
		if template.usual.LoopsOverContent() {
			form = "openai"
		}
		if want, ok := forms[name]; ok && form != want {
			t.Errorf("%s: messages are given as %s, vLLM gives them as %s", name, form, want)
		}
		for i, p := range recorded {
			if string(p[form]) != "null" {
				all = append(all, asked{family: name, body: bodies[i], handed: p[form], against: template})
			}
		}
	}
	render(t, all)
	texts := map[string]int{}
	for _, a := range all {
		got, err := a.against.Append(t.Context(), nil, a.body, time.Now())
		switch {
		case a.want == nil && err == nil:
			t.Errorf("%s: %.300s: got %q, want an error", a.family, a.body, got.Text)
		case a.want != nil && err != nil:
			t.Errorf("%s: %.300s: %v", a.family, a.body, err)
		case a.want != nil && string(got.Text) != *a.want:
			t.Errorf("%s: %.300s:\ngot  %q\nwant %q", a.family, a.body, got.Text, *a.want)
		case a.want != nil:
			texts[a.family]++
		}
	}
	t.Logf("requests with a prompt, of %d: %v", len(bodies), texts)
	for name, n := range texts {
		if n < 10 {
			t.Errorf("%s: only %d requests have a prompt", name, n)
		}
	}
}

// chatml is a small template of ours.
const chatml = `{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}{{ extra }}`

func TestAppend(t *testing.T) {
	template, err := Read([]byte(`{"bos_token":{"content":"<s>"}}`), []byte(chatml))
	if err != nil {
		t.Fatal(err)
	}
	const messages = `"messages":[{"role":"user","content":"a"}]`
	for _, c := range []struct{ name, body, want, says string }{
		{"a message", `{` + messages + `}`, "<user>a<assistant>", ""},
		{"variables", `{` + messages + `,"chat_template_kwargs":{"extra":"x"}}`, "<user>a<assistant>x", ""},
		{"no generation", `{` + messages + `,"add_generation_prompt":false}`, "<user>a", ""},
		{"the last member counts", `{"messages":[],` + messages + `}`, "<user>a<assistant>", ""},
		{"no JSON", `{`, "", "JSON"},
		{"a list", `[]`, "", "an object"},
		{"no messages", `{}`, "", "messages"},
		{"empty messages", `{"messages":[]}`, "", "messages"},
		{"a message that is none", `{"messages":[1]}`, "", "messages[0]"},
		{"no role", `{"messages":[{"content":"a"}]}`, "", "role"},
		{"an image", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, "", "content[0] is no text"},
		{"a number", `{"messages":[{"role":"user","content":5}]}`, "", "content"},
		{"a template of the client's", `{` + messages + `,"chat_template":"x"}`, "", "chat_template"},
		{"a message that goes on", `{` + messages + `,"continue_final_message":true}`, "", "continue_final_message"},
		{"a prompt that is cut", `{` + messages + `,"truncate_prompt_tokens":5}`, "", "truncate_prompt_tokens"},
		{"other messages", `{` + messages + `,"chat_template_kwargs":{"messages":[]}}`, "", "chat_template_kwargs"},
		{"no tools", `{` + messages + `,"tools":[]}`, "", "tools"},
		{"a tool without a name", `{` + messages + `,"tools":[{"type":"function","function":{}}]}`, "", "a tool"},
		{"a call without an id", `{"messages":[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]}]}`, "", "tool_calls[0]"},
		{"half a surrogate pair", `{"messages":[{"role":"user","content":"\ud800"}]}`, "", "Unicode"},
		{"a text that is too long", `{"messages":[{"role":"user","content":"` + strings.Repeat("a", MaxText) + `"}]}`, "", "too much text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := template.Append(t.Context(), []byte("before"), []byte(c.body), time.Time{})
			switch {
			case c.says != "":
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %q, %v, want an error that says %q", got.Text, err, c.says)
				}
			case err != nil || string(got.Text) != "before"+c.want || got.Special:
				t.Errorf("got %q, %v, want %q", got.Text, err, c.want)
			}
		})
	}
	if got, err := template.Append(t.Context(), nil, []byte(`{`+messages+`,"add_special_tokens":true}`), time.Time{}); err != nil || !got.Special {
		t.Errorf("special tokens that are asked for are not: %v", err)
	}
}

func TestAppendEndsEarly(t *testing.T) {
	template, err := Read(nil, []byte(`{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}`))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := template.Append(ctx, nil, []byte(`{"messages":[{"role":"user"}]}`), time.Time{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestRead(t *testing.T) {
	for _, c := range []struct{ name, config, template, want, says string }{
		{"of the configuration", `{"chat_template":"{{ bos_token }}a","bos_token":"<s>"}`, "", "<s>a", ""},
		{"of its own file", `{"chat_template":"a","bos_token":{"content":"<s>"}}`, "{{ bos_token }}b", "<s>b", ""},
		{"several", `{"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"t"}]}`, "", "d", ""},
		{"several with tools", `{"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"t"}]}`, "tools", "t", ""},
		{"none", `{}`, "", "", "no chat template"},
		{"null", `{"chat_template":null}`, "", "", "no chat template"},
		{"no default", `{"chat_template":[{"name":"rag","template":"d"}]}`, "", "", "no chat template"},
		{"broken", `{"chat_template":"{% if %}"}`, "", "", "reading a chat template"},
		{"another type", `{"chat_template":5}`, "", "", "chat_template"},
		{"no JSON", `{`, "", "", "tokenizer_config.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := `{"messages":[{"role":"user","content":"a"}]}`
			if c.template == "tools" {
				body, c.template = `{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}]}`, ""
			}
			template, err := Read([]byte(c.config), []byte(c.template))
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want an error that says %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := template.Append(t.Context(), nil, []byte(body), time.Time{}); err != nil || string(got.Text) != c.want {
				t.Errorf("got %q, %v, want %q", got.Text, err, c.want)
			}
		})
	}
}

// conversation returns a request of about 32 kB, of 40 messages.
func conversation() []byte {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"You are a helpful assistant."}`)
	for i := range 40 {
		b.WriteString(`,{"role":"` + []string{"user", "assistant"}[i%2] + `","content":"` + strings.Repeat(`The quick \"brown\" fox jumps over the lazy dog.\n`, 15) + `"}`)
	}
	b.WriteString(`,{"role":"user","content":"And now?"}]}`)
	return []byte(b.String())
}

// FuzzAppend makes prompts of any body, as a template that has seen others before and as one that has not.
func FuzzAppend(f *testing.F) {
	seen, err := Read(nil, []byte(`{% for m in messages %}{{ loop.index0 }}{{ m.role }}{% for p in m.content %}{{ p.text }}{% endfor %}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}{{ tools|tojson }}`))
	if err != nil {
		f.Fatal(err)
	}
	for _, body := range requests(f) {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := seen.Append(t.Context(), nil, body, time.Time{})
		if err == nil && !json.Valid(body) {
			t.Fatalf("%q has the prompt %q", body, p.Text)
		}
		same(t, seen, body)
	})
}

// BenchmarkAppend makes the prompt of a conversation of 32 kB.
func BenchmarkAppend(b *testing.B) {
	body := conversation()
	for _, name := range []string{"qwen3", "llama3_2", "gemma3"} {
		b.Run(name, func(b *testing.B) {
			template := family(b, name)
			var text []byte
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				p, err := template.Append(b.Context(), text[:0], body, time.Time{})
				if err != nil {
					b.Fatal(err)
				}
				text = p.Text
			}
		})
	}
}
