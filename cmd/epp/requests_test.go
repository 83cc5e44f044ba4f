package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/recent"
)

// The admin port tells what the picker decided and what became of it, by the request's id and by the plan's, and nothing of the prompt.
func TestRecentRequests(t *testing.T) {
	const secret = "Kassandra"
	s := serve(t, "--secure-serving=false")
	conn, err := client.Dial(client.Options{Addresses: []string{s.addresses["extproc"]}, Plaintext: true})
	must(t, err)
	defer conn.Close()
	plans := map[string]string{}
	for _, c := range []struct {
		id, mode, happened string
		status             int
	}{
		// No engine is at these addresses. Only a forced request goes to a prefill endpoint that is known to refuse connections.
		{"remote", "force", "remote;reason=forced;attempts=1;candidate=0", 200},
		{"local", "auto", "local;reason=short-prompt", 200},
		{"failed", "auto", "refused;reason=internal", 500},
		{"a malformed id", "auto", "local;reason=short-prompt", 200},
	} {
		stream, err := conn.Open(t.Context(), client.Single())
		must(t, err)
		must(t, stream.RequestHeaders(client.RequestHead{Method: "POST", Path: "/v1/completions", Header: http.Header{"X-Request-Id": {c.id}, pd.HeaderMode: {c.mode}}}, false))
		must(t, stream.RequestBody([]byte(`{"model":"m","prompt":"`+secret+`"}`), true))
		for plans[c.id] == "" {
			answer, err := stream.Recv()
			must(t, err)
			if answer.Kind == client.RequestHeaders {
				head, path := http.Header{}, ""
				answer.Mutation.Apply(head, &path)
				plan, err := pd.ParsePlan(head.Get(pd.HeaderPlan))
				must(t, err)
				plans[c.id] = plan.ID
			}
		}
		must(t, stream.ResponseHeaders(client.ResponseHead{Status: c.status, Header: http.Header{pd.HeaderDecision: {c.happened}}}, true))
		for answered := false; !answered; {
			answer, err := stream.Recv()
			must(t, err)
			answered = answer.Kind == client.ResponseHeaders
		}
		stream.Close()
	}
	for _, c := range []struct {
		name, asked string
		want        recent.Picked // ID, Decision, Reason, Status, Happened
		prefill     string
	}{
		{"remote", "remote", recent.Picked{ID: "remote", Decision: "remote", Reason: "forced", Status: 200, Happened: "remote;reason=forced;attempts=1;candidate=0"}, "127.0.0.1:9"},
		{"local", "local", recent.Picked{ID: "local", Decision: "local", Reason: "short-prompt", Status: 200, Happened: "local;reason=short-prompt"}, ""},
		{"failed", "failed", recent.Picked{ID: "failed", Decision: "local", Reason: "short-prompt", Status: 500, Happened: "refused;reason=internal"}, ""},
		{"by the plan's id", plans["remote"], recent.Picked{ID: "remote", Decision: "remote", Reason: "forced", Status: 200, Happened: "remote;reason=forced;attempts=1;candidate=0"}, "127.0.0.1:9"},
		{"no id that can be told", plans["a malformed id"], recent.Picked{Decision: "local", Reason: "short-prompt", Status: 200, Happened: "local;reason=short-prompt"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all []recent.Picked
			var page string
			eventually(t, func() bool { // the picker notes a request when its stream has ended
				_, page = s.ask(t, "GET", "admin", recent.Path+"/"+c.asked, nil)
				return json.Unmarshal([]byte(page), &all) == nil && len(all) == 1
			})
			p := all[0]
			got := recent.Picked{ID: p.ID, Decision: p.Decision, Reason: p.Reason, Status: p.Status, Happened: p.Happened}
			if got.ID != c.want.ID || got.Decision != c.want.Decision || got.Reason != c.want.Reason || got.Status != c.want.Status || got.Happened != c.want.Happened {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			endpoints := map[string]string{}
			for _, pick := range p.Picks {
				endpoints[pick.Stage] = pick.Names[0] + " " + pick.Endpoints[0]
			}
			want := map[string]string{"decode": "d 127.0.0.2:9"}
			if c.prefill != "" {
				want["prefill"] = "p " + c.prefill
			}
			if len(endpoints) != len(want) || endpoints["decode"] != want["decode"] || endpoints["prefill"] != want["prefill"] {
				t.Errorf("picked %v, want %v", endpoints, want)
			}
			if p.Ended.IsZero() || p.Millis <= 0 || p.Tokens <= 0 || strings.Contains(page, secret) {
				t.Errorf("told:\n%s", page)
			}
		})
	}
}

// A picker that keeps no requests tells of none.
func TestNoRecentRequests(t *testing.T) {
	s := serve(t, "--secure-serving=false", "--recent-requests=0")
	s.pick(t, true)
	if status, page := s.ask(t, "GET", "admin", recent.Path, nil); status != http.StatusOK || strings.TrimSpace(page) != "[]" {
		t.Errorf("%d %s", status, page)
	}
}
