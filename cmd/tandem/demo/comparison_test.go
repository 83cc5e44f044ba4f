package demo

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/client"
	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

func mustCall(t *testing.T, pair, side int) []call {
	t.Helper()
	all, err := calls(pair, side)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSidesGetTheSameLoadWithOtherPrompts(t *testing.T) {
	for pair := range 7 {
		one, other := mustCall(t, pair, 0), mustCall(t, pair, 1)
		if !reflect.DeepEqual(one, mustCall(t, pair, 0)) {
			t.Error("two runs would send different requests")
		}
		if len(one) != len(other) {
			t.Fatalf("%d and %d calls", len(one), len(other))
		}
		seen := map[string]int{}
		for i := range one {
			if one[i].kind != other[i].kind || one[i].due != other[i].due || len(one[i].body) == 0 || bytes.Equal(one[i].body, other[i].body) {
				t.Errorf("pair %d, call %d: %s after %v and %s after %v", pair, i, one[i].name, one[i].due, other[i].name, other[i].due)
			}
			if one[i].due < 0 || one[i].due >= comparedSeconds*time.Second {
				t.Errorf("due after %v", one[i].due)
			}
			seen[one[i].name]++
		}
		for _, k := range kinds {
			if seen[k.name] != k.rate*comparedSeconds {
				t.Errorf("pair %d has %v", pair, seen)
			}
		}
	}
	if slices.EqualFunc(mustCall(t, 1, 0), mustCall(t, 2, 0), func(a, b call) bool { return a.due == b.due }) {
		t.Error("two pairs have the same arrivals")
	}
}

// The picker counts token ids, so that each kind is on its side of the threshold.
func TestComparedPromptsAreOnTheirSideOfTheThreshold(t *testing.T) {
	for _, c := range mustCall(t, 1, 0) {
		var r read.Reader
		r.Reset(read.Head{Method: "POST", Path: pd.APICompletions.Path(), ContentType: "application/json"}, 0, epp.PromptSpec{})
		if err := r.Write(c.body); err != nil {
			t.Fatal(err)
		}
		request, err := r.Close(nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := request.Prompt.Tokens; n != c.prompt || (n >= threshold) != (c.verdict == pd.Remote) {
			t.Errorf("%s: %d tokens, %s", c.name, n, c.verdict)
		}
	}
}

func TestRunSendsEachCall(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(pd.HeaderDecision, "local;reason=short-prompt")
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\ndata: [DONE]\n\n")
	}))
	defer server.Close()
	endpoint, err := client.New(client.Options{URL: server.URL, API: pd.APICompletions, Stream: true, Timeout: time.Minute, Connections: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer endpoint.Close()
	s := &side{name: "any", endpoint: endpoint, local: true}
	round := []call{{&kinds[0], 0, []byte("{}")}, {&kinds[1], time.Millisecond, []byte("{}")}, {&kinds[0], 2 * time.Millisecond, []byte("{}")}}
	all := s.run(t.Context(), round)
	for i, m := range all {
		if m.due != round[i].due || m.late < 0 || m.ttft <= m.late || len(m.answer.Gaps) != 1 || !m.asMeant(s) {
			t.Errorf("call %d: %+v", i, m)
		}
	}
	c := comparison{}
	c.add(s, 1, all)
	if x := c.data.Sides[1].Rounds[0].Samples; len(x) != 3 || x[1].Kind != kinds[1].name || x[1].TTFT <= 0 || c.asMeant != 3 || c.of != 3 {
		t.Errorf("%+v", c)
	}
}

// A caller that has gone away does not wait for calls that are not due yet.
func TestRunIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, m := range (&side{}).run(ctx, []call{{&kinds[0], time.Hour, nil}}) {
		if m.answer != nil {
			t.Errorf("sent %+v", m)
		}
	}
}

func TestServedAsMeant(t *testing.T) {
	stream, long := &kinds[0], &kinds[1]
	decided := func(v pd.Verdict) *client.Answer { return &client.Answer{Decision: &pd.Result{Verdict: v}} }
	for _, c := range []struct {
		name   string
		local  bool
		kind   *kind
		answer *client.Answer
		want   bool
	}{
		{"stream, all local", true, stream, decided(pd.Local), true},
		{"stream, P/D", false, stream, decided(pd.Local), true},
		{"stream, prefilled remotely", false, stream, decided(pd.Remote), false},
		{"long prompt, all local", true, long, decided(pd.Local), true},
		{"long prompt, P/D", false, long, decided(pd.Remote), true},
		{"long prompt, fallen back", false, long, decided(pd.Local), false},
		{"all local, but remote", true, long, decided(pd.Remote), false},
		{"no decision", true, stream, &client.Answer{}, false},
		{"no answer", true, stream, &client.Answer{Decision: &pd.Result{Verdict: pd.Local}, Failure: &client.Failure{Reason: "timeout"}}, false},
	} {
		m := measured{call: call{kind: c.kind}, answer: c.answer}
		if got := m.asMeant(&side{local: c.local}); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

func TestJudgeComparison(t *testing.T) {
	for _, c := range []struct {
		asMeant, of int
		passed      bool
	}{{300, 300, true}, {299, 300, false}, {0, 0, false}} {
		seen := sound()
		seen.compared = &comparison{asMeant: c.asMeant, of: c.of, data: report.Comparison{Step: 15}}
		all := seen.judge()
		if got := all[len(all)-2]; got.Name != checkCompared || got.Passed != c.passed {
			t.Errorf("%d of %d: %+v", c.asMeant, c.of, got)
		}
		if d := seen.data(); d.Comparison == nil || d.Comparison.Step != 15 {
			t.Errorf("data without the comparison: %+v", d.Comparison)
		}
	}
}
