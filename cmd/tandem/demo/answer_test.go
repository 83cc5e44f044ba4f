package demo

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// answerWith starts a server that gives every request the same answer; headers that begin with http.TrailerPrefix become
// trailers.
func answerWith(t *testing.T, status int, header map[string]string, text string) (*stage, string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Errorf("reading the request: %v", err)
		}
		for name, value := range header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	return &stage{http: server.Client()}, strings.TrimPrefix(server.URL, "http://")
}

const (
	counts     = `"usage":{"prompt_tokens":5,"completion_tokens":2}`
	wholeChat  = `{"choices":[{"message":{"content":"ab"},"token_ids":[7,8]}],` + counts + `}`
	wholeText  = `{"choices":[{"text":"ab","token_ids":[7,8]}],` + counts + `}`
	ownCall    = `{"text":"ab","output_ids":[7,8],"meta_info":{"prompt_tokens":5,"completion_tokens":2}}`
	lastEvents = "data: {\"choices\":[]," + counts + "}\n\ndata: [DONE]\n\n"
	streamChat = "data: {\"choices\":[{}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"token_ids\":[7]}]}\n\n" +
		"data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"token_ids\":[8]}]}\n\n" + lastEvents
	streamText = "data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[7]}],\"usage\":null}\n\ndata: {\"choices\":[{\"text\":\"b\",\"token_ids\":[8]}]}\n\n" + lastEvents
	onlyText   = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n" +
		"data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n" + lastEvents
)

// asking returns a question, streamed or not.
func asking(stream bool) *question {
	return &question{class: &class{name: "any", api: pd.APIChat, stream: stream, mode: pd.ModeForce}, body: []byte("{}")}
}

func TestAskReadsTokens(t *testing.T) {
	tests := []struct {
		name   string
		stream bool
		body   string
		tokens []int
	}{
		{"chat", false, wholeChat, []int{7, 8}},
		{"completions", false, wholeText, []int{7, 8}},
		{"SGLang's own call", false, ownCall, []int{7, 8}},
		{"chat stream", true, streamChat, []int{7, 8}},
		{"completions stream", true, streamText, []int{7, 8}},
		{"chat stream without token ids", true, onlyText, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, address := answerWith(t, http.StatusOK, nil, test.body)
			a, err := s.ask(t.Context(), address, asking(test.stream), false)
			if err != nil {
				t.Fatal(err)
			}
			if a.promptTokens != 5 || a.completion != 2 || !slices.Equal(a.generated, test.tokens) || a.text != "ab" {
				t.Errorf("%+v", a)
			}
			gaps := 0
			if test.stream {
				gaps = 1 // between two tokens
			}
			if (a.first > 0) != test.stream || a.first > a.took || len(a.gaps) != gaps {
				t.Errorf("first token after %v, end after %v, gaps %v", a.first, a.took, a.gaps)
			}
		})
	}
}

func TestGapsAreBetweenEvents(t *testing.T) {
	more := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		events := strings.SplitAfter(streamChat, "\n\n")
		fmt.Fprint(w, events[0], events[1])
		http.NewResponseController(w).Flush()
		<-more
		fmt.Fprint(w, events[2], events[3], events[4])
	}))
	defer server.Close()
	s := &stage{http: &http.Client{Transport: onFirstRead{server.Client().Transport, func() { close(more) }}}}
	a, err := s.ask(t.Context(), strings.TrimPrefix(server.URL, "http://"), asking(true), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.gaps) != 1 || a.gaps[0] <= 0 || a.first+a.gaps[0] > a.took {
		t.Errorf("first token after %v, gaps %v, end after %v", a.first, a.gaps, a.took)
	}
}

// onFirstRead calls a function when the first bytes of an answer have been read.
type onFirstRead struct {
	http.RoundTripper
	call func()
}

func (o onFirstRead) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := o.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = &firstRead{ReadCloser: resp.Body, call: sync.OnceFunc(o.call)}
	}
	return resp, err
}

type firstRead struct {
	io.ReadCloser
	call func()
	read bool
}

func (f *firstRead) Read(p []byte) (int, error) {
	if f.read {
		f.call() // earlier bytes have been processed
	}
	f.read = true
	return f.ReadCloser.Read(p)
}

func TestAskSendsHeaders(t *testing.T) {
	heard := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard <- r.Header
		fmt.Fprint(w, wholeChat)
	}))
	defer server.Close()
	s := &stage{http: server.Client()}
	if _, err := s.ask(t.Context(), strings.TrimPrefix(server.URL, "http://"), asking(false), false); err != nil {
		t.Fatal(err)
	}
	if h := <-heard; h.Get("TE") != "trailers" || h.Get(pd.HeaderMode) != "force" || h.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", h)
	}
}

func TestAskReadsTheReport(t *testing.T) {
	const remote, local = "remote;reason=uncached;attempts=1;candidate=0", "local;reason=below-threshold"
	remotePhases := "epp;dur=7, recv;dur=1, prefill;dur=2, handoff;dur=3, first;dur=4"
	const concurrent = "epp;dur=7, recv;dur=1, prefill;dur=20, first;dur=24"
	tests := []struct {
		name     string
		stream   bool
		decision string
		header   string // Server-Timing
		trailer  string // likewise
		want     string // all phases
	}{
		{"whole", false, remote, remotePhases + ", decode;dur=5", "", remotePhases + ", decode;dur=5"},
		{"stream", true, remote, remotePhases, "decode;dur=5", remotePhases + ", decode;dur=5"},
		{"legs that are sent at once", true, remote, concurrent, "decode;dur=5, overlap;dur=20", concurrent + ", decode;dur=5, overlap;dur=20"},
		// Its headers do not wait for the first byte, which takes the whole prefill.
		{"local stream", true, local, "epp;dur=7, recv;dur=1", "first;dur=30, decode;dur=5", "epp;dur=7, recv;dur=1, first;dur=30, decode;dur=5"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			text, end := wholeChat, ""
			if test.stream {
				text, end = streamChat, http.TrailerPrefix
			}
			header := map[string]string{pd.HeaderDecision: test.decision, pd.HeaderTiming: test.header, "X-Request-Id": "r1",
				end + pd.HeaderOutcome: "done;cached=3"}
			if test.trailer != "" {
				header[http.TrailerPrefix+pd.HeaderTiming] = test.trailer
			}
			s, address := answerWith(t, http.StatusOK, header, text)
			a, err := s.ask(t.Context(), address, asking(test.stream), true)
			if err != nil {
				t.Fatal(err)
			}
			if a.decision.String() != test.decision || a.requestID != "r1" || a.outcome.Cached != 3 {
				t.Errorf("decision %s of %q, outcome %v", a.decision, a.requestID, a.outcome)
			}
			if got := string(a.phases.AppendTiming(nil, pd.PhaseOverlap)); got != test.want {
				t.Errorf("phases %s, want %s", got, test.want)
			}
		})
	}
}

func TestAskFailures(t *testing.T) {
	good := func(change map[string]string) map[string]string {
		h := map[string]string{pd.HeaderDecision: "local;reason=below-threshold", pd.HeaderTiming: "recv;dur=1", pd.HeaderOutcome: "done"}
		for name, value := range change {
			h[name] = value
		}
		return h
	}
	tests := []struct {
		name   string
		status int
		header map[string]string
		stream bool
		text   string
		want   string
	}{
		{"refused", 503, nil, false, `{"error":"busy"}`, `reading the answer: status 503: {"error":"busy"}`},
		{"no JSON", 200, good(nil), false, "hello", "reading the answer: invalid character"},
		{"error event", 200, good(nil), true, "data: {\"error\":{\"message\":\"lost\"}}\n\ndata: [DONE]\n\n", "an error event"},
		{"cut stream", 200, good(nil), true, strings.TrimSuffix(streamChat, "data: [DONE]\n\n"), "ends without [DONE]"},
		{"no decision", 200, good(map[string]string{pd.HeaderDecision: ""}), false, wholeChat, "reading the report: reading " + pd.HeaderDecision},
		{"strange phases", 200, good(map[string]string{pd.HeaderTiming: "recv;dur=x"}), false, wholeChat, "reading " + pd.HeaderTiming},
		{"no outcome", 200, good(map[string]string{pd.HeaderOutcome: ""}), false, wholeChat, "reading " + pd.HeaderOutcome},
		{"aborted", 200, good(map[string]string{pd.HeaderOutcome: "aborted"}), false, wholeChat, "the outcome is aborted"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, address := answerWith(t, test.status, test.header, test.text)
			_, err := s.ask(t.Context(), address, asking(test.stream), true)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}
