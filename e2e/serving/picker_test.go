package serving

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// TestPicker is the suite of the picker behind a proxy: the same on the embedded gateway and on real Envoy, with the filter
// pair and with the one filter that gateways configure today.
func TestPicker(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewStack(t, l, 2, 2)
			t.Run("threshold", func(t *testing.T) { testThreshold(t, f) })
			t.Run("modes", func(t *testing.T) { testModes(t, f) })
			t.Run("headers", func(t *testing.T) { testHeaders(t, f) })
			t.Run("bad input", func(t *testing.T) { testBadInput(t, f) })
			t.Run("long prompt", func(t *testing.T) { testLongPrompt(t, f) })
			t.Run("other calls", func(t *testing.T) { testOtherCalls(t, f) })
			t.Run("prefix", func(t *testing.T) { testPrefixAffinity(t, f) })
			t.Run("crowd", func(t *testing.T) { testFleetCrowd(t, f) })
			t.Run("client gone", func(t *testing.T) { testFleetClientGone(t, f) })
			f.MustRest(t)
		})
	}
}

func testThreshold(t *testing.T, f *harness.Fleet) {
	for _, c := range []struct {
		tokens int
		want   pd.Verdict
		reason pd.Reason
	}{{harness.Threshold - 1, pd.Local, pd.ShortPrompt}, {harness.Threshold, pd.Remote, pd.Uncached}, {4 * harness.Threshold, pd.Remote, pd.Uncached}} {
		t.Run(fmt.Sprint(c.tokens), func(t *testing.T) {
			harness.BothForms(t, func(t *testing.T, stream bool) {
				q := f.TokensCall(c.tokens, stream)
				got := f.Send(t, q)
				harness.MustMatch(t, got, stream, f.Want(t, q))
				if got.Decision.Verdict != c.want || got.Decision.Reason != c.reason {
					t.Errorf("decision %v, want %v %v", got.Decision, c.want, c.reason)
				}
			})
		})
	}
}

// testModes is the client's word, where prefill pods are to be had.
func testModes(t *testing.T, f *harness.Fleet) {
	short, long := harness.Threshold/2, 2*harness.Threshold
	batch := map[string]any{"prompt": [][]int{f.Fresh(20), f.Fresh(30)}}
	doubted := map[string]any{"max_tokens": -1}
	for _, c := range []struct {
		mode    string
		tokens  int
		members map[string]any
		status  int
		want    string
	}{
		{"", short, nil, 200, "local;reason=short-prompt"},
		{"", long, nil, 200, "remote;reason=uncached"},
		{"auto", long, nil, 200, "remote;reason=uncached"},
		{"force", short, nil, 200, "remote;reason=forced"},
		{"force;fallback", short, nil, 200, "remote;reason=forced"},
		{"bypass", long, nil, 200, "local;reason=bypassed"},
		{"", long, batch, 200, "local;reason=not-splittable"},
		{"bypass", long, batch, 200, "local;reason=bypassed"},
		{"force", long, batch, 400, "refused;reason=not-splittable"},
		{"force;fallback", long, batch, 200, "local;reason=not-splittable"},
		{"force", long, doubted, 400, "local;reason=not-splittable"}, // the engine's own 400
		{"yes", long, nil, 400, "refused;reason=bad-pd-header"},
		{"force;now", long, nil, 400, "refused;reason=bad-pd-header"},
		{"Force", long, nil, 400, "refused;reason=bad-pd-header"},
	} {
		name := fmt.Sprintf("%q of %d %v", c.mode, c.tokens, c.members)
		t.Run(name, func(t *testing.T) {
			q := f.TokensCall(c.tokens, false)
			q.Members = c.members
			if c.mode != "" {
				q.Header = map[string]string{pd.HeaderMode: c.mode}
			}
			got := f.Send(t, q)
			if decision := harness.Planned(got); got.Status != c.status || decision != c.want {
				t.Errorf("status %d, decision %q (%s), want %d %q", got.Status, decision, got.Body, c.status, c.want)
			}
		})
	}
}

// TestModesWithoutPrefill is the client's word, and the operator's, where no prefill pod is to be had.
func TestModesWithoutPrefill(t *testing.T) {
	l := harness.Layout{Proxy: "envoy", Mode: "pair"}
	for _, operator := range []struct {
		name, parameter, flag string
		rows                  map[string]string // mode → status and decision of a long prompt
	}{
		{"local", "", "", map[string]string{
			"": "200 local;reason=no-prefill", "force": "503 refused;reason=no-prefill",
			"force;fallback": "200 local;reason=no-prefill", "bypass": "200 local;reason=bypassed", "no": "400 refused;reason=bad-pd-header",
		}},
		{"refuse", "onNoPrefill: refuse", "", map[string]string{
			"": "503 refused;reason=no-prefill", "force": "503 refused;reason=no-prefill",
			"force;fallback": "200 local;reason=no-prefill", "bypass": "200 local;reason=bypassed", "no": "400 refused;reason=bad-pd-header",
		}},
		{"header off", "", "--pd-header=off", map[string]string{
			"": "200 local;reason=no-prefill", "force": "200 local;reason=no-prefill",
			"bypass": "200 local;reason=no-prefill", "no": "200 local;reason=no-prefill",
		}},
	} {
		t.Run(operator.name, func(t *testing.T) {
			f := harness.NewFleet(t, 0, 1)
			f.WriteConfig(t, fmt.Sprintf(harness.PdConfig, harness.Threshold, operator.parameter))
			var flags []string
			if operator.flag != "" {
				flags = append(flags, operator.flag)
				f.Decode[0].Sidecar = harness.StartSidecar(t, f.Decode[0].Engine.Addr, operator.flag)
				f.WriteEndpoints(t)
			}
			f.StartPicker(t, flags...)
			f.StartFront(t, l)
			for mode, want := range operator.rows {
				q := f.TokensCall(2*harness.Threshold, false)
				if mode != "" {
					q.Header = map[string]string{pd.HeaderMode: mode}
				}
				got := f.Send(t, q)
				if seen := fmt.Sprint(got.Status, " ", harness.Planned(got)); seen != want {
					t.Errorf("x-tandem-pd %q: %s (%s), want %s", mode, seen, got.Body, want)
				}
				if got.Status == http.StatusServiceUnavailable {
					mustBeOverloaded(t, got, "no-prefill")
				}
			}
			f.MustRest(t)
		})
	}
}

// mustBeOverloaded checks a 503 of the picker: OpenAI's error shape, Retry-After and llm-d's reason.
func mustBeOverloaded(t *testing.T, got harness.Reply, code string) {
	t.Helper()
	var e struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal([]byte(got.Body), &e); err != nil || e.Error.Code != code || e.Error.Message == "" {
		t.Errorf("body %q is not an error with code %s", got.Body, code)
	}
	if got.Header.Get("Retry-After") != "1" || got.Header.Get(pd.HeaderDropped) != "rejected-no-endpoints" {
		t.Errorf("headers %v lack Retry-After or %s", got.Header, pd.HeaderDropped)
	}
}

func testHeaders(t *testing.T, f *harness.Fleet) {
	t.Run("forged", func(t *testing.T) {
		q := f.TokensCall(harness.Threshold/2, false)
		q.Header = map[string]string{
			pd.HeaderPrefill: "127.0.0.1:9", pd.HeaderPlan: "remote;id=0123456789abcdef;reason=uncached;strict=1;epp=0.1",
			"x-gateway-destination-endpoint": "127.0.0.1:9", "x-data-parallel-host-port": "127.0.0.1:9", "X-Tandem-Auth": "guess",
		}
		got := f.Send(t, q)
		harness.MustMatch(t, got, false, f.Want(t, q))
		if harness.Planned(got) != "local;reason=short-prompt" {
			t.Errorf("decision %v: a client's header got through", got.Decision)
		}
	})
	t.Run("timing", func(t *testing.T) {
		got := f.Send(t, f.TokensCall(2*harness.Threshold, false))
		phases, err := pd.ParseTiming(got.Header.Get(pd.HeaderTiming))
		if err != nil {
			t.Fatal(err)
		}
		for _, phase := range []pd.Phase{pd.PhaseEPP, pd.PhaseRecv, pd.PhasePrefill, pd.PhaseHandoff, pd.PhaseFirst} {
			if _, ok := phases.Get(phase); !ok {
				t.Errorf("Server-Timing %q lacks %v", got.Header.Get(pd.HeaderTiming), phase)
			}
		}
	})
	t.Run("no address", func(t *testing.T) {
		got := f.Send(t, f.TokensCall(2*harness.Threshold, false))
		for name, values := range got.Header {
			if strings.Contains(strings.Join(values, " "), "127.0.0.1") || strings.HasPrefix(name, "X-Gateway-") {
				t.Errorf("the answer tells %s: %v", name, values)
			}
		}
	})
	t.Run("trailers", func(t *testing.T) {
		q := f.TokensCall(2*harness.Threshold, true)
		for name, values := range f.Send(t, q).Trailer {
			if len(values) > 0 {
				t.Errorf("trailer %s: %v for a client that did not ask", name, values)
			}
		}
	})
}

func testBadInput(t *testing.T, f *harness.Fleet) {
	for name, c := range map[string]struct {
		path, body string
		status     int
		code       string
	}{
		"no JSON":       {"/v1/chat/completions", "hello", 400, "bad-request"},
		"half JSON":     {"/v1/chat/completions", `{"model":"m","messages":[`, 400, "bad-request"},
		"empty":         {"/v1/completions", "", 400, "bad-request"},
		"an array":      {"/v1/completions", "[]", 400, "bad-request"},
		"twice":         {"/v1/completions", `{"model":"m","prompt":"a","prompt":"b"}`, 400, "duplicate-key"},
		"UTF-16":        {"/v1/completions", "\xff\xfe{\x00}\x00", 400, "bad-request"},
		"unknown model": {"/v1/completions", `{"model":"unknown","prompt":"a"}`, 404, ""},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := harness.Client.Post("http://"+f.Front.Addr+c.path, "application/json", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			var e struct{ Error struct{ Message, Code any } }
			if err := json.Unmarshal(b, &e); err != nil || e.Error.Message == nil {
				t.Errorf("%d %q is not an error of the API's shape", resp.StatusCode, b)
			}
			if resp.StatusCode != c.status || c.code != "" && e.Error.Code != c.code {
				t.Errorf("status %d %s, want %d %s", resp.StatusCode, b, c.status, c.code)
			}
		})
	}
}

// testLongPrompt sends a body of many frames, which must reach the engine whole.
func testLongPrompt(t *testing.T, f *harness.Fleet) {
	harness.BothForms(t, func(t *testing.T, stream bool) {
		q := harness.Call{API: pd.APIChat, Text: harness.Words(100), Tokens: 4, Stream: stream, Members: map[string]any{"user": strings.Repeat("pad\n", 200_000)}}
		for _, mode := range []string{"force", "bypass"} {
			q.Header = map[string]string{pd.HeaderMode: mode}
			got := f.Send(t, q)
			harness.MustMatch(t, got, stream, f.Want(t, q))
		}
	})
}

func testOtherCalls(t *testing.T, f *harness.Fleet) {
	status, text := harness.FetchPage(t, "http://"+f.Front.Addr+"/v1/models")
	if status != http.StatusOK || !strings.Contains(text, f.Model) {
		t.Errorf("GET /v1/models: %d %s", status, text)
	}
	resp, err := harness.Client.Post("http://"+f.Front.Addr+"/tokenize", "application/json", strings.NewReader(`{"model":"`+f.Model+`","prompt":"a b c"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || !strings.Contains(string(b), "tokens") {
		t.Errorf("POST /tokenize: %d %s", resp.StatusCode, b)
	}
}

// testPrefixAffinity sends a conversation: its later turns find most of the prompt cached and stay local.
func testPrefixAffinity(t *testing.T, f *harness.Fleet) {
	first := f.TokensCall(4*harness.Threshold, false)
	if got := f.Send(t, first); got.Decision.Verdict != pd.Remote {
		t.Fatalf("decision %v", got.Decision)
	}
	f.MustRest(t) // while the first counts, its pod is the busier one
	second := harness.Call{API: pd.APICompletions, Prompt: append(slices.Clone(first.Prompt), f.Fresh(harness.Threshold/2)...), Tokens: 8}
	got := f.Send(t, second)
	harness.MustMatch(t, got, false, f.Want(t, second))
	if harness.Planned(got) != "local;reason=below-threshold" {
		t.Errorf("decision %v although only %d tokens are new", got.Decision, harness.Threshold/2)
	}
	if got.Cached < 4*harness.Threshold-32 {
		t.Errorf("%d tokens cached: it went to another decode pod", got.Cached)
	}
}

// testFleetCrowd sends many calls at once, of all kinds. None may fail, and every answer must be right.
func testFleetCrowd(t *testing.T, f *harness.Fleet) {
	const calls = 48
	var running sync.WaitGroup
	var remote [calls]bool
	var all []harness.Call
	for i := range calls {
		all = append(all, f.TokensCall(20+i*8, i%2 == 0))
	}
	want := f.Wants(t, all)
	for i, q := range all {
		running.Go(func() {
			got, err := q.Send(t.Context(), f.Front.Addr, f.Model)
			if err != nil || got.Status != http.StatusOK || !slices.Equal(got.Tokens, want[i]) {
				t.Errorf("call %d: %d %v %s: tokens %v, want %v", i, got.Status, err, got.Body, got.Tokens, want[i])
			}
			remote[i] = got.Decision.Verdict == pd.Remote
		})
	}
	running.Wait()
	if n := len(slices.DeleteFunc(remote[:], func(r bool) bool { return !r })); n == 0 || n == calls {
		t.Errorf("%d of %d calls went remote", n, calls)
	}
}

// testFleetClientGone leaves at the first event of a stream; mustRest then finds nothing left of it.
func testFleetClientGone(t *testing.T, f *harness.Fleet) {
	for range 8 {
		ctx, cancel := context.WithCancel(t.Context())
		q := f.TokensCall(2*harness.Threshold, true)
		q.Tokens = 2000
		resp, err := f.Open(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := resp.Body.Read(make([]byte, 1)); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("the stream did not begin: status %d, %v", resp.StatusCode, err)
		}
		cancel()
		resp.Body.Close()
	}
}
