package explain

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// signals returns the readings of a candidate whose metrics page was read.
func signals(waiting, running, usage float64) epp.Readings {
	return epp.Readings{{Name: "waiting", Value: &waiting}, {Name: "running", Value: &running}, {Name: "kv_usage", Value: &usage}}
}

// remote returns a picker's answer for a request that goes remote; one endpoint was never scraped.
func remote() epp.Explanation {
	scores := func(a, b float64) []epp.ScoreTrace {
		return []epp.ScoreTrace{{Scorer: "queue-scorer", Weight: 2, Score: a}, {Scorer: "prefix-cache-scorer", Weight: 1, Score: b}}
	}
	return epp.Explanation{
		Request:  epp.RequestSummary{API: "chat", Model: "m", Mode: "auto", Split: true, Tokens: 128, Blocks: 8},
		Decision: "remote", Reason: "uncached",
		Picks: []epp.PickSummary{{Stage: "decode", Endpoints: []string{"10.0.0.2:8000", "10.0.0.3:8000"}},
			{Stage: "prefill", Endpoints: []string{"10.0.0.1:8000"}}},
		Decider: epp.DeciderNumbers{Name: "decider", Parameters: map[string]any{"nonCachedTokens": 64, "promptTokens": 0}, Tokens: 128, Cached: 16, Uncached: 112},
		Trace: &epp.Trace{Snapshot: 7, Outside: []string{"default/far"}, Deciders: []epp.DeciderTrace{{Stage: "prefill", Decider: "decider", Verdict: "remote", Reason: "uncached"}}, Stages: []epp.StageTrace{{
			Stage: "decode", Profile: "decode", Candidates: []epp.CandidateTrace{
				{Endpoint: "default/d1", Address: "10.0.0.2:8000", Role: "decode", Chosen: 1, Why: "chosen", Total: 2.25, Scores: scores(1, 0.25),
					Signals: signals(3, 3, 0.5), LoadAge: 0.2, Requests: 4, Tokens: 500, Cached: 16, CachedBy: "events", Loads: map[string]int{"cpu": 8}, LoadTime: 0.0012, Saved: 0.0105},
				{Endpoint: "default/d2", Address: "10.0.0.3:8000", Role: "decode", Chosen: 2, Why: "second", Total: 1, Scores: scores(0.5, 0), LoadAge: -1},
				{Endpoint: "default/p1", Address: "10.0.0.1:8000", Role: "prefill", Dropped: "decode-filter", Why: "dropped by decode-filter", LoadAge: -1},
			}}}},
	}
}

// answering starts a picker that answers every request with x, and records the last request.
func answering(t *testing.T, x any) (addr string, asked *http.Request, body *bytes.Buffer) {
	t.Helper()
	asked, body = &http.Request{}, &bytes.Buffer{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = *r
		if _, err := io.Copy(body, r.Body); err != nil {
			t.Error(err)
		}
		if err := json.NewEncoder(w).Encode(x); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(func() { s.Close(); http.DefaultClient.CloseIdleConnections() })
	return s.Listener.Addr().String(), asked, body
}

func runWith(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := Run(t.Context(), boot.IO{Name: "explain", Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: io.Discard}, args)
	return out.String(), err
}

func TestTable(t *testing.T) {
	addr, asked, body := answering(t, remote())
	out, err := runWith(t, `{"prompt":"x"}`, "--admin="+addr, "--path=/v1/completions", "--header=x-tandem-pd: auto", "-")
	if err != nil {
		t.Fatal(err)
	}
	if asked.URL.Path != "/explain/v1/completions" || asked.Header.Get("x-tandem-pd") != "auto" || body.String() != `{"prompt":"x"}` {
		t.Errorf("asked %s with %v and %q", asked.URL, asked.Header, body)
	}
	want, err := os.ReadFile(filepath.Join("testdata", "remote.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if out != string(want) {
		t.Errorf("the table is\n%s\nwant\n%s", out, want)
	}
}

func TestRequestLine(t *testing.T) {
	for _, c := range []struct {
		name    string
		request epp.RequestSummary
		want    string
	}{
		{"no model", epp.RequestSummary{}, "model not named, about 0 prompt tokens, x-tandem-pd: auto\n"},
		{"rewritten", epp.RequestSummary{Model: "big", Asked: "llama", Rewrite: "canary"}, "model big (asked for llama, rewritten by canary), about"},
		{"kept by a rewrite", epp.RequestSummary{Model: "big", Rewrite: "canary"}, "model big (by rewrite canary), about"},
		{"an objective", epp.RequestSummary{Objective: "fast", Known: true, Priority: -3}, "x-tandem-pd: auto, objective fast: priority -3\n"},
		{"an unknown one", epp.RequestSummary{Objective: "fa st"}, `x-tandem-pd: auto, objective "fa st" is not known: priority 0` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := remote()
			x.Request = c.request
			x.Request.API, x.Request.Mode = "chat", "auto"
			addr, _, _ := answering(t, x)
			out, err := runWith(t, "{}", "--admin="+addr, "-")
			if err != nil || !strings.HasPrefix(out, "request   chat, ") || !strings.Contains(out, c.want) {
				t.Errorf("%v:\n%s\nwant %s", err, out, c.want)
			}
		})
	}
}

func TestTop(t *testing.T) {
	addr, _, _ := answering(t, remote())
	out, err := runWith(t, "{}", "--admin="+addr, "--top=1", "-")
	if err != nil || !strings.Contains(out, "and 2 more") || strings.Contains(out, "default/d2") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestRefused(t *testing.T) {
	addr, _, _ := answering(t, epp.Explanation{Decision: "refused", Reason: "no-endpoint",
		Refusal: &epp.RefusalSummary{Status: 503, Message: "the pool is empty"}})
	out, err := runWith(t, "{}", "--admin="+addr, "-")
	if want := "decision  refused, because: no-endpoint\nrefused   with status 503: the pool is empty\n"; err != nil || out != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
}

func TestJSON(t *testing.T) {
	addr, _, _ := answering(t, remote())
	out, err := runWith(t, "{}", "--admin="+addr, "--json", "-")
	var x epp.Explanation
	if err != nil || json.Unmarshal([]byte(out), &x) != nil || x.Endpoints(epp.StageDecode)[1] != "10.0.0.3:8000" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestTroubles(t *testing.T) {
	wrong := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(func() { wrong.Close(); http.DefaultClient.CloseIdleConnections() })
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no file":        {nil, boot.CodeUsage, "want one FILE"},
		"missing file":   {[]string{"nowhere.json"}, boot.CodeMissing, "nowhere.json"},
		"no picker":      {[]string{"--admin=127.0.0.1:9", "-"}, boot.CodeMissing, "--admin-address"},
		"bad path":       {[]string{"--path=v1", "-"}, boot.CodeConfig, "slash"},
		"bad header":     {[]string{"--header=x-tandem-pd", "-"}, boot.CodeConfig, "NAME: VALUE"},
		"list header":    {[]string{"--header=x-gateway-destination-endpoint-subset: 10.0.0.1:8000,10.0.0.2:8000", "-"}, boot.CodeConfig, "repeat the name"},
		"not a picker":   {[]string{"--admin=" + wrong.Listener.Addr().String(), "-"}, boot.CodeFailed, "404"},
		"negative top":   {[]string{"--top=-1", "-"}, boot.CodeConfig, "negative"},
		"no time at all": {[]string{"--timeout=0s", "-"}, boot.CodeConfig, "positive"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := runWith(t, "{}", c.args...)
			code := boot.CodeFailed
			if exit, ok := errors.AsType[boot.Exit](err); ok {
				code = exit.Code
			}
			if err == nil || code != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v (code %d), want %q (code %d)", err, code, c.says, c.code)
			}
		})
	}
}
