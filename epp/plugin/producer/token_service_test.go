package producer

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// tokenizer is a tokenizer service that records what it is asked.
type tokenizer struct {
	mu      sync.Mutex
	asked   []string // path and body
	answers map[string]string
	status  int // of paths without an answer; 0 = 404
	slow    bool
}

func (s *tokenizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path+" "+string(text))
	answer, ok := s.answers[r.URL.Path]
	status, slow := s.status, s.slow
	s.mu.Unlock()
	switch {
	case slow:
		<-r.Context().Done()
	case ok:
		_, _ = io.WriteString(w, answer)
	case status != 0:
		w.WriteHeader(status)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// service builds the preparer of a service.
func (s *tokenizer) service(t *testing.T, change func(*Token)) epp.Preparer {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	p := NewToken().(*Token)
	p.VLLM = &TokenVLLM{URL: server.URL + "/"}
	if change != nil {
		change(p)
	}
	if found := problems(p); found != nil {
		t.Fatal(found)
	}
	instance, err := p.Build(&epp.Builder{Log: slog.New(slog.DiscardHandler), Keep: new(epp.Keep)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = instance.(io.Closer).Close() })
	return instance.(epp.Preparer)
}

// asked is a request of a body.
func asked(api pd.API, model, text string) *epp.Request {
	half := len(text) / 2
	return &epp.Request{API: api, Model: model, Body: [][]byte{[]byte(text[:half]), []byte(text[half:])}, Prompt: epp.Prompt{Tokens: 1}}
}

const (
	chatPath   = "/v1/chat/completions/render"
	textPath   = "/v1/completions/render"
	chatAnswer = `{"request_id":"chatcmpl-1","token_ids":[3,612,203],"features":null,"model":"tiny"}`
	textAnswer = `[{"request_id":"cmpl-1","token_ids":[267,73],"features":null}]`
)

// TestTokenService: what the service is asked, and what a request has afterwards.
func TestTokenService(t *testing.T) {
	chat, text := `{"model":"m","messages":[]}`, `{"model":"m","prompt":"abcd"}`
	tokenize := map[string]string{"/tokenize": `{"count":3,"max_model_len":4096,"tokens":[1,2,3],"token_strs":null}`}
	for _, c := range []struct {
		name    string
		request *epp.Request
		model   string // of the service
		answers map[string]string
		asked   []string
		want    []uint32
		failed  bool
	}{
		{"a chat", asked(pd.APIChat, "m", chat), "", map[string]string{chatPath: chatAnswer}, []string{chatPath + " " + chat}, []uint32{3, 612, 203}, false},
		{"a text", asked(pd.APICompletions, "m", text), "", map[string]string{textPath: textAnswer}, []string{textPath + " " + text}, []uint32{267, 73}, false},
		{"the service's model", asked(pd.APIChat, "adapter", `{"model":"adapter","messages":[]}`), "m", map[string]string{chatPath: chatAnswer},
			[]string{chatPath + " " + chat}, []uint32{3, 612, 203}, false},
		{"no model", asked(pd.APIChat, "", `{"messages":[]}`), "m", map[string]string{chatPath: chatAnswer},
			[]string{chatPath + ` {"messages":[],"model":"m"}`}, []uint32{3, 612, 203}, false},
		{"it does not render", asked(pd.APIChat, "m", chat), "", tokenize, []string{chatPath + " " + chat, "/tokenize " + chat}, []uint32{1, 2, 3}, false},
		{"several prompts", asked(pd.APICompletions, "m", text), "", map[string]string{textPath: `[{"token_ids":[1]},{"token_ids":[2]}]`},
			[]string{textPath + " " + text}, nil, false},
		{"an image that the picker has not seen", asked(pd.APIChat, "m", chat), "", map[string]string{chatPath: `{"token_ids":[1],"features":{"mm_hashes":{}}}`},
			[]string{chatPath + " " + chat}, nil, false},
		{"no JSON", asked(pd.APIChat, "m", chat), "", map[string]string{chatPath: `<html>`}, []string{chatPath + " " + chat}, nil, true},
		{"neither way", asked(pd.APIChat, "m", chat), "", nil, []string{chatPath + " " + chat, "/tokenize " + chat}, nil, true},
		{"another API", asked(pd.APIResponses, "m", chat), "", nil, nil, nil, false},
		{"no body", &epp.Request{API: pd.APIChat}, "", nil, nil, nil, false},
		{"an image", &epp.Request{API: pd.APIChat, Body: [][]byte{[]byte(chat)}, Prompt: epp.Prompt{Media: []uint64{1}}}, "", nil, nil, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &tokenizer{answers: c.answers}
			add, err := s.service(t, func(p *Token) { p.ModelName = c.model }).Prepare(t.Context(), c.request)
			if add != nil {
				add(c.request)
			}
			if (err != nil) != c.failed || !slices.Equal(c.request.Prompt.IDs, c.want) {
				t.Errorf("ids are %v, %v; want %v", c.request.Prompt.IDs, err, c.want)
			}
			if c.want != nil && c.request.Prompt.Tokens != len(c.want) {
				t.Errorf("the prompt has %d tokens, want %d", c.request.Prompt.Tokens, len(c.want))
			}
			if !slices.Equal(s.asked, c.asked) {
				t.Errorf("the service was asked %q, want %q", s.asked, c.asked)
			}
		})
	}
}

// TestTokenServiceKeepsIDs: the ids that a request carries are those of its engine.
func TestTokenServiceKeepsIDs(t *testing.T) {
	s := &tokenizer{answers: map[string]string{textPath: textAnswer}}
	r := asked(pd.APICompletions, "m", `{"prompt":[1,2]}`)
	r.Prompt.IDs = []uint32{1, 2}
	if add, err := s.service(t, nil).Prepare(t.Context(), r); add != nil || err != nil || s.asked != nil {
		t.Errorf("asked %q, %v", s.asked, err)
	}
}

// TestTokenServiceThatCannotRender is asked for that once a minute only.
func TestTokenServiceThatCannotRender(t *testing.T) {
	s := &tokenizer{answers: map[string]string{"/tokenize": `{"tokens":[1]}`}}
	p := s.service(t, nil)
	for range 3 {
		if add, err := p.Prepare(t.Context(), asked(pd.APIChat, "m", `{}`)); add == nil || err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.asked); n != 4 {
		t.Errorf("asked %q", s.asked)
	}
}

// TestTokenServiceIsLeftAlone: after failures in a row it is not asked until a pause has passed; then one request tries.
func TestTokenServiceIsLeftAlone(t *testing.T) {
	s := &tokenizer{status: http.StatusServiceUnavailable}
	p := s.service(t, nil)
	prepare := func() error {
		_, err := p.Prepare(t.Context(), asked(pd.APIChat, "m", `{}`))
		return err
	}
	for range failuresInRow {
		if err := prepare(); err == nil || !strings.Contains(err.Error(), "503") {
			t.Fatal(err)
		}
	}
	before := len(s.asked)
	if err := prepare(); err != errPaused || len(s.asked) != before {
		t.Errorf("%v, and asked %d times more", err, len(s.asked)-before)
	}
	service := p.(*tokenService)
	service.until = service.clock.Now()
	s.answers = map[string]string{"/tokenize": `{"tokens":[1]}`}
	if err := prepare(); err != nil {
		t.Errorf("after the pause: %v", err)
	}
	if err := prepare(); err != nil {
		t.Errorf("after it has answered: %v", err)
	}
}

// TestTokenServiceAndTheClient: a client that leaves is no failure of the service; a deadline is.
func TestTokenServiceAndTheClient(t *testing.T) {
	for _, c := range []struct {
		name  string
		cause error
		want  int // failures
	}{{"the client leaves", context.Canceled, 0}, {"the deadline", context.DeadlineExceeded, 1}} {
		t.Run(c.name, func(t *testing.T) {
			s := &tokenizer{slow: true}
			p := s.service(t, nil)
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(c.cause)
			if _, err := p.Prepare(ctx, asked(pd.APIChat, "m", `{}`)); err == nil {
				t.Error("no error")
			}
			if got := p.(*tokenService).failures; got != c.want {
				t.Errorf("%d failures, want %d", got, c.want)
			}
		})
	}
}

// TestTokenPauses: they grow while the service fails.
func TestTokenPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTokenService("http://127.0.0.1:1", "", tokenTimeout, &epp.Builder{Log: slog.New(slog.DiscardHandler), Keep: new(epp.Keep)})
		var pauses []float64
		for range failuresInRow + 6 {
			s.note(io.EOF)
			pauses = append(pauses, s.pause.Seconds())
		}
		if want := []float64{0, 0, 1, 2, 4, 8, 16, 30, 30}; !slices.Equal(pauses, want) {
			t.Errorf("%v, want %v", pauses, want)
		}
	})
}

func TestTokenProblems(t *testing.T) {
	for _, c := range []struct {
		name string
		p    Token
		want []string
	}{
		{"defaults", Token{}, nil},
		{"a service", Token{Backend: "vllm", VLLM: &TokenVLLM{URL: "http://render:8000", Timeout: "300ms"}}, nil},
		{"its older name", Token{VLLM: &TokenVLLM{HTTP: "http://render:8000"}}, nil},
		{"the default service", Token{VLLM: &TokenVLLM{}}, nil},
		{"no URL", Token{VLLM: &TokenVLLM{URL: "render:8000"}}, []string{`vllm.url: must be the URL of a server, such as http://localhost:8000, got "render:8000"`}},
		{"no duration", Token{VLLM: &TokenVLLM{Timeout: "5"}}, []string{`vllm.timeout: must be a positive duration such as 5s, got "5"`}},
		{"another backend", Token{Backend: "hf"}, []string{`backend: must be estimate or vllm, got "hf"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := problems(&c.p); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// FuzzReadTokens: whatever a service answers is read or an error.
func FuzzReadTokens(f *testing.F) {
	f.Add([]byte(chatAnswer))
	f.Add([]byte(textAnswer))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if ids, err := readTokens(answer); err == nil && ids != nil && !json.Valid(answer) {
			t.Errorf("%q: %v", answer, ids)
		}
	})
}
