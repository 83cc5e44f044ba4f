package demo

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// answerWith is a server that answers every request so; headers that begin with http.TrailerPrefix become trailers.
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
	wholeChat  = `{"prompt_token_ids":[1,2],"choices":[{"token_ids":[7,8]}]}`
	wholeText  = `{"choices":[{"prompt_token_ids":[1,2],"token_ids":[7,8]}]}`
	streamChat = "data: {\"prompt_token_ids\":[1,2],\"choices\":[{}]}\n\ndata: {\"choices\":[{\"token_ids\":[7]}]}\n\ndata: {\"choices\":[{\"token_ids\":[8]}]}\n\ndata: [DONE]\n\n"
	streamText = "data: {\"choices\":[{\"prompt_token_ids\":[1,2],\"token_ids\":[7]}]}\n\ndata: {\"choices\":[{\"token_ids\":[8]}]}\n\ndata: [DONE]\n\n"
)

func TestAskReadsTokens(t *testing.T) {
	tests := []struct {
		name   string
		stream bool
		text   string
	}{
		{"chat", false, wholeChat},
		{"completions", false, wholeText},
		{"chat stream", true, streamChat},
		{"completions stream", true, streamText},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, address := answerWith(t, http.StatusOK, nil, test.text)
			a, err := s.ask(t.Context(), address, question{number: 1, api: pd.APIChat, stream: test.stream}, http.Header{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(a.prompt, []int{1, 2}) || !slices.Equal(a.generated, []int{7, 8}) || a.took <= 0 {
				t.Errorf("%+v", a)
			}
		})
	}
}

func TestAskReadsTheReport(t *testing.T) {
	const decision = "remote;reason=uncached;attempts=1;candidate=0"
	phases := []pd.Phase{pd.PhaseRecv, pd.PhasePrefill, pd.PhaseHandoff, pd.PhaseFirst, pd.PhaseDecode}
	all := "recv;dur=1, prefill;dur=2, handoff;dur=3, first;dur=4"
	tests := []struct {
		name   string
		q      question
		header map[string]string
		phases []pd.Phase
	}{
		{"whole", question{remote: true}, map[string]string{
			pd.HeaderDecision: decision, pd.HeaderTiming: all + ", decode;dur=5", pd.HeaderOutcome: "done"}, phases},
		{"stream", question{stream: true, remote: true}, map[string]string{
			pd.HeaderDecision: decision, pd.HeaderTiming: all,
			http.TrailerPrefix + pd.HeaderTiming: "decode;dur=5", http.TrailerPrefix + pd.HeaderOutcome: "done"}, phases},
		{"local stream", question{stream: true}, map[string]string{
			pd.HeaderDecision: "local;reason=below-threshold", pd.HeaderTiming: "recv;dur=0",
			http.TrailerPrefix + pd.HeaderTiming: "decode;dur=0", http.TrailerPrefix + pd.HeaderOutcome: "done"},
			[]pd.Phase{pd.PhaseRecv, pd.PhaseFirst, pd.PhaseDecode}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			text := wholeChat
			if test.q.stream {
				text = streamChat
			}
			test.q.api = pd.APIChat
			s, address := answerWith(t, http.StatusOK, test.header, text)
			a, err := s.ask(t.Context(), address, test.q, test.q.header("127.0.0.1:1"))
			if err != nil {
				t.Fatal(err)
			}
			if a.decision.String() != test.header[pd.HeaderDecision] {
				t.Errorf("decision %s", a.decision)
			}
			for _, ph := range []pd.Phase{pd.PhaseRecv, pd.PhasePrefill, pd.PhaseHandoff, pd.PhaseFirst, pd.PhaseDecode} {
				if _, ok := a.phases.Get(ph); ok != slices.Contains(test.phases, ph) {
					t.Errorf("phase %s: there %t", ph, ok)
				}
			}
			if test.q.remote && a.phases.Sum() != 15*time.Millisecond {
				t.Errorf("phases sum up to %v", a.phases.Sum())
			}
			if !test.q.remote && a.phases.Sum() > a.took {
				t.Errorf("phases of %v within %v", a.phases.Sum(), a.took)
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
		{"refused", 503, nil, false, `{"error":"busy"}`, `reading the answer to request 3: status 503: {"error":"busy"}`},
		{"no JSON", 200, good(nil), false, "hello", "reading the answer to request 3: invalid character"},
		{"error event", 200, good(nil), true, "data: {\"error\":{\"message\":\"lost\"}}\n\ndata: [DONE]\n\n", "an error event"},
		{"cut stream", 200, good(nil), true, strings.TrimSuffix(streamChat, "data: [DONE]\n\n"), "ends without [DONE]"},
		{"no decision", 200, good(map[string]string{pd.HeaderDecision: ""}), false, wholeChat, "reading the report on request 3: reading " + pd.HeaderDecision},
		{"strange phases", 200, good(map[string]string{pd.HeaderTiming: "recv;dur=x"}), false, wholeChat, "reading " + pd.HeaderTiming},
		{"no outcome", 200, good(map[string]string{pd.HeaderOutcome: ""}), false, wholeChat, "reading " + pd.HeaderOutcome},
		{"aborted", 200, good(map[string]string{pd.HeaderOutcome: "aborted"}), false, wholeChat, "the outcome is aborted"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, address := answerWith(t, test.status, test.header, test.text)
			q := question{number: 3, api: pd.APIChat, stream: test.stream}
			_, err := s.ask(t.Context(), address, q, q.header(""))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestQuestions(t *testing.T) {
	prompts := map[string]bool{}
	for _, q := range questions() {
		prompts[q.prompt()[:len("1 is")]] = true
		plan, err := pd.ParsePlan(q.header("127.0.0.1:1").Get(pd.HeaderPlan))
		if err != nil {
			t.Fatal(err)
		}
		if (plan.Verdict == pd.Remote) != q.remote || (q.header("127.0.0.1:1").Get(pd.HeaderPrefill) != "") != q.remote {
			t.Errorf("request %d, remote %t: plan %s", q.number, q.remote, plan)
		}
	}
	if len(prompts) != 8 {
		t.Errorf("%d prompts differ at their beginning, want 8: %v", len(prompts), prompts)
	}
}
