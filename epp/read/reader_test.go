package read_test

import (
	"bytes"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// blocks of 4 tokens, so that short prompts have some.
var blocks = epp.PromptSpec{Tokens: 4, Max: 100}

func post(api pd.API) read.Head { return read.Head{Method: http.MethodPost, Path: api.Path()} }

// read reads a body in chunks of a size, 0 = whole.
func readBody(h read.Head, limit int64, spec epp.PromptSpec, text string, chunk int) (*epp.Request, error) {
	var r read.Reader
	r.Reset(h, limit, spec)
	if chunk == 0 {
		chunk = max(1, len(text))
	}
	for part := range slices.Chunk([]byte(text), chunk) {
		if err := r.Write(part); err != nil {
			return nil, err
		}
	}
	return r.Close(nil)
}

func mustRead(t *testing.T, api pd.API, text string) *epp.Request {
	t.Helper()
	r, err := readBody(post(api), 0, blocks, text, 0)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

func TestReaderFillsTheRequest(t *testing.T) {
	subset := epp.NewSubset("10.0.0.1")
	h := read.Head{Method: "POST", Path: "/v1/chat/completions?api-version=1", RequestID: "r-1", Mode: []string{"force;fallback"}, Subset: subset}
	const text = `{"messages":[{"role":"user","content":"Hello"}],"stream":true,"model":"a\u002fb"}`
	r, err := readBody(h, 100, epp.PromptSpec{}, text, 0)
	want := &epp.Request{ID: "r-1", Path: "/v1/chat/completions", API: pd.APIChat, Model: "a/b", Stream: true,
		Mode: pd.ModeForceFallback, Fit: request.FitSplit, Prompt: epp.Prompt{Tokens: 3}, Subset: subset, Bytes: int64(len(text)), Body: [][]byte{[]byte(text)}}
	if err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, %v; want %+v", r, err, want)
	}
}

func TestReaderMembers(t *testing.T) {
	chat := func(members string) string { return `{"messages":[]` + members + `}` }
	for _, c := range []struct {
		name   string
		api    pd.API
		body   string
		model  string
		stream bool
		fit    request.Fit
	}{
		{"nothing but the prompt", pd.APIChat, chat(``), "", false, request.FitSplit},
		{"stream off", pd.APIChat, chat(`,"stream":false`), "", false, request.FitSplit},
		{"no model", pd.APIChat, chat(`,"model":null`), "", false, request.FitSplit},
		{"a model that is none", pd.APIChat, chat(`,"model":7`), "", false, request.FitDoubted},
		{"several choices", pd.APIChat, chat(`,"n":2,"model":"m"`), "m", false, request.FitLocal},
		{"no messages", pd.APIChat, `{"model":"m"}`, "m", false, request.FitDoubted},
		{"max_tokens 0", pd.APICompletions, `{"prompt":"x","max_tokens":0}`, "", false, request.FitDoubted},
		{"one prompt", pd.APICompletions, `{"prompt":["x"]}`, "", false, request.FitSplit},
		{"two prompts", pd.APICompletions, `{"prompt":["x","y"],"stream":true}`, "", true, request.FitLocal},
		{"token ids", pd.APICompletions, `{"prompt":[1,2]}`, "", false, request.FitSplit},
		{"messages", pd.APIMessages, chat(`,"max_tokens":5,"stream":true`), "", true, request.FitSplit},
		{"messages without a limit", pd.APIMessages, chat(`,"stream":true`), "", true, request.FitDoubted},
		{"responses", pd.APIResponses, `{"input":[{"role":"user","content":"x"}]}`, "", false, request.FitSplit},
		{"responses with functions", pd.APIResponses, `{"input":"x","tools":[{"type":"function","name":"f"}]}`, "", false, request.FitSplit},
		{"responses with a tool of the engine", pd.APIResponses, `{"input":"x","tools":[{"type":"web_search_preview"}]}`, "", false, request.FitLocal},
		{"an API that is never split", pd.APIEmbeddings, `{"input":"x"}`, "", false, request.FitLocal},
		{"its mistakes too", pd.APIEmbeddings, `{"max_tokens":0}`, "", false, request.FitLocal},
		{"generate", pd.APIGenerate, `{"token_ids":[1,2],"sampling_params":{"max_tokens":3},"stream":true}`, "", true, request.FitSplit},
		{"counting", pd.APICountTokens, `{"model":"m","messages":[{"role":"user","content":"x"}]}`, "m", false, request.FitLocal},
		{"generate without its parameters", pd.APIGenerate, `{"token_ids":[1,2]}`, "", false, request.FitDoubted},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := mustRead(t, c.api, c.body)
			if r.Model != c.model || r.Stream != c.stream || r.Fit != c.fit || r.API != c.api {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// Every API has a layout, so that its body is read.
func TestReaderKnowsAllAPIs(t *testing.T) {
	for _, api := range pd.APIs() {
		if _, err := readBody(post(api), 0, blocks, `nonsense`, 0); err == nil {
			t.Errorf("%v: a body that is no JSON was accepted", api)
		}
	}
}

func TestReaderRefuses(t *testing.T) {
	deep := strings.Repeat(`[`, 10_001)
	const secret = "sesame"
	for _, c := range []struct {
		name    string
		head    read.Head
		body    string
		reason  pd.Reason
		message string
	}{
		{"no body", post(pd.APIChat), ``, pd.BadRequest, "Send a JSON object"},
		{"white space", post(pd.APIChat), ` `, pd.BadRequest, "unexpected end at byte 1."},
		{"cut off", post(pd.APIChat), `{"prompt":"sesame`, pd.BadRequest, "unexpected end at byte 17."},
		{"no JSON", post(pd.APIChat), `prompt=sesame`, pd.BadRequest, "not valid JSON"},
		{"a form", read.Head{Method: "POST", Path: "/v1/completions", ContentType: "application/x-www-form-urlencoded"}, `prompt=sesame`,
			pd.BadRequest, "Content-Type application/json"},
		{"no object", post(pd.APIChat), `["sesame"]`, pd.BadRequest, "not a JSON object"},
		{"something behind", post(pd.APIChat), `{} sesame`, pd.BadRequest, "not valid JSON"},
		{"too deep", post(pd.APIChat), `{"messages":` + deep, pd.BadRequest, "deeper than 10000"},
		{"UTF-16", post(pd.APIChat), "{\x00}\x00", pd.BadRequest, "UTF-8"},
		{"too many members", post(pd.APIChat), `{` + strings.Repeat(`"echo":1,`, 2000), pd.BadRequest, "too often"},
		{"a member twice", post(pd.APIChat), `{"model":"sesame","mod\u0065l":"m"}`, pd.DuplicateKey, `"model" twice`},
		{"a long model", post(pd.APIChat), `{"messages":[],"model":"` + strings.Repeat(secret, 200) + `"}`, pd.BadRequest, "longer than 1024"},
		{"a broken model", post(pd.APIChat), `{"messages":[],"model":"\sesame"}`, pd.BadRequest, "not a valid JSON string"},
		{"too large", post(pd.APIChat), `{"a":"` + strings.Repeat(secret, 10_000) + `"}`, pd.TooLarge, "larger than 50000 bytes"},
		{"too large, on a path whose body is not read", read.Head{Method: "POST", Path: "/v1/audio/transcriptions"}, strings.Repeat(secret, 10_000),
			pd.TooLarge, "larger than 50000 bytes"},
		{"a bad mode", read.Head{Method: "POST", Path: "/v1/chat/completions", Mode: []string{"always"}}, `{"messages":[]}`,
			pd.BadPDHeader, "must be one of auto, force"},
		{"two modes", read.Head{Method: "POST", Path: "/v1/messages", Mode: []string{"auto", "auto"}}, ``, pd.BadPDHeader, "must be one of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, chunk := range []int{0, 1, 1000} {
				r, err := readBody(c.head, 50_000, blocks, c.body, chunk)
				refusal := pd.AsRefusal(err)
				if r != nil || err == nil || refusal.Reason != c.reason || !strings.Contains(refusal.Message, c.message) {
					t.Fatalf("chunks of %d bytes: got %v, %v; want %s: … %s …", chunk, r, err, c.reason, c.message)
				}
				if strings.Contains(refusal.Message, secret) {
					t.Errorf("the message repeats the prompt: %s", refusal.Message)
				}
			}
		})
	}
}

// The chunk that shows the problem returns the error, and so does every later call.
func TestReaderRefusesEarly(t *testing.T) {
	var r read.Reader
	r.Reset(post(pd.APIChat), 20, blocks)
	if err := r.Write([]byte(`{"messages":`)); err != nil {
		t.Fatal(err)
	}
	first := r.Write([]byte(`["123456"`))
	if pd.AsRefusal(first).Reason != pd.TooLarge || r.Body().Len() != 12 {
		t.Fatalf("got %v with %d bytes kept", first, r.Body().Len())
	}
	again := r.Write([]byte(`]`))
	if _, end := r.Close(nil); !errors.Is(again, first) || !errors.Is(end, first) {
		t.Errorf("then %v and %v", again, end)
	}
	r.Reset(post(pd.APIChat), 20, blocks)
	if err := r.Write([]byte(`{"messages":[]}`)); err != nil {
		t.Errorf("the next request: %v", err)
	}
}

func TestReaderTakesABodyOfExactlyTheLimit(t *testing.T) {
	const text = `{"messages":[]}`
	if _, err := readBody(post(pd.APIChat), int64(len(text)), blocks, text, 4); err != nil {
		t.Error(err)
	}
}

// On paths that generate nothing the reader neither parses the body nor checks the P/D mode: some clients send that header
// with every request.
func TestReaderPassesOtherPathsUnread(t *testing.T) {
	h := read.Head{Method: "POST", Path: "/v1/audio/transcriptions?x", RequestID: "r", Mode: []string{"garbage"}}
	for _, text := range []string{``, `{`, "\xff\x00", `{"model":"m","stream":true,"messages":[]}`} {
		r, err := readBody(h, 0, blocks, text, 1)
		if want := (&epp.Request{ID: "r", Path: "/v1/audio/transcriptions", Fit: request.FitLocal, Bytes: int64(len(text))}); err != nil || !same(r, want) || string(slices.Concat(r.Body...)) != text {
			t.Errorf("%q: got %+v, %v", text, r, err)
		}
	}
}

// Counting tokens is nothing to split: a client that forces remote prefill for all its requests may count too.
func TestReaderReadsNoModeOfCounts(t *testing.T) {
	h := post(pd.APICountTokens)
	for _, mode := range []string{"force", "garbage"} {
		h.Mode = []string{mode}
		if r, err := readBody(h, 0, blocks, `{"model":"m","messages":[]}`, 0); err != nil || r.Mode != pd.ModeAuto || r.Model != "m" {
			t.Errorf("%s: %+v, %v", mode, r, err)
		}
	}
}

func TestReaderKeepsTheChunks(t *testing.T) {
	for _, api := range []pd.API{pd.APIChat, pd.APIOther} {
		var r read.Reader
		r.Reset(post(api), 0, blocks)
		chunks := [][]byte{[]byte(`{"messages":[{"content":"He`), {}, []byte(`llo"}]}`)}
		for _, c := range chunks {
			if err := r.Write(c); err != nil {
				t.Fatal(err)
			}
		}
		kept := r.Body().Segments()
		if len(kept) != 2 || &kept[0][0] != &chunks[0][0] || &kept[1][0] != &chunks[2][0] {
			t.Errorf("%v: kept %q", api, kept)
		}
		if joined := bytes.Join(chunks, nil); r.Body().Len() != int64(len(joined)) {
			t.Errorf("%v: %d bytes of %d", api, r.Body().Len(), len(joined))
		}
	}
}

// A client that sends its body a byte at a time must not make us keep forty times what it sent.
func TestReaderJoinsTinyChunks(t *testing.T) {
	text := chatBody(64<<10, `code\n`)
	for _, api := range []pd.API{pd.APIChat, pd.APIOther} {
		for _, size := range []int{1, 7, 100, 511} {
			var r read.Reader
			r.Reset(post(api), int64(len(text)), blocks)
			for chunk := range slices.Chunk(text, size) {
				if err := r.Write(chunk); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Write([]byte(" ")); pd.AsRefusal(err).Reason != pd.TooLarge {
				t.Errorf("%v by %d: %v beyond the limit", api, size, err)
			}
			kept := r.Body().Segments()
			if most := 64 + len(text)/2048; len(kept) > most || !bytes.Equal(bytes.Join(kept, nil), text) {
				t.Errorf("%v by %d: %d bytes in %d segments, want %d bytes in at most %d", api, size, r.Body().Len(), len(kept), len(text), most)
			}
		}
	}
}

// Tiny chunks between others stay where they were.
func TestReaderKeepsTheOrderOfChunks(t *testing.T) {
	var r read.Reader
	r.Reset(read.Head{}, 0, blocks)
	var want []byte
	for i := range 2000 {
		chunk := bytes.Repeat([]byte{byte(i)}, []int{1, 300, 600, 0, 511, 512, 5000}[i%7])
		want = append(want, chunk...)
		if err := r.Write(chunk); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 && r.Body().Len() != int64(len(want)) {
			t.Fatalf("%d bytes after chunk %d, want %d", r.Body().Len(), i, len(want))
		}
	}
	if !bytes.Equal(bytes.Join(r.Body().Segments(), nil), want) {
		t.Error("the body is not what was written")
	}
}

func TestReaderIsReusable(t *testing.T) {
	var used read.Reader
	for _, text := range seeds() {
		for _, api := range pd.GenerateAPIs() {
			want, wantErr := readBody(post(api), 300, blocks, text, 0)
			used.Reset(post(api), 300, blocks)
			var got *epp.Request
			err := used.Write([]byte(text))
			if err == nil {
				got, err = used.Close(nil)
			}
			if !same(got, want) || !reflect.DeepEqual(err, wantErr) {
				t.Errorf("%v %s: a used reader says %+v, %v; a new one %+v, %v", api, text, got, err, want, wantErr)
			}
		}
	}
}

// same compares requests, with blocks that are nil or empty being the same. How bodies are spelled and divided does not count.
func same(a, b *epp.Request) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	x.Prompt.Blocks, y.Prompt.Blocks, x.Body, y.Body = nil, nil, nil, nil
	return reflect.DeepEqual(x, y) && slices.Equal(a.Prompt.Blocks, b.Prompt.Blocks)
}

func TestReaderAllocatesOnlyTheModel(t *testing.T) {
	text := chatBody(32<<10, `code\n`)
	var r read.Reader
	use := func() { readAll(t, &r, post(pd.APIChat), epp.PromptSpec{Tokens: 16, Max: 2048}, text, 1000) }
	use()
	if n := testing.AllocsPerRun(20, use); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// seeds are bodies with everything a prompt can hold.
func seeds() []string {
	return []string{
		``, `{}`, `[]`, `{"prompt":"x","prompt":"y"}`, `{"messages":[],"model":"m","cache_salt":"s"}`,
		`{"prompt":"\u4f60\ud83d\ude00\ud83d \\\" \/\b\f\n\r\t"}`, `{"prompt":["a\"b","\\","\ud83d\"\\"],"n":1}`,
		`{"prompt":[1,2,3, 4,1234567890123,5.5,-6,7e8,null]}`, `{"prompt":[[1,2],[3]],"input":[[1],["x"]],"token_ids":[1,2,3,4,5,6,7,8]}`,
		`{"prompt":{"a":["b"]},"messages":"x","tools":null,"system":7,"input":true}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"What is\nthis?"},{"type":"image_url","image_url":{"url":"data:x"}}]},` +
			`{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}}]}],"tools":[{"type":"function"}]}`,
		`{"system":[{"type":"text","text":"be brief"}],"messages":[{"role":"user","content":[{"type":"tool_result","content":[` +
			`{"text":"12 degrees","type":"text"},{"type":"image","source":{"data":"xyz"}}]},"plain",{"type":"tool_result","content":"none"}]}]}`,
		`{"instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":"hello"},{"type":"input_image"}]},` +
			`{"role":"user","content":"again"},{"type":"function_call_output","output":"12"}]}`,
	}
}
