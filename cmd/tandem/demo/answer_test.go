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
	"time"

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
	wholeChat  = `{"prompt_token_ids":[1,2],"choices":[{"message":{"content":"ab"},"token_ids":[7,8]}]}`
	wholeText  = `{"choices":[{"prompt_token_ids":[1,2],"token_ids":[7,8]}]}`
	streamChat = "data: {\"prompt_token_ids\":[1,2],\"choices\":[{}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"token_ids\":[7]}]}\n\n" +
		"data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"token_ids\":[8]}]}\n\ndata: [DONE]\n\n"
	streamText = "data: {\"choices\":[{\"prompt_token_ids\":[1,2],\"token_ids\":[7]}]}\n\ndata: {\"choices\":[{\"token_ids\":[8]}]}\n\ndata: [DONE]\n\n"
)

// asking returns a question, streamed or not.
func asking(stream bool) *question {
	return &question{class: &class{name: "any", api: pd.APIChat, stream: stream, mode: pd.ModeForce}, body: []byte("{}")}
}

func TestAskReadsTokens(t *testing.T) {
	tests := []struct {
		name       string
		stream     bool
		body, text string
	}{
		{"chat", false, wholeChat, "ab"},
		{"completions", false, wholeText, ""},
		{"chat stream", true, streamChat, "ab"},
		{"completions stream", true, streamText, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, address := answerWith(t, http.StatusOK, nil, test.body)
			a, err := s.ask(t.Context(), address, asking(test.stream), false)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(a.prompt, []int{1, 2}) || !slices.Equal(a.generated, []int{7, 8}) || a.text != test.text {
				t.Errorf("%+v", a)
			}
			gaps := 0
			if test.stream {
				gaps = 1 // between two tokens
			}
			if a.first <= 0 || a.first > a.took || len(a.gaps) != gaps {
				t.Errorf("first byte after %v, end after %v, gaps %v", a.first, a.took, a.gaps)
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
		fmt.Fprint(w, events[2], events[3])
	}))
	defer server.Close()
	s := &stage{http: &http.Client{Transport: onFirstRead{server.Client().Transport, func() { close(more) }}}}
	a, err := s.ask(t.Context(), strings.TrimPrefix(server.URL, "http://"), asking(true), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.gaps) != 1 || a.gaps[0] <= 0 || a.first+a.gaps[0] > a.took {
		t.Errorf("first byte after %v, gaps %v, end after %v", a.first, a.gaps, a.took)
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

func TestAskSaysWhatTheClientWants(t *testing.T) {
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
	const decision = "remote;reason=uncached;attempts=1;candidate=0"
	phases := []pd.Phase{pd.PhaseEPP, pd.PhaseRecv, pd.PhasePrefill, pd.PhaseHandoff, pd.PhaseFirst, pd.PhaseDecode}
	all := "epp;dur=7, recv;dur=1, prefill;dur=2, handoff;dur=3, first;dur=4"
	tests := []struct {
		name   string
		stream bool
		remote bool
		header map[string]string
		phases []pd.Phase
	}{
		{"whole", false, true, map[string]string{
			pd.HeaderDecision: decision, pd.HeaderTiming: all + ", decode;dur=5", pd.HeaderOutcome: "done;cached=3"}, phases},
		{"stream", true, true, map[string]string{
			pd.HeaderDecision: decision, pd.HeaderTiming: all,
			http.TrailerPrefix + pd.HeaderTiming: "decode;dur=5", http.TrailerPrefix + pd.HeaderOutcome: "done;cached=3"}, phases},
		{"local stream", true, false, map[string]string{
			pd.HeaderDecision: "local;reason=below-threshold", pd.HeaderTiming: "recv;dur=0",
			http.TrailerPrefix + pd.HeaderTiming: "decode;dur=0", http.TrailerPrefix + pd.HeaderOutcome: "done"},
			[]pd.Phase{pd.PhaseRecv, pd.PhaseFirst, pd.PhaseDecode}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			text := wholeChat
			if test.stream {
				text = streamChat
			}
			s, address := answerWith(t, http.StatusOK, test.header, text)
			a, err := s.ask(t.Context(), address, asking(test.stream), true)
			if err != nil {
				t.Fatal(err)
			}
			if a.decision.String() != test.header[pd.HeaderDecision] {
				t.Errorf("decision %s", a.decision)
			}
			for _, ph := range phases {
				if _, ok := a.phases.Get(ph); ok != slices.Contains(test.phases, ph) {
					t.Errorf("phase %s: there %t", ph, ok)
				}
			}
			if test.remote && (a.attributed() != 22*time.Millisecond || a.outcome.Cached != 3) {
				t.Errorf("phases sum up to %v, outcome %v", a.attributed(), a.outcome)
			}
			if !test.remote && a.attributed() > a.took {
				t.Errorf("phases of %v within %v", a.attributed(), a.took)
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
