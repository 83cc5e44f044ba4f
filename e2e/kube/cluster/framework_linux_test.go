package cluster

import (
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/tandem-serving/tandem/e2e/otlp"
	"github.com/tandem-serving/tandem/pd"
)

func TestSum(t *testing.T) {
	const page = "# HELP a b\na 1\na{x=\"1\"} 2\na{x=\"2\",y=\"b c\"} 4\nab 8\na_total 16\n"
	for _, c := range []struct {
		metric string
		labels []string
		want   float64
	}{{"a", nil, 7}, {"a", []string{`x="2"`}, 4}, {"a_total", nil, 16}, {"nothing", nil, 0}} {
		if got := sum(page, c.metric, c.labels...); got != c.want {
			t.Errorf("sum of %s %v is %v, want %v", c.metric, c.labels, got, c.want)
		}
	}
}

// TestWhole takes one span after the other out of whole traces: with spans of the proxy, and without.
func TestWhole(t *testing.T) {
	span := func(service, name, id, parent string) otlp.Span {
		return otlp.Span{Span: &trace.Span{Name: name, SpanId: bytesOf(t, id), ParentSpanId: bytesOf(t, parent)}, Service: service}
	}
	legs := []string{"prefill", "decode"}
	bare := []otlp.Span{span("epp", "epp.pick", "01", clientSpan), span("sidecar", "sidecar.request", "02", clientSpan),
		span("sidecar", "prefill", "03", "02"), span("sidecar", "decode", "04", "02")}
	proxied := append([]otlp.Span{span("epp", "epp.pick", "01", "06"), span("sidecar", "sidecar.request", "02", "05"),
		span(proxyService, "ingress", "05", clientSpan), span(proxyService, "egress", "06", "05")}, bare[2:]...)
	for name, all := range map[string][]otlp.Span{"bare": bare, "proxied": proxied} {
		if !whole(all, legs) {
			t.Errorf("the whole trace (%s) is not", name)
		}
		for i := range all {
			if whole(slices.Concat(all[:i], all[i+1:]), legs) {
				t.Errorf("the trace (%s) without %s is whole", name, all[i].Name)
			}
		}
	}
	if whole(append(bare[:3:3], span("sidecar", "decode", "04", "01")), legs) {
		t.Error("a trace with a leg under the pick is whole")
	}
	if whole(append(bare[:4:4], span("sidecar", "prefill", "07", "02")), legs) {
		t.Error("a trace with one leg too many is whole")
	}
}

func bytesOf(t *testing.T, id string) []byte {
	t.Helper()
	b, err := hex.DecodeString(id)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestJudge: what a client gets is told apart, and an answer with other tokens than an undisturbed engine's is a failure.
func TestJudge(t *testing.T) {
	l := &load{r: &run{cluster: &cluster{plain: startPlain(t)}}}
	c := call{api: pd.APICompletions, prompt: []int{300, 301, 302}, tokens: 4}
	want, err := l.r.plain.ask(t.Context(), c)
	if err != nil || len(want) != c.tokens {
		t.Fatalf("the undisturbed engine: %v, %v", want, err)
	}
	later := http.Header{"Retry-After": {"1"}}
	const event = `{"message":"gone","type":"x"}`
	for name, d := range map[string]struct {
		reply  reply
		stream bool
		err    error
		want   tally
	}{
		"right":             {reply{Status: 200, Tokens: want}, false, nil, tally{right: 1}},
		"remote":            {reply{Status: 200, Tokens: want, Decision: pd.Result{Verdict: pd.Remote}}, false, nil, tally{right: 1, remote: 1}},
		"wrong tokens":      {reply{Status: 200, Tokens: want[:3]}, false, nil, tally{failed: 1}},
		"refused":           {reply{Status: 503, Header: later}, false, nil, tally{refused: 1}},
		"503 without why":   {reply{Status: 503}, false, nil, tally{failed: 1}},
		"500":               {reply{Status: 500}, false, nil, tally{failed: 1}},
		"not reached":       {reply{}, false, errors.New("refused"), tally{cut: 1}},
		"cut":               {reply{Status: 200, Tokens: want[:1]}, true, errors.New("reset"), tally{cut: 1}},
		"cut between lines": {reply{Status: 200, Tokens: want[:1]}, true, nil, tally{cut: 1}},
		"event":             {reply{Status: 200, Tokens: want[:1], Done: true, Failed: event}, true, nil, tally{events: 1}},
		"not an event":      {reply{Status: 200, Tokens: want[:1], Done: true, Failed: `"gone"`}, true, nil, tally{failed: 1}},
		"event, no end":     {reply{Status: 200, Tokens: want[:1], Failed: event}, true, nil, tally{cut: 1}},
	} {
		c.stream = d.stream
		if got, detail := l.judge(t.Context(), c, d.reply, d.err); got != d.want {
			t.Errorf("%s: %+v, want %+v (%s)", name, got, d.want, detail)
		}
	}
}

// TestExcuses: what a scenario does not bring about is not excused by what it does.
func TestExcuses(t *testing.T) {
	event, cut, refused := tally{events: 1}, tally{cut: 1}, tally{refused: 1}
	for _, c := range []struct {
		excused excuse
		how     tally
		stream  bool
		want    bool
	}{
		{0, tally{right: 1}, false, true}, {0, event, true, false}, {0, cut, true, false}, {0, refused, false, false},
		{eventsExcused, event, true, true}, {eventsExcused, cut, true, false},
		{cutsExcused, cut, true, true}, {cutsExcused, cut, false, false}, {cutsExcused, event, true, false},
		{breaksExcused, cut, false, true}, {refusalsExcused, refused, false, true},
		{eventsExcused | cutsExcused | breaksExcused | refusalsExcused, tally{failed: 1}, true, false},
	} {
		if got := (&load{excused: c.excused}).excuses(c.how, c.stream); got != c.want {
			t.Errorf("excuse %b for %+v (stream %v): %v, want %v", c.excused, c.how, c.stream, got, c.want)
		}
	}
}

func TestTable(t *testing.T) {
	got := table([]*row{
		{name: "kill", outcome: "ok", took: 1500 * time.Millisecond, counts: tally{right: 7, events: 2, remote: 3}, saw: []string{"it came back"}},
		{name: "node", outcome: "skipped", skipped: "needs a node to crash"},
	})
	for _, want := range []string{"1.5 s", "kill: it came back", "node: needs a node to crash"} {
		if !strings.Contains(got, want) {
			t.Errorf("the table does not have %q:\n%s", want, got)
		}
	}
}
