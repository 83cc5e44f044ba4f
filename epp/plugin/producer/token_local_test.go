package producer

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// smallTokenizer has a token for the letters a and b and for the two together, and one before each text.
const smallTokenizer = `{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"^":3},"merges":["a b"]},` +
	`"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"^"}},{"Sequence":{"id":"A"}}],"special_tokens":{"^":{"ids":[3]}}}}`

// write writes a file of a test and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// local builds the preparer of a tokenizer.json for the model tiny.
func local(t *testing.T, path string, keep *epp.Keep, vllm *TokenVLLM) (epp.Preparer, error) {
	t.Helper()
	p := NewToken().(*Token)
	p.Local, p.VLLM = &TokenLocal{ModelTokenizerMap: map[string]string{"tiny": path}}, vllm
	if found := problems(p); found != nil {
		t.Fatal(found)
	}
	instance, err := p.Build(&epp.Builder{Log: slog.New(slog.DiscardHandler), Keep: keep})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = instance.(io.Closer).Close() })
	return instance.(epp.Preparer), nil
}

// prepared returns a request's token ids after a preparer.
func prepared(t *testing.T, p epp.Preparer, r *epp.Request) []uint32 {
	t.Helper()
	add, err := p.Prepare(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if add != nil {
		add(r)
	}
	return r.Prompt.IDs
}

func TestLocalTokens(t *testing.T) {
	p, err := local(t, write(t, smallTokenizer), new(epp.Keep), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, body string
		want       []uint32
	}{
		{"a prompt", `{"model":"tiny","prompt":"aab"}`, []uint32{3, 0, 2}},
		{"an escaped prompt", `{"prompt":"\u0061b","model":"tiny"}`, []uint32{3, 2}},
		{"the last prompt counts", `{"prompt":"a","prompt":"b"}`, []uint32{3, 1}},
		{"without special tokens", `{"prompt":"ab","add_special_tokens":false}`, []uint32{2}},
		{"with special tokens", `{"prompt":"ab","add_special_tokens":null}`, []uint32{3, 2}},
		{"a prompt that the engine cuts", `{"prompt":"ab","truncate_prompt_tokens":1}`, nil},
		{"a prompt that it does not", `{"prompt":"ab","truncate_prompt_tokens":null}`, []uint32{3, 2}},
		{"embeddings", `{"prompt":"ab","prompt_embeds":"eA=="}`, nil},
		{"several prompts", `{"prompt":["a","b"]}`, nil},
		{"no prompt", `{"model":"tiny"}`, nil},
		{"no JSON", `{"prompt":"ab"`, nil},
		{"a text that is too long", `{"prompt":"` + strings.Repeat("a", maxLocalText) + `"}`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := asked(pd.APICompletions, "tiny", c.body)
			if got := prepared(t, p, r); !slices.Equal(got, c.want) {
				t.Errorf("got %d, want %d", got, c.want)
			}
			if c.want != nil && r.Prompt.Tokens != len(c.want) {
				t.Errorf("the prompt has %d tokens, want %d", r.Prompt.Tokens, len(c.want))
			}
		})
	}
	for _, r := range []*epp.Request{asked(pd.APIChat, "tiny", `{"messages":[{"role":"user","content":"a"}]}`), asked(pd.APICompletions, "other", `{"prompt":"a"}`)} {
		if got := prepared(t, p, r); got != nil {
			t.Errorf("%s, model %s: got %d", r.API, r.Model, got)
		}
	}
	r := asked(pd.APICompletions, "tiny", `{"prompt":[7]}`)
	r.Prompt.IDs = []uint32{7}
	if got := prepared(t, p, r); !slices.Equal(got, []uint32{7}) {
		t.Errorf("the request's own ids become %d", got)
	}
}

func TestLocalTokensBeforeTheService(t *testing.T) {
	s := &tokenizer{answers: map[string]string{textPath: textAnswer, chatPath: chatAnswer}}
	path := write(t, smallTokenizer)
	p := s.service(t, func(p *Token) { p.Local = &TokenLocal{ModelTokenizerMap: map[string]string{"tiny": path}} })
	if got := prepared(t, p, asked(pd.APICompletions, "tiny", `{"prompt":"ab"}`)); !slices.Equal(got, []uint32{3, 2}) || len(s.asked) > 0 {
		t.Errorf("got %d, and the service was asked %q", got, s.asked)
	}
	if got := prepared(t, p, asked(pd.APIChat, "tiny", `{"messages":[]}`)); !slices.Equal(got, []uint32{3, 612, 203}) {
		t.Errorf("chat: got %d", got)
	}
	if got := prepared(t, p, asked(pd.APICompletions, "tiny", `{"prompt":["ab"]}`)); !slices.Equal(got, []uint32{267, 73}) {
		t.Errorf("a list: got %d", got)
	}
}

// chats are requests whose prompts are ab after smallTemplate.
const (
	smallTemplate = `{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}b{% endif %}`
	smallChat     = `{"model":"tiny","messages":[{"role":"user","content":"a"}]}`
)

func TestLocalTokensOfChats(t *testing.T) {
	path := write(t, smallTokenizer)
	named := filepath.Join(t.TempDir(), "other.jinja")
	for name, text := range map[string]string{filepath.Join(filepath.Dir(path), "chat_template.jinja"): smallTemplate, named: "a" + smallTemplate} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := func(change func(*Token)) epp.Preparer {
		p := NewToken().(*Token)
		p.Local = &TokenLocal{ModelTokenizerMap: map[string]string{"tiny": path}}
		change(p)
		if found := problems(p); found != nil {
			t.Fatal(found)
		}
		instance, err := p.Build(&epp.Builder{Log: slog.New(slog.DiscardHandler), Keep: new(epp.Keep)})
		if err != nil {
			t.Fatal(err)
		}
		return instance.(epp.Preparer)
	}
	beside := build(func(*Token) {})
	for _, c := range []struct {
		name, body string
		want       []uint32
	}{
		{"a chat", smallChat, []uint32{2}},
		{"with special tokens", `{"messages":[{"role":"user","content":"a"}],"add_special_tokens":true}`, []uint32{3, 2}},
		{"without the answer's beginning", `{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":false}`, []uint32{0}},
		{"an image", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, nil},
		{"no messages", `{"model":"tiny"}`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := prepared(t, beside, asked(pd.APIChat, "tiny", c.body)); !slices.Equal(got, c.want) {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
	split := asked(pd.APIChat, "tiny", smallChat)
	split.Body = [][]byte{[]byte(smallChat[:20]), []byte(smallChat[20:])}
	if got := prepared(t, beside, split); !slices.Equal(got, []uint32{2}) {
		t.Errorf("a body of two parts: got %d", got)
	}
	other := build(func(p *Token) { p.Local.ChatTemplateMap = map[string]string{"tiny": named} })
	if got := prepared(t, other, asked(pd.APIChat, "tiny", smallChat)); !slices.Equal(got, []uint32{0, 2}) {
		t.Errorf("another template: got %d", got)
	}
	s := &tokenizer{answers: map[string]string{chatPath: chatAnswer}}
	service := s.service(t, func(p *Token) { p.Local = &TokenLocal{ModelTokenizerMap: map[string]string{"tiny": path}} })
	if got := prepared(t, service, asked(pd.APIChat, "tiny", smallChat)); !slices.Equal(got, []uint32{2}) || len(s.asked) > 0 {
		t.Errorf("beside a service: got %d, and the service was asked %q", got, s.asked)
	}
	if got := prepared(t, service, asked(pd.APIChat, "tiny", `{"messages":[]}`)); !slices.Equal(got, []uint32{3, 612, 203}) {
		t.Errorf("what cannot be rendered: got %d", got)
	}
}

func TestLocalTokensRefuseChatTemplates(t *testing.T) {
	path := write(t, smallTokenizer)
	broken := write(t, "{% include 'x' %}")
	for template, says := range map[string]string{broken: `the statement "include" is not supported`, filepath.Join(t.TempDir(), "none"): "no such file"} {
		p := NewToken().(*Token)
		p.Local = &TokenLocal{ModelTokenizerMap: map[string]string{"tiny": path}, ChatTemplateMap: map[string]string{"tiny": template}}
		_, err := p.Build(&epp.Builder{Log: slog.New(slog.DiscardHandler), Keep: new(epp.Keep)})
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), `model "tiny"`) {
			t.Errorf("%s: %v", template, err)
		}
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "chat_template.jinja"), []byte("{% include 'x' %}"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	b := &epp.Builder{Log: slog.New(slog.NewTextHandler(&log, nil)), Keep: new(epp.Keep)}
	if _, err := readModels(&TokenLocal{ModelTokenizerMap: map[string]string{"tiny": path}}, b); err != nil || !strings.Contains(log.String(), "include") {
		t.Errorf("a template that is not named: %v, the log says %q", err, log.String())
	}
}

func TestLocalTokensRefuseFiles(t *testing.T) {
	for name, c := range map[string]struct{ path, says string }{
		"missing":         {filepath.Join(t.TempDir(), "none.json"), "no such file"},
		"another kind":    {write(t, `{"model":{"type":"Nope"}}`), `model: type "Nope" is not supported`},
		"not a tokenizer": {write(t, `[]`), "reading tokenizer.json"},
	} {
		_, err := local(t, c.path, new(epp.Keep), nil)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), `model "tiny"`) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLocalTokensAreKeptOverReloads(t *testing.T) {
	keep, path := new(epp.Keep), write(t, smallTokenizer)
	models := func() any {
		p, err := local(t, path, keep, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p.(*localTokens).models["tiny"].tokenizer
	}
	first := models()
	if models() != first {
		t.Error("an unchanged file was read again")
	}
	if err := os.WriteFile(path, []byte(smallTokenizer+" "), 0o600); err != nil {
		t.Fatal(err)
	}
	if models() == first {
		t.Error("a changed file was not read again")
	}
}

func TestLocalTokensWarnOfClassesThatEnginesBuildAnew(t *testing.T) {
	path := write(t, smallTokenizer)
	for class, warned := range map[string]bool{"LlamaTokenizerFast": true, "Qwen2Tokenizer": false} {
		config := filepath.Join(filepath.Dir(path), "tokenizer_config.json")
		if err := os.WriteFile(config, []byte(`{"tokenizer_class":"`+class+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		b := &epp.Builder{Log: slog.New(slog.NewTextHandler(&log, nil)), Keep: new(epp.Keep)}
		if _, err := readModels(&TokenLocal{ModelTokenizerMap: map[string]string{"tiny": path}}, b); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(log.String(), "/tokenize") != warned {
			t.Errorf("%s: the log says %q", class, log.String())
		}
	}
}

func TestTokenLocalProblems(t *testing.T) {
	for _, l := range []TokenLocal{{}, {ModelTokenizerMap: map[string]string{"": "x"}}, {ModelTokenizerMap: map[string]string{"x": ""}},
		{ModelTokenizerMap: map[string]string{"x": "y"}, ChatTemplateMap: map[string]string{"z": "y"}}, {ModelTokenizerMap: map[string]string{"x": "y"}, ChatTemplateMap: map[string]string{"x": ""}}} {
		p := NewToken().(*Token)
		p.Local = &l
		if problems(p) == nil {
			t.Errorf("%v is accepted", l)
		}
	}
}

func BenchmarkLocalTokens(b *testing.B) {
	path := filepath.Join(b.TempDir(), "tokenizer.json")
	if err := os.WriteFile(path, []byte(smallTokenizer), 0o600); err != nil {
		b.Fatal(err)
	}
	models, err := readModels(&TokenLocal{ModelTokenizerMap: map[string]string{"tiny": path}}, &epp.Builder{Log: slog.New(slog.DiscardHandler), Keep: new(epp.Keep)})
	if err != nil {
		b.Fatal(err)
	}
	l := &localTokens{models: models}
	r := asked(pd.APICompletions, "tiny", `{"model":"tiny","prompt":"`+strings.Repeat("ab", 16<<10)+`"}`)
	b.SetBytes(32 << 10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Prepare(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConversation prepares a chat of 32 kB by a real vocabulary and template: with all texts new, and as the next turn of a conversation
// that is known but for its last message. us-cpu/op is processor time, of the garbage collector too, which does not depend on what else the
// machine does.
func BenchmarkConversation(b *testing.B) {
	for _, family := range []string{"qwen3", "llama3_2", "gemma3", "deepseek_v3"} {
		path := "../../../.tools/vocabularies/" + family + "/tokenizer.json"
		if _, err := os.Stat(path); err != nil {
			b.Skip("make .tools/vocabularies")
		}
		models, err := readModels(&TokenLocal{ModelTokenizerMap: map[string]string{family: path}}, &epp.Builder{Log: slog.New(slog.DiscardHandler), Keep: new(epp.Keep)})
		if err != nil {
			b.Fatal(err)
		}
		l := &localTokens{models: models, clock: new(epp.Builder).Clock()}
		for _, kind := range []string{"cold", "next turn", "next turn, 16 tools"} {
			b.Run(family+"/"+kind, func(b *testing.B) {
				tools := 0
				if kind == "next turn, 16 tools" {
					tools = 16
				}
				r, places := conversation(family, tools)
				if kind != "cold" {
					l.ids(b.Context(), r, l.models[family])
					places = places[len(places)-1:]
				}
				b.ReportAllocs()
				start, n := processorTime(b), 0
				for ; b.Loop(); n++ {
					for _, place := range places {
						copy(place, fmt.Sprintf("%8d", n))
					}
					if len(l.ids(b.Context(), r, l.models[family])) < 5000 {
						b.Fatal("there are too few ids")
					}
				}
				b.ReportMetric(float64((processorTime(b)-start).Microseconds())/float64(n), "us-cpu/op")
			})
		}
	}
}

// conversation returns a chat of 32 kB with so many tools of 500 bytes, and the places of a number of eight digits in each of its messages.
func conversation(model string, tools int) (r *epp.Request, places [][]byte) {
	var body strings.Builder
	fmt.Fprintf(&body, `{"model":%q,`, model)
	for i := range tools {
		fmt.Fprintf(&body, `%s{"type":"function","function":{"name":"tool_%d","description":"Looks something up, and says what it has found.","parameters":{"type":"object","properties":{`+
			`"query":{"type":"string","description":"What to look for, in words."},"limit":{"type":"integer","description":"How many results are wanted at most.","minimum":1},`+
			`"kinds":{"type":"array","items":{"type":"string","enum":["file","page","person"]},"description":"Kinds of results."}},"required":["query"]}}}`, []string{`"tools":[`, ","}[min(i, 1)], i)
	}
	if tools > 0 {
		body.WriteString("],")
	}
	fmt.Fprintf(&body, `"messages":[{"role":"system","content":"You are a helpful assistant."}`)
	for i := range 40 {
		fmt.Fprintf(&body, `,{"role":%q,"content":"######## %s"}`, []string{"user", "assistant"}[i%2], strings.Repeat(`The quick brown fox jumps over the lazy dog, and func main() prints it.\n`, 11))
	}
	body.WriteString(`,{"role":"user","content":"######## And now?"}]}`)
	text := []byte(body.String())
	r = asked(pd.APIChat, model, "{}")
	r.Body = [][]byte{text}
	for i := range text {
		if bytes.HasPrefix(text[i:], []byte("########")) {
			places = append(places, text[i:i+8])
		}
	}
	return r, places
}

// processorTime returns what this process has taken.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
