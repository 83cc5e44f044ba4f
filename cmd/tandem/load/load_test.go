package load

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// asked is one request that a fake endpoint got.
type asked struct {
	mode, prompt string
	tokens       int // of the answer
	header       http.Header
}

func (a *asked) words() int { return len(strings.Fields(a.prompt)) }

// fake is an endpoint that answers every request at once, with as many tokens as asked for. A word is two tokens, and 10 more are the
// template's.
type fake struct {
	*httptest.Server
	// answer, if not nil, answers in place of the fake and returns true.
	answer func(w http.ResponseWriter, r *http.Request, a *asked) bool

	// perLetter counts a token for each letter of a prompt, so that the cost of a word depends on the words.
	perLetter bool

	mu  sync.Mutex
	got []asked // without the probes
}

func startFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/models" {
		io.WriteString(w, `{"data":[{"id":"m"}]}`)
		return
	}
	var body struct {
		Messages  []struct{ Content string }
		MaxTokens int `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a := asked{r.Header.Get("X-Tandem-Pd"), body.Messages[0].Content, body.MaxTokens, r.Header}
	if body.MaxTokens > 2 { // not a probe
		f.mu.Lock()
		f.got = append(f.got, a)
		f.mu.Unlock()
		if f.answer != nil && f.answer(w, r, &a) {
			return
		}
	}
	where := map[string]string{"force": "remote;reason=forced;attempts=1;candidate=0", "bypass": "local;reason=bypassed"}
	w.Header().Set("X-Tandem-Pd-Decision", cmp.Or(where[a.mode], "local;reason=short-prompt"))
	for range a.tokens {
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
		http.NewResponseController(w).Flush()
	}
	prompt := 10 + 2*a.words()
	if f.perLetter {
		prompt = len(a.prompt)
	}
	fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", prompt, a.tokens)
}

// outcome is how a run of the command ended.
type outcome struct {
	code           int
	stdout, stderr string
	result         Result
	page           string
}

// measure runs the command in this process, with files for JSON and page.
func measure(t *testing.T, ctx context.Context, url string, args ...string) (o outcome) {
	t.Helper()
	dir := t.TempDir()
	figures, page := filepath.Join(dir, "f.json"), filepath.Join(dir, "p.html")
	var out, diagnostics bytes.Buffer
	args = append([]string{"--url=" + url, "--json=" + figures, "--report=" + page}, args...)
	o.code = boot.Run(ctx, boot.IO{Name: "load", Stdout: &out, Stderr: &diagnostics}, args, Run)
	o.stdout, o.stderr = out.String(), diagnostics.String()
	if text, err := os.ReadFile(figures); err == nil {
		if err := json.Unmarshal(text, &o.result); err != nil {
			t.Fatal(err)
		}
		html, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		o.page = string(html)
	}
	return o
}

func TestOneSide(t *testing.T) {
	f := startFake(t)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := measure(t, t.Context(), f.URL, "--requests=60", "--input-tokens=100-300", "--output-tokens=4-8", "--slo=e2e=1m", "--gpus=4", "--gate=100",
		"--api-key-file="+key, "--header=x-team:a")
	if o.code != boot.CodeOK {
		t.Fatalf("exit %d: %s", o.code, o.stderr)
	}
	side := o.result.Points[0].Sides[0]
	if o.result.Schema != Schema || side.Model != "m" || side.Requests != 60 || side.Answered != 60 || side.TTFT.P95 == nil || side.TTFT.P99 != nil ||
		side.Objective.Percent != 100 || side.PerGPU == nil || side.PerGPU.RequestRate*4 != side.RequestRate || !side.TokensCounted {
		t.Errorf("%+v", side)
	}
	if d := side.Decisions; len(d) != 1 || d[0] != (DecisionCount{"local", "short-prompt", 60}) {
		t.Errorf("decisions %v", d)
	}
	if side.Input.Min < 99 || side.Input.Max > 301 || side.Input.Max-side.Input.Min < 100 || side.Output.Min != 4 || side.Output.Max != 8 {
		t.Errorf("lengths %+v, %+v", side.Input, side.Output)
	}
	if len(f.got) != 64 { // with the warm-up
		t.Errorf("%d requests", len(f.got))
	}
	for _, a := range f.got {
		if a.mode != "" || a.header.Get("Authorization") != "Bearer secret" || a.header.Get("X-Team") != "a" {
			t.Errorf("headers %v", a.header)
		}
	}
	for _, want := range []string{"all: 60 of 60 requests answered", "\nTTFT ", "\nlocal  short-prompt     60\n", "100.0% met the SLO"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("%q is missing in\n%s", want, o.stdout)
		}
	}
	if !strings.Contains(o.stderr, "1/1 round 1, all: 60 of 60 answered in ") {
		t.Errorf("progress %s", o.stderr)
	}
	if strings.Contains(o.stdout+o.stderr+o.page, "secret") {
		t.Error("the key is shown")
	}
}

// Two endpoints are compared under their addresses, and each with its own GPUs.
func TestAgainst(t *testing.T) {
	f, other := startFake(t), startFake(t)
	o := measure(t, t.Context(), f.URL, "--against="+other.URL+"/v1", "--gpus=2,1", "--mode=force", "--requests=6", "--rounds=2", "--output-tokens=3",
		"--concurrency=2", "--warmup=1")
	if o.code != boot.CodeOK || len(f.got) != 14 || len(other.got) != 14 {
		t.Fatalf("exit %d: %s; %d and %d requests", o.code, o.stderr, len(f.got), len(other.got))
	}
	sides := o.result.Points[0].Sides
	for i, fake := range []*fake{f, other} {
		if sides[i].Name != fake.Listener.Addr().String() || sides[i].GPUs != 2-i || sides[i].Answered != 12 || sides[i].Mode != "force" {
			t.Errorf("%+v", sides[i])
		}
	}
	if o.result.Points[0].Comparison.find("output_tokens_per_s_per_gpu") == nil {
		t.Error("throughput per GPU is not compared")
	}
}

func TestTLS(t *testing.T) {
	f := &fake{}
	f.Server = httptest.NewTLSServer(http.HandlerFunc(f.serve))
	f.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(f.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--ca-file=" + ca}, boot.CodeOK, ""},
		{[]string{"--insecure-skip-verify"}, boot.CodeOK, ""},
		{nil, boot.CodeMissing, "certificate signed by unknown authority"},
	} {
		o := measure(t, t.Context(), f.URL, append(test.args, "--requests=2", "--output-tokens=3", "--warmup=0")...)
		if o.code != test.code || !strings.Contains(o.stderr, test.want) {
			t.Errorf("%v: exit %d: %s", test.args, o.code, o.stderr)
		}
	}
}

func TestRecords(t *testing.T) {
	f := startFake(t)
	n := 0
	f.answer = func(w http.ResponseWriter, _ *http.Request, a *asked) bool {
		if n++; n == 3 {
			http.Error(w, "no", http.StatusTeapot)
			return true
		}
		return false
	}
	file := filepath.Join(t.TempDir(), "r.jsonl")
	o := measure(t, t.Context(), f.URL, "--records="+file, "--requests=4", "--concurrency=1", "--input-tokens=100", "--output-tokens=3", "--warmup=0", "--rounds=2")
	text, err := os.ReadFile(file)
	if err != nil || o.code != boot.CodeOK || !strings.Contains(o.stdout, file) {
		t.Fatalf("exit %d: %s, %v", o.code, o.stderr, err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 8 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, line := range lines {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Side != "all" || r.Point != "100" || r.Round != 1+i/4 || (r.Failure != "") != (i == 2) || r.E2E <= 0 || i != 2 && (r.Output != 3 || len(r.ITL) != 2) {
			t.Errorf("line %d: %s", i+1, line)
		}
	}
}

// Two endpoints with the same tokenizer get prompts of the same lengths, also if the words of the probes are unlike others.
func TestSidesOfTwoEndpointsHaveEqualLengths(t *testing.T) {
	f, other := startFake(t), startFake(t)
	f.perLetter, other.perLetter = true, true
	measure(t, t.Context(), f.URL, "--against="+other.URL, "--requests=8", "--rounds=1", "--output-tokens=3", "--concurrency=1", "--warmup=0")
	for i := range f.got {
		if a, b := f.got[i].words(), other.got[i].words(); a != b {
			t.Errorf("prompt %d has %d and %d words", i, a, b)
		}
	}
	if len(f.got) != 8 {
		t.Errorf("%d requests", len(f.got))
	}
}

// TestCompareIsFair checks what the comparison rests on: pairs have the same lengths, no prompt begins like another one, and the sides
// take turns in being first.
func TestCompareIsFair(t *testing.T) {
	f := startFake(t)
	o := measure(t, t.Context(), f.URL, "--compare=force,bypass", "--requests=10", "--concurrency=1", "--warmup=0", "--input-tokens=60-400",
		"--output-tokens=3-9", "--rounds=6")
	if o.code != boot.CodeOK {
		t.Fatalf("exit %d: %s", o.code, o.stderr)
	}
	type length struct{ words, tokens int }
	var order []string
	lengths := map[string][]length{}
	beginnings := map[string]bool{}
	for i, a := range f.got {
		if i%10 == 0 {
			order = append(order, a.mode)
		}
		lengths[a.mode] = append(lengths[a.mode], length{a.words(), a.tokens})
		beginning := strings.Join(strings.Fields(a.prompt)[:6], " ")
		if beginnings[beginning] {
			t.Errorf("two prompts begin with %q", beginning)
		}
		beginnings[beginning] = true
	}
	if want := strings.Fields("force bypass bypass force force bypass bypass force force bypass bypass force"); !slices.Equal(order, want) {
		t.Errorf("order %v", order)
	}
	if len(lengths["force"]) != 60 || !slices.Equal(lengths["force"], lengths["bypass"]) {
		t.Errorf("lengths %v", lengths)
	}
	if slices.Equal(lengths["force"][:10], lengths["force"][10:20]) {
		t.Error("all rounds have the same lengths")
	}
	p := o.result.Points[0]
	if p.Comparison == nil || p.Comparison.Pairs != 6 || p.Comparison.First != "force" || p.Comparison.find("e2e_p50_ms") == nil {
		t.Fatalf("%+v", p.Comparison)
	}
	if !strings.Contains(o.stdout, "force against bypass, over 6 pairs of rounds: ") || !strings.Contains(o.page, "<h2 id=\"comparison\">force against bypass</h2>") {
		t.Errorf("%s", o.stdout)
	}
}

// The delay that one side has in every round is found, with its sign.
func TestCompareFindsADelay(t *testing.T) {
	f := startFake(t)
	const delay = 20 * time.Millisecond
	f.answer = func(_ http.ResponseWriter, _ *http.Request, a *asked) bool {
		if a.mode == "bypass" {
			<-time.After(delay)
		}
		return false
	}
	o := measure(t, t.Context(), f.URL, "--compare=auto,bypass", "--requests=5", "--concurrency=1", "--output-tokens=3", "--warmup=0")
	d := o.result.Points[0].Comparison.find("ttft_p50_ms")
	if d == nil || d.Difference >= 0 || d.First >= d.Second {
		t.Errorf("%+v", d)
	}
}

func TestSweepCommand(t *testing.T) {
	f := startFake(t)
	o := measure(t, t.Context(), f.URL, "--sweep-input=50,200", "--requests=5", "--concurrency=1", "--output-tokens=3", "--warmup=0", "--rounds=2")
	if o.code != boot.CodeOK || len(o.result.Points) != 2 || o.result.Sweep == nil {
		t.Fatalf("exit %d: %s", o.code, o.stderr)
	}
	for i, words := range []int{20, 95} {
		p := o.result.Points[i]
		if len(p.Sides) != 2 || p.Sides[0].Mode != "force" || p.Sides[1].Mode != "bypass" || p.Sides[0].Answered != 10 {
			t.Errorf("%+v", p)
		}
		n := 0
		for _, a := range f.got {
			if a.words() == words {
				n++
			}
		}
		if n != 20 {
			t.Errorf("%d prompts of %d words, want 20", n, words)
		}
	}
	if !strings.Contains(o.stdout, "it needs 6 rounds at every length") || !strings.Contains(o.page, `id="lengths"`) {
		t.Errorf("%s", o.stdout)
	}
}

func TestTraceCommand(t *testing.T) {
	f := startFake(t)
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	text := ""
	for i := range 20 {
		text += fmt.Sprintf(`{"timestamp": %d, "input_length": 2048, "output_length": 12, "hash_ids": [5, 6, %d]}`+"\n", i, 100+i)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := measure(t, t.Context(), f.URL, "--trace="+file, "--trace-tokens=0.25", "--warmup=0")
	side := o.result.Points[0].Sides[0]
	if o.code != boot.CodeOK || side.Answered != 20 || side.Input.Mean < 511 || side.Input.Mean > 513 || side.Output.Mean != 3 || !o.result.Load.Open {
		t.Fatalf("exit %d: %s %+v", o.code, o.stderr, side)
	}
	first := strings.Fields(f.got[0].prompt)
	for _, a := range f.got[1:] {
		if shared := strings.Fields(a.prompt)[:128]; !slices.Equal(shared, first[:128]) { // two blocks of 128 tokens, two tokens a word
			t.Error("prompts of the trace do not share their first blocks")
		}
	}
}

func TestExits(t *testing.T) {
	refuse := func(status int, text string) func(http.ResponseWriter, *http.Request, *asked) bool {
		return func(w http.ResponseWriter, _ *http.Request, _ *asked) bool {
			w.Header().Set("X-Llm-D-Request-Dropped-Reason", "rejected-saturated")
			w.WriteHeader(status)
			io.WriteString(w, text)
			return true
		}
	}
	tests := []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request, *asked) bool
		args   []string
		code   int
		stderr string
		stdout string
	}{
		{"objective missed", nil, []string{"--slo=e2e=1ns", "--gate=50"}, boot.CodeFailed, "0.0% of the requests met e2e=1ns, and --gate wants 50%", "goodput 0.00"},
		{"objective missed without a gate", nil, []string{"--slo=e2e=1ns"}, boot.CodeOK, "", "goodput 0.00"},
		{"nothing answered", refuse(429, `{"error":{"message":"Full."}}`), nil, boot.CodeFailed, "no request was answered",
			"rejected-saturated     429     12\nrejected-saturated: Full.\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := startFake(t)
			f.answer = test.answer
			o := measure(t, t.Context(), f.URL, append(test.args, "--requests=12", "--output-tokens=3", "--warmup=0")...)
			if o.code != test.code || !strings.Contains(o.stderr, test.stderr) || !strings.Contains(o.stdout, test.stdout) {
				t.Errorf("exit %d: %s\n%s", o.code, o.stderr, o.stdout)
			}
		})
	}
}

// What the endpoint says before anything is measured becomes an error with a way out.
func TestFirstContact(t *testing.T) {
	tests := []struct {
		name   string
		models string
		status int // of generate calls and, if 401, of the list
		args   []string
		code   int
		want   string
	}{
		{"no such model", `{"data":[{"id":"a"},{"id":"b"}]}`, 404, []string{"--model=x"}, boot.CodeUsage, `the endpoint has no model "x": it has a, b`},
		{"several models", `{"data":[{"id":"a"},{"id":"b"}]}`, 200, nil, boot.CodeUsage, "choose one with --model: a, b"},
		{"no models", `{"data":[]}`, 200, nil, boot.CodeUsage, "name one with --model"},
		{"key refused", "", 401, nil, boot.CodeConfig, "--api-key-file"},
		{"no such API", `{"data":[{"id":"a"}]}`, 404, nil, boot.CodeUsage, "check --url, --api and --model"},
		{"broken", `{"data":[{"id":"a"}]}`, 500, nil, boot.CodeFailed, "status 500"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/models" && test.status != 401 {
					io.WriteString(w, test.models)
					return
				}
				w.WriteHeader(test.status)
			}))
			defer server.Close()
			o := measure(t, t.Context(), server.URL, test.args...)
			if o.code != test.code || !strings.Contains(o.stderr, test.want) || o.stdout != "" {
				t.Errorf("exit %d: %s%s", o.code, o.stderr, o.stdout)
			}
		})
	}
}

// Ctrl-C during the second round reports the first, and what the second had answered.
func TestInterrupt(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		code int
	}{{"plain", nil, boot.CodeOK}, {"with a gate", []string{"--slo=e2e=1m", "--gate=1"}, boot.CodeFailed}} {
		t.Run(test.name, func(t *testing.T) {
			f := startFake(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			f.answer = func(_ http.ResponseWriter, r *http.Request, _ *asked) bool {
				if n++; n < 15 { // one client: not concurrent
					return false
				}
				cancel()
				<-r.Context().Done()
				return true
			}
			o := measure(t, ctx, f.URL, append(test.args, "--rounds=3", "--requests=10", "--concurrency=1", "--output-tokens=3", "--warmup=0")...)
			side := o.result.Points[0].Sides[0]
			if o.code != test.code || !o.result.Interrupted || side.Answered != 14 || side.Requests != 14 || side.Failed != 0 || len(side.Rounds) != 1 {
				t.Errorf("exit %d: %s %+v", o.code, o.stderr, side)
			}
			if !strings.Contains(o.stdout, "Note: The run was interrupted") {
				t.Errorf("%s", o.stdout)
			}
		})
	}
}

// An endpoint that goes away ends the run early, and what was measured is shown.
func TestEndpointGone(t *testing.T) {
	f := startFake(t)
	n := 0
	f.answer = func(w http.ResponseWriter, r *http.Request, _ *asked) bool {
		if n++; n == 10 {
			f.Listener.Close()
			w.Header().Set("Connection", "close") // or it would serve the other requests, too
		}
		return false
	}
	o := measure(t, t.Context(), f.URL, "--rounds=50", "--requests=10", "--concurrency=1", "--output-tokens=3", "--warmup=0")
	if o.code != boot.CodeFailed || !strings.Contains(o.stderr, "ended early, because no request of the last round reached "+f.URL) ||
		o.result.Points[0].Sides[0].Answered < 10 || len(o.result.Points[0].Sides[0].Rounds) > 3 {
		t.Errorf("exit %d: %s\n%s", o.code, o.stderr, o.stdout)
	}
}
