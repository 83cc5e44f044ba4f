package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// endpointOf returns an endpoint whose server answers as told.
func endpointOf(t *testing.T, o Options, answer http.HandlerFunc) *Endpoint {
	t.Helper()
	server := httptest.NewServer(answer)
	o.URL, o.Timeout, o.ConnectTimeout = server.URL, 10*time.Second, time.Second
	if o.API == pd.APIOther {
		o.API = pd.APIChat
	}
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close(); server.Close() })
	return e
}

// events makes the text of a stream.
func events(data ...string) string {
	return "data: " + strings.Join(append(data, "[DONE]"), "\n\ndata: ") + "\n\n"
}

const usage = `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}}`

func TestAnswers(t *testing.T) {
	said := func(word string) string { return fmt.Sprintf(`{"choices":[{"delta":{"content":%q}}]}`, word) }
	tests := []struct {
		name   string
		stream bool
		text   string
		events int
		tokens int
		prompt int64
	}{
		{"chat", true, events(`{"choices":[{"delta":{"role":"assistant","content":""}}]}`, said("a"), said("b"), usage), 2, 2, 7},
		{"without usage", true, events(said("a"), said("b"), said("c")), 3, 3, -1},
		{"completions", true, events(`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"","finish_reason":null}]}`, `{"choices":[{"text":"b"}],"usage":null}`), 3, 3, -1},
		{"completions with an end of its own", true, events(`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"","finish_reason":"length"}]}`), 1, 1, -1},
		{"completions of one token without text", true, events(`{"choices":[{"text":"","finish_reason":"length"}]}`), 1, 1, -1},
		{"reasoning", true, events(`{"choices":[{"delta":{"content":null,"reasoning_content":"a"}}]}`, `{"choices":[{"delta":{"reasoning":"b"}}]}`, said("c")), 3, 3, -1},
		{"tool calls", true, events(`{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`), 1, 1, -1},
		{"comments between", true, ": ping\n\n" + events(said("a")), 1, 1, -1},
		{"whole", false, `{"choices":[{"message":{"content":"ab"}}],"usage":{"prompt_tokens":7,"completion_tokens":2}}`, 0, 2, 7},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := endpointOf(t, Options{Stream: test.stream}, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, test.text) })
			a := e.Send(t.Context(), Request{Body: e.Body("p", 4)})
			if a.Failure != nil {
				t.Fatal(a.Failure)
			}
			if n, counted := a.Tokens(); n != test.tokens || counted != (test.prompt >= 0) || a.Events != test.events || a.Prompt != test.prompt {
				t.Errorf("%d tokens, %+v", n, a)
			}
			if a.First.IsZero() == test.stream || len(a.Gaps) != max(0, test.events-1) || a.End.Before(a.Sent) {
				t.Errorf("times %+v", a)
			}
		})
	}
}

// parts is a stream whose parts arrive at given times.
type parts []struct {
	after time.Duration
	text  string
}

func (p *parts) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	next := (*p)[0]
	*p = (*p)[1:]
	<-time.After(next.after)
	return copy(b, next.text), nil
}

// The times are those of the events with tokens, not of the bytes around them.
func TestTimesOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		a := &Answer{Sent: began}
		err := a.readStream(&arrivals{Reader: &parts{
			{10 * time.Millisecond, ": the headers\n\n"},
			{20 * time.Millisecond, "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choi"},
			{5 * time.Millisecond, "ces\":[{\"text\":\"b\"}]}\n\ndata: {\"choices\":[{\"text\":\"c\"}]}\n\n"},
			{40 * time.Millisecond, "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n"},
			{2 * time.Millisecond, "data: {\"choices\":[{\"text\":\"d\"}]}\n\ndata: [DONE]\n\n"},
		}})
		want := []time.Duration{5 * time.Millisecond, 0, 42 * time.Millisecond}
		if first := a.First.Sub(began); err != nil || first != 30*time.Millisecond || !slices.Equal(a.Gaps, want) {
			t.Errorf("first after %v, gaps %v, want 30ms and %v: %v", first, a.Gaps, want, err)
		}
	})
}

func TestReport(t *testing.T) {
	e := endpointOf(t, Options{Stream: true}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("TE") != "trailers" || r.Header.Get(pd.HeaderMode) != "force" || r.Header.Get("X-More") != "1" {
			t.Errorf("headers %v", r.Header)
		}
		w.Header().Set(pd.HeaderDecision, "local;reason=below-threshold")
		w.Header().Set(pd.HeaderTiming, "epp;dur=1, recv;dur=2")
		io.WriteString(w, events(`{"choices":[{"text":"a"}]}`))
		http.NewResponseController(w).Flush() // only an answer without a length has trailers
		w.Header().Set(http.TrailerPrefix+pd.HeaderTiming, "first;dur=30, decode;dur=4")
	})
	e.o.Header = http.Header{"X-More": {"1"}}
	a := e.Send(t.Context(), Request{Body: e.Body("p", 4), Mode: "force"})
	if a.Failure != nil || a.Decision == nil || a.Decision.Verdict != pd.Local || a.Decision.Reason != pd.BelowThreshold {
		t.Fatalf("%+v", a)
	}
	first, _ := a.Phases.Get(pd.PhaseFirst)
	epp, _ := a.Phases.Get(pd.PhaseEPP)
	if first != 30*time.Millisecond || epp != time.Millisecond || a.Phases.Sum() != 36*time.Millisecond {
		t.Errorf("phases %+v", a.Phases)
	}
}

func TestFailures(t *testing.T) {
	const refused = "refused;reason=saturated"
	tests := []struct {
		name    string
		status  int
		header  map[string]string
		text    string
		reason  string
		message string
	}{
		{"refused by llm-d's picker", 429, map[string]string{pd.HeaderDropped: "rejected-saturated", pd.HeaderDecision: refused},
			`{"error":{"message":"Full.","type":"rate_limit_error"}}`, "rejected-saturated", "Full."},
		{"refused by Tandem", 429, map[string]string{pd.HeaderDecision: refused}, "", "saturated", ""},
		{"an engine's error", 400, map[string]string{pd.HeaderDecision: "local;reason=short-prompt"},
			`{"error":{"message":"too long","type":"BadRequestError"}}`, "BadRequestError", "too long"},
		{"a proxy's error", 502, nil, "bad gateway", "Bad Gateway", "bad gateway"},
		{"error event", 200, nil, events(`{"error":{"message":"lost"}}`), "error event", "lost"},
		{"no end", 200, nil, `data: {"choices":[{"text":"a"}]}` + "\n\n", "stream broke off", "[DONE]"},
		{"no tokens", 200, nil, events(`{"choices":[{"delta":{"role":"assistant","content":""}}]}`), "no tokens", ""},
		{"no JSON", 200, nil, events("hello"), "not JSON", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := endpointOf(t, Options{Stream: true}, func(w http.ResponseWriter, _ *http.Request) {
				for name, value := range test.header {
					w.Header().Set(name, value)
				}
				w.WriteHeader(test.status)
				io.WriteString(w, test.text)
			})
			f := e.Send(t.Context(), Request{Body: e.Body("p", 4)}).Failure
			if f == nil || f.Status != test.status || f.Reason != test.reason || !strings.Contains(f.Message, test.message) || f.Unreachable {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestTransportFailures(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere := closed.Addr().String()
	closed.Close()
	hang := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name        string
		ctx         context.Context
		change      func(e *Endpoint)
		reason      string
		unreachable bool
	}{
		{"timeout", t.Context(), func(e *Endpoint) { e.o.Timeout = time.Millisecond }, ReasonTimeout, false},
		{"cancelled", cancelled, func(*Endpoint) {}, ReasonCancelled, false},
		{"nothing listens", t.Context(), func(e *Endpoint) { e.base = "http://" + nowhere }, "cannot connect", true},
		{"TLS to a plain server", t.Context(), func(e *Endpoint) { e.base = strings.Replace(e.base, "http:", "https:", 1) }, "TLS", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := endpointOf(t, Options{Stream: true}, hang)
			test.change(e)
			f := e.Send(test.ctx, Request{Body: e.Body("p", 4)}).Failure
			if f == nil || f.Reason != test.reason || f.Unreachable != test.unreachable {
				t.Errorf("%+v", f)
			}
		})
	}
}

// A probe finds what an endpoint accepts, and later requests are like that.
func TestProbe(t *testing.T) {
	tests := []struct {
		name    string
		refuses []string
		status  int
		lacks   int
		err     string
	}{
		{"vLLM", nil, 0, 0, ""},
		{"no extensions", []string{"ignore_eos"}, 400, 1, ""},
		{"no stream options either", []string{"ignore_eos", "stream_options"}, 422, 2, ""},
		{"nothing at all", []string{"model"}, 400, 0, "refuses model"},
		{"another error is not tried again", []string{"ignore_eos"}, 401, 0, "status 401"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			asked := 0
			e := endpointOf(t, Options{Stream: true, Extra: map[string]json.RawMessage{"top_k": []byte("5")}}, func(w http.ResponseWriter, r *http.Request) {
				asked++
				var members map[string]any
				if err := json.NewDecoder(r.Body).Decode(&members); err != nil || members["top_k"] != 5.0 {
					t.Errorf("body %v, %v", members, err)
				}
				for _, name := range test.refuses {
					if members[name] != nil {
						w.WriteHeader(test.status)
						fmt.Fprintf(w, `{"error":{"message":"refuses %s"}}`, name)
						return
					}
				}
				io.WriteString(w, events(`{"choices":[{"delta":{"content":"a"}}]}`, usage))
			})
			tokens, err := e.Probe(t.Context(), "p")
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v", err)
				}
				if test.status == 401 && asked != 1 {
					t.Errorf("asked %d times", asked)
				}
				return
			}
			if err != nil || tokens != 7 || len(e.Lacks()) != test.lacks {
				t.Errorf("%d tokens, %v, lacks %q", tokens, err, e.Lacks())
			}
			before := asked
			if _, err := e.Probe(t.Context(), "p"); err != nil || asked != before+1 {
				t.Errorf("the second probe asked %d times, %v", asked-before, err)
			}
		})
	}
}

func TestModels(t *testing.T) {
	e := endpointOf(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" {
			t.Errorf("path %s", r.URL.Path)
		}
		io.WriteString(w, `{"object":"list","data":[{"id":"a"},{"id":"b"}]}`)
	})
	if names, err := e.Models(t.Context()); err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("%q, %v", names, err)
	}
}

func TestBaseURL(t *testing.T) {
	for given, want := range map[string]string{
		"http://h:1":              "http://h:1",
		"http://h:1/":             "http://h:1",
		"https://h/v1":            "https://h",
		"https://h/team/a/v1/":    "https://h/team/a",
		"https://h/team":          "https://h/team",
		"h:1":                     "",
		"ftp://h":                 "",
		"http://":                 "",
		"http://u:p@h":            "",
		"http://h?x=1":            "",
		"http://h:1/v1\x7f/other": "",
	} {
		got, err := BaseURL(given)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
}
