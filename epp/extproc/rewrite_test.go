package extproc

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

// rewriting has the pool's policy rewrite "m" to "big m", and "n" to itself, and know one objective.
func rewriting(_ *Config, d *Deps) {
	p := epp.NewPolicy([]epp.Objective{{Name: "fast", Priority: 7}}, []epp.Rewrite{{Name: "canary", Rules: []epp.RewriteRule{
		{Models: []string{"m"}, Targets: []epp.RewriteTarget{{Model: "big m", Weight: 1}}},
		{Models: []string{"n"}, Targets: []epp.RewriteTarget{{Model: "n", Weight: 1}}},
	}}})
	d.Policy = func() *epp.Policy { return p }
}

// bodyOf joins the parts of a body among answers, and reports whether it has ended.
func bodyOf(answers []*procv3.ProcessingResponse) (text string, ended bool) {
	for _, a := range answers {
		common := a.GetRequestBody().GetResponse()
		if common == nil {
			common = a.GetResponseBody().GetResponse()
		}
		if part := common.GetBodyMutation().GetStreamedResponse(); part != nil {
			text += string(part.GetBody())
			ended = part.GetEndOfStream()
		}
	}
	return text, ended
}

func TestRewrite(t *testing.T) {
	rewritten := strings.Replace(prompt, `"m"`, `"big m"`, 1)
	length := func(text string) string { return fmt.Sprint(len(text)) }
	for _, c := range []struct {
		name    string
		body    string
		headers []string
		want    string
		sets    map[string]string // besides those of every plan
		removes []string
		counts  []string // labels of the counted rewrites; nil: none
	}{
		{"rewritten", prompt, nil, rewritten, map[string]string{pd.HeaderModel: "m;answers=big%20m"}, nil, []string{"rewrite", "canary", "model", "big m"}},
		{"of a declared length", prompt, []string{"content-length", length(prompt)}, rewritten,
			map[string]string{pd.HeaderModel: "m;answers=big%20m", "content-length": length(rewritten)}, nil, []string{"rewrite", "canary", "model", "big m"}},
		{"to itself", `{"model":"n"}`, []string{"content-length", "13"}, `{"model":"n"}`, nil, nil, []string{"rewrite", "canary", "model", "n"}},
		{"left alone", `{"model":"x"}`, []string{"content-length", "13"}, `{"model":"x"}`, nil, nil, nil},
		{"a client that says what it may not", `{"model":"x"}`, []string{pd.HeaderModel, "evil;answers=x"}, `{"model":"x"}`, nil, []string{pd.HeaderModel}, nil},
		{"and one that is overruled", prompt, []string{pd.HeaderModel, "evil;answers=x"}, rewritten, map[string]string{pd.HeaderModel: "m;answers=big%20m"}, nil,
			[]string{"rewrite", "canary", "model", "big m"}},
		{"by the gateway's header", `{"model":"x"}`, []string{epp.HeaderTarget, "y"}, `{"model":"y"}`, map[string]string{pd.HeaderModel: "x;answers=y"},
			[]string{epp.HeaderTarget}, []string{"rewrite", epp.HeaderTarget, "model", ""}},
		{"by its older name", `{"model":"x"}`, []string{epp.HeaderTargetOld, "y"}, `{"model":"y"}`, map[string]string{pd.HeaderModel: "x;answers=y"},
			[]string{epp.HeaderTargetOld}, []string{"rewrite", epp.HeaderTarget, "model", ""}},
		{"the newer of both", `{"model":"x"}`, []string{epp.HeaderTarget, "y", epp.HeaderTargetOld, "z"}, `{"model":"y"}`, map[string]string{pd.HeaderModel: "x;answers=y"},
			[]string{epp.HeaderTargetOld, epp.HeaderTarget}, []string{"rewrite", epp.HeaderTarget, "model", ""}},
		{"none was named", `{}`, []string{epp.HeaderTarget, "y", "content-length", "2"}, `{"model":"y"}`, map[string]string{"content-length": "13"},
			[]string{epp.HeaderTarget}, []string{"rewrite", epp.HeaderTarget, "model", ""}},
	} {
		for _, mark := range []client.Mark{"", client.MarkPicker} {
			t.Run(c.name+" "+string(mark), func(t *testing.T) {
				r := startRig(t, newPool(a), rewriting)
				s := r.open(t, mark)
				s.send(chat(more, c.headers...), requestBody(more, c.body[:1]), requestBody(more, c.body[1:]), requestTrailers())
				first := s.recv()
				sets := headersSet(t, first)
				for _, usual := range []string{pd.HeaderPlan, epp.HeaderDestination} {
					delete(sets, usual)
				}
				if !maps.Equal(sets, c.sets) {
					t.Errorf("sets %q, want %q", sets, c.sets)
				}
				if got := slices.Sorted(slices.Values(mutationOf(first).GetRemoveHeaders())); !slices.Equal(got, c.removes) {
					t.Errorf("removes %q, want %q", got, c.removes)
				}
				rest, err := s.finish()
				if got, _ := bodyOf(rest); err != nil || got != c.want {
					t.Errorf("body %s, %v; want %s", got, err, c.want)
				}
				r.gone(t)
				want := 0.
				if c.counts != nil {
					want = 1
				}
				r.mustMetric(t, want, "tandem_model_rewrites_total", c.counts...)
			})
		}
	}
}

// The answer to a request that counts tokens does not name the model, so that there is no name to restore.
func TestRewriteOfACount(t *testing.T) {
	r := startRig(t, newPool(a), rewriting)
	s := r.open(t, "")
	s.send(requestHeaders(more, ":method", "POST", ":path", pd.APICountTokens.Path()), requestBody(ends, prompt))
	sets := headersSet(t, s.recv())
	rest, err := s.finish()
	if got, _ := bodyOf(rest); err != nil || got != strings.Replace(prompt, `"m"`, `"big m"`, 1) {
		t.Errorf("body %s, %v", got, err)
	}
	if len(sets) != 1 || sets[epp.HeaderDestination] != a {
		t.Errorf("sets %q", sets)
	}
}

// The scheduler sees the request as it will be answered.
func TestPolicyReachesTheScheduler(t *testing.T) {
	p := newPool(a)
	seen := make(chan epp.Request, 1)
	p.choose = func(r *epp.Request) (*epp.Decision, error) { seen <- *r; return p.local(r, p.endpoints[0]) }
	recorder := tracetest.NewSpanRecorder()
	r := startRig(t, p, rewriting, traced(recorder))
	for _, c := range []struct {
		name     string
		headers  []string
		priority int
		want     string
	}{
		{"known", []string{epp.HeaderObjective, "fast"}, 7, "fast"},
		{"under its older name", []string{epp.HeaderObjectiveOld, "fast"}, 7, "fast"},
		{"the newer of both", []string{epp.HeaderObjectiveOld, "fast", epp.HeaderObjective, "slow"}, 0, "slow"},
		{"none", nil, 0, ""},
		{"an empty one", []string{epp.HeaderObjective, "", epp.HeaderObjectiveOld, "fast"}, 7, "fast"},
		{"no text", []string{epp.HeaderObjective, "\xff"}, 0, "\xff"},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := r.ask(t, chat(more, c.headers...))
			got := <-seen
			if got.Objective != c.want || got.Priority != c.priority || got.Model != "big m" || got.Asked != "m" || got.Rewrite != "canary" {
				t.Errorf("got %+v", got)
			}
			if removed := mutationOf(first).GetRemoveHeaders(); len(removed) > 0 {
				t.Errorf("removes %q: the objective is for engines too", removed)
			}
			spans := recorder.Ended()
			has := spans[len(spans)-1].Attributes()
			want := []attribute.KeyValue{attribute.String("tandem.model.asked", "m"), attribute.String("tandem.model.answers", "big m"),
				attribute.String("tandem.model.rewrite", "canary")}
			if c.want != "" {
				want = append(want, attribute.String("tandem.objective", strings.ToValidUTF8(c.want, "\uFFFD")), attribute.Int("tandem.priority", c.priority))
			}
			for _, attr := range want {
				if !slices.Contains(has, attr) {
					t.Errorf("the span has no %v", attr)
				}
			}
		})
	}
}

const (
	engineJSON   = `{"id":"1","model":"big m","choices":[{"message":{"content":"big m"}}]}`
	engineEvents = "data: {\"model\":\"big m\"}\n\ndata: {\"model\":\"big m\",\"usage\":{}}\n\ndata: [DONE]\n\n"
)

// Where the answer comes this way, its client gets the name it asked for, wherever the answer is cut.
func TestNameIsGivenBack(t *testing.T) {
	given := func(text string) string { return strings.ReplaceAll(text, `"model":"big m"`, `"model":"m"`) }
	for _, c := range []struct {
		name, body string
		headers    []string
		want       string
	}{
		{"one part", engineJSON, []string{"content-type", "application/json", "content-length", fmt.Sprint(len(engineJSON))}, given(engineJSON)},
		{"events", engineEvents, []string{"content-type", "text/event-stream; charset=utf-8"}, given(engineEvents)},
		{"broken off", engineJSON[:23], []string{"content-type", "application/json"}, engineJSON[:23]},
		{"compressed", engineJSON, []string{"content-type", "application/json", "content-encoding", "gzip"}, engineJSON},
		{"no JSON", engineJSON, []string{"content-type", "text/plain"}, engineJSON},
		{"of no type", engineJSON, nil, engineJSON},
		{"nothing", "", []string{"content-type", "application/json"}, ""},
	} {
		for _, trailers := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, trailers %t", c.name, trailers), func(t *testing.T) {
				r := startRig(t, newPool(a), rewriting)
				for at := 0; at <= len(c.body); at += 5 {
					s := r.open(t, "")
					s.first = duplexBoth
					s.send(chat(more), requestBody(ends, prompt))
					for ended := false; !ended; {
						_, ended = bodyOf([]*procv3.ProcessingResponse{s.recv()})
					}
					s.send(responseHeaders(more, c.headers...))
					first := s.recv()
					changed := c.want != c.body || c.name == "broken off" || c.name == "nothing"
					if removes := slices.Contains(mutationOf(first).GetRemoveHeaders(), "content-length"); removes != changed {
						t.Errorf("the length is removed: %t", removes)
					}
					s.send(responseBody(more, c.body[:at]))
					if trailers {
						s.send(responseBody(more, c.body[at:]), responseTrailers())
					} else {
						s.send(responseBody(ends, c.body[at:]))
					}
					rest, err := s.finish()
					got, ended := bodyOf(rest)
					if err != nil || got != c.want || ended == trailers {
						t.Fatalf("cut at %d: %q, ended %t, %v; want %q", at, got, ended, err, c.want)
					}
					if last := describe1(rest[len(rest)-1]); trailers && last != "response trailers" {
						t.Errorf("the last answer is %s", last)
					}
				}
				r.gone(t)
				r.mustMetric(t, 0, "tandem_extproc_violations_total")
			})
		}
	}
}

// However many events come at once, they go on at once.
func TestManyEventsAreOneMessage(t *testing.T) {
	r := startRig(t, newPool(a), rewriting)
	s := r.open(t, "")
	s.first = duplexBoth
	s.send(chat(more), requestBody(ends, prompt))
	for ended := false; !ended; {
		_, ended = bodyOf([]*procv3.ProcessingResponse{s.recv()})
	}
	s.send(responseHeaders(more, "content-type", "text/event-stream"))
	s.recv()
	const event = "data: {\"model\":\"%s\",\"choices\":[]}\n\n"
	s.send(responseBody(ends, strings.Repeat(fmt.Sprintf(event, "big m"), 100)))
	rest, err := s.finish()
	if got, ended := bodyOf(rest); err != nil || got != strings.Repeat(fmt.Sprintf(event, "m"), 100) || !ended || len(rest) != 1 {
		t.Errorf("%d messages, ended %t, %v: %q", len(rest), ended, err, got)
	}
	r.gone(t)
}

// An answer to a request without a rewrite is echoed unchanged, even if it contains the name.
func TestOtherAnswersAreEchoed(t *testing.T) {
	r := startRig(t, newPool(a), rewriting)
	s := r.open(t, "")
	s.first = duplexBoth
	body, err := json.Marshal(map[string]any{"model": "big m", "messages": []any{}})
	if err != nil {
		t.Fatal(err)
	}
	s.send(chat(more), requestBody(ends, string(body)))
	s.recv()
	s.recv()
	s.send(responseHeaders(more, "content-type", "application/json"))
	if removes := mutationOf(s.recv()).GetRemoveHeaders(); len(removes) > 0 {
		t.Errorf("removes %q", removes)
	}
	s.send(responseBody(ends, engineJSON))
	rest, err := s.finish()
	if got, ended := bodyOf(rest); err != nil || got != engineJSON || !ended {
		t.Errorf("%q, %v", got, err)
	}
}
