package why

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/recent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	morning = time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	// planned is a request that was picked for, with id and plan to be set.
	planned = recent.Picked{Ended: morning.Add(time.Second), API: "chat", Decision: "remote", Reason: "uncached", Tokens: 3000, Cached: 16, PickMs: 0.3,
		Picks: []recent.Pick{{Stage: "decode", Endpoints: []string{"10.0.0.2:8000", "10.0.0.3:8000"}, Names: []string{"d-0", "d-1"}},
			{Stage: "prefill", Endpoints: []string{"10.0.0.1:8000"}, Names: []string{"p-0"}}},
		Status: 200, Happened: "remote;reason=uncached;attempts=1;candidate=0", Served: "10.0.0.2:8000", Millis: 400}
	// served is the same request at its sidecar.
	served = recent.Served{Began: morning, API: "chat", Mode: "auto", Planned: "remote", Decision: "remote;reason=uncached;attempts=1;candidate=0",
		Decode: "10.0.0.2:8000", Prefill: "10.0.0.1:8000", Status: 200, State: "streaming", End: "done", Tokens: recent.Tokens{Prompt: 3012, Cached: -1, Completion: 9},
		Millis: 390, Timing: "recv;dur=1, prefill;dur=80, handoff;dur=0.1, first;dur=8.9, decode;dur=300",
		Legs: []recent.Leg{{Leg: "prefill", Engine: "10.0.0.1:8000", At: 1, Millis: 80, Status: 200}, {Leg: "decode", Engine: "127.0.0.1:8200", At: 81.1, Millis: 8, Status: 200}}}
)

func pick(id, plan string, change func(*recent.Picked)) *recent.Picked {
	p := planned
	p.ID, p.PlanID = id, plan
	if change != nil {
		change(&p)
	}
	return &p
}

func serve(id, plan string, change func(*recent.Served)) *recent.Served {
	s := served
	s.ID, s.PlanID = id, plan
	if change != nil {
		change(&s)
	}
	return &s
}

// entry is a recent.Served as a recent.Entry; in sidecars a record of the exchange is.
type entry struct{ *recent.Served }

func (e entry) Is(id string) bool { return e.ID == id || e.PlanID == id }
func (e entry) Size() int         { return 1 }

// startAdmin serves the admin port of a program that remembers requests.
func startAdmin[E recent.Entry](t *testing.T, entries ...E) (addr string) {
	t.Helper()
	store, mux := recent.New[E](100, 1<<20), http.NewServeMux()
	for _, e := range entries {
		store.Add(e, false)
	}
	store.Register(mux)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func runWith(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = Run(t.Context(), boot.IO{Name: "why", Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}, args)
	return out.String(), errs.String(), err
}

// tell runs the command for a picker and a sidecar that remember something, and returns its text without their addresses.
func tell(t *testing.T, picked []*recent.Picked, of []*recent.Served, id string) string {
	t.Helper()
	var entries []entry
	for _, s := range of {
		entries = append(entries, entry{s})
	}
	picker, sidecar := startAdmin(t, picked...), startAdmin(t, entries...)
	out, errs, err := runWith(t, "--epp-admin="+picker, "--sidecar-admin="+sidecar, id)
	if err != nil || errs != "" {
		t.Fatalf("%v: %s", err, errs)
	}
	return strings.NewReplacer(picker, "PICKER", sidecar, "SIDECAR").Replace(out)
}

func TestStory(t *testing.T) {
	for _, c := range []struct {
		name   string
		picked []*recent.Picked
		served []*recent.Served
		id     string
		want   []string // lines or parts of them, in their order
	}{
		{"remote", []*recent.Picked{pick("r-1", "a", nil)}, []*recent.Served{serve("r-1", "a", nil)}, "r-1", []string{
			"request   r-1, chat, x-tandem-pd: auto, began 2026-01-02 03:04:05.678 UTC\n",
			"in short  p-0 computed the prompt, and d-0 generated the answer, because enough of the prompt was not cached on the decode pod. " +
				"77 % of the time passed in decode, while the engine sent its answer\n",
			"client    got status 200 after 390ms: done; tokens: 3012 in the prompt, 9 generated\n",
			"picker    PICKER: remote, because enough of the prompt was not cached on the decode pod\n",
			"about 3000 tokens in the prompt, 16 of them cached on the decode pod; decided in 300µs\n",
			"decode   d-0 10.0.0.2:8000, then d-1 10.0.0.3:8000\n", "prefill  p-0 10.0.0.1:8000\n",
			"sidecar   SIDECAR: remote;reason=uncached;attempts=1;candidate=0\n",
			"1ms  prefill leg to 10.0.0.1:8000: status 200 after 80ms\n", "81.1ms  decode leg to 127.0.0.1:8200: status 200, headers after 8ms\n",
			"390ms  the answer ended: done\n", "phases    recv;dur=1, prefill;dur=80"}},
		{"fallen back", []*recent.Picked{pick("r-1", "a", nil)}, []*recent.Served{serve("r-1", "a", func(s *recent.Served) {
			s.Decision, s.Error = "local;reason=transfer-failed;attempts=1;candidate=0", "decode answered 500"
			s.Legs = append(s.Legs[:1:1], recent.Leg{Leg: "decode", At: 82, Error: "EOF"}, recent.Leg{Leg: "local", At: 90, Status: 200})
			s.Releases = []recent.Release{{Way: "cancel", Result: "ok", At: 700}}
		})}, "r-1", []string{
			"in short  prefill on another pod was planned, but decode could not load the KV cache, so d-0 did all of it.", "last failure: decode answered 500\n",
			"82ms  decode leg to : no answer, given up after 0s: EOF\n", "90ms  local leg", "390ms  the answer ended", "700ms  release of the KV cache on the prefill pod (cancel): ok\n"}},
		{"failed", nil, []*recent.Served{serve("r-1", "", func(s *recent.Served) { s.Decision, s.Status = "local;reason=bypassed", 500 })}, "r-1", []string{
			"in short  10.0.0.2:8000 did all of it, because the client asked for that (x-tandem-pd: bypass); the answer is an error, status 500.", "picker    not known"}},
		{"the client left", nil, []*recent.Served{serve("r-1", "", func(s *recent.Served) { s.Status, s.State = 499, "prefilling" })}, "r-1", []string{
			"in short  the client left before it had an answer", "client    left after 390ms", "390ms  the request ended without an engine's answer; its state was prefilling\n"}},
		{"refused by the sidecar", nil, []*recent.Served{serve("r-1", "", func(s *recent.Served) {
			s.Decision, s.Status, s.State, s.Legs = "refused;reason=budget", 503, "received", nil
		})}, "r-1", []string{"in short  the sidecar refused it with status 503, because too many requests that were planned remote"}},
		{"refused by an engine", nil, []*recent.Served{serve("r-1", "", func(s *recent.Served) {
			s.Decision, s.Status, s.Legs = "refused;reason=bad-request;attempts=1;candidate=0", 400, []recent.Leg{{Leg: "prefill", Status: 400}}
		})}, "r-1", []string{"in short  the engine 10.0.0.1:8000 refused it with status 400."}},
		{"refused by the picker", []*recent.Picked{pick("r-1", "", func(p *recent.Picked) {
			p.Own, p.Status, p.Decision, p.Reason, p.Happened, p.Picks = true, 503, "refused", "no-endpoint", "refused;reason=no-endpoint", nil
		})}, nil, "r-1", []string{"in short  the picker refused it with status 503, because no decode pod was available\n", "picker    PICKER: refused, because no decode pod was available\n"}},
		{"the sidecar is not asked", []*recent.Picked{pick("r-1", "a", nil)}, nil, "r-1", []string{
			"in short  it was answered with status 200: remote;reason=uncached;attempts=1;candidate=0\n",
			"sidecar   not known: no sidecar that answered remembers the request; the request was served by 10.0.0.2:8000\n"}},
		{"another picker picked", []*recent.Picked{pick("r-1", "a", func(p *recent.Picked) { p.Picks = nil })}, []*recent.Served{serve("r-1", "a", nil)}, "r-1", []string{
			"another picker decided, so what it saw is not known here\n"}},
		{"costs", []*recent.Picked{pick("r-1", "a", func(p *recent.Picked) {
			p.Costs = []recent.Cost{{Verdict: "local", Endpoint: "10.0.0.2:8000", Seconds: 0.5}}
		})}, nil, "r-1", []string{
			"cost     local on 10.0.0.2:8000: first token expected after 500ms\n"}},
		{"the picker knows only the plan", []*recent.Picked{pick("", "0123456789abcdef", nil)}, []*recent.Served{serve("made-by-sidecar", "0123456789abcdef", nil)}, "made-by-sidecar", []string{
			"in short  p-0 computed the prompt", "picker    PICKER: remote"}},
		{"an id sent twice", []*recent.Picked{pick("r-1", "a", nil), pick("r-1", "b", func(p *recent.Picked) { p.PickMs = 7 })},
			[]*recent.Served{serve("r-1", "a", nil), serve("r-1", "b", func(s *recent.Served) { s.Began = morning.Add(time.Hour) })}, "r-1", []string{
				"2 requests have had this id, the latest first\n", "began 2026-01-02 04:04:05.678 UTC", "decided in 7ms", "began 2026-01-02 03:04:05.678 UTC", "decided in 300µs"}},
		{"an engine that writes to terminals", nil, []*recent.Served{serve("r-1", "", func(s *recent.Served) { s.Error = "\x1b[2Jgone" })}, "r-1", []string{"last failure: [2Jgone\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := tell(t, c.picked, c.served, c.id)
			rest := out
			for _, want := range c.want {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Fatalf("no %q, in this order, in\n%s", want, out)
				}
				rest = after
			}
		})
	}
}

// Every decision and every phase has words: a gap would be seen only in an incident.
func TestWords(t *testing.T) {
	for _, v := range []pd.Verdict{pd.Local, pd.Remote, pd.Refused} {
		for _, r := range pd.Reasons(v) {
			if because[r] == "" {
				t.Errorf("no words for the reason %s", r)
			}
		}
	}
	for p := range pd.Phase(pd.PhaseCount) {
		if p != pd.PhaseEPP && during[p] == "" {
			t.Errorf("no words for the phase %s", p)
		}
	}
}

func TestJSON(t *testing.T) {
	picker, sidecar := startAdmin(t, pick("r-1", "a", nil)), startAdmin(t, entry{serve("r-1", "a", nil)})
	out, _, err := runWith(t, "--epp-admin="+picker, "--sidecar-admin="+sidecar, "--json", "r-1")
	var got told
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || len(got.Stories) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	if s := got.Stories[0]; got.RequestID != "r-1" || s.Picker != picker || s.Sidecar != sidecar || s.Picked.PlanID != "a" || len(s.Served.Legs) != 2 {
		t.Errorf("told %+v", &got)
	}
}

// The ready line of tandem up has all addresses.
func TestUp(t *testing.T) {
	picker, other, sidecar := startAdmin(t, pick("r-1", "a", nil)), startAdmin[entry](t), startAdmin(t, entry{serve("r-1", "a", nil)})
	file := filepath.Join(t.TempDir(), "up.json")
	line := `{"ready":"up","addresses":{"admin":"` + picker + `","decode-0/sidecar-admin":"` + other + `","decode-1/sidecar-admin":"` + sidecar + `","http":"127.0.0.1:1"}}`
	if err := os.WriteFile(file, []byte(line+"\nmore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, err := runWith(t, "--up="+file, "r-1")
	if err != nil || errs != "" || !strings.Contains(out, "picker    "+picker) || !strings.Contains(out, "sidecar   "+sidecar) {
		t.Errorf("%v: %s\n%s", err, errs, out)
	}
}

func TestTroubles(t *testing.T) {
	empty, wrong := startAdmin[entry](t), httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(wrong.Close)
	noUp := filepath.Join(t.TempDir(), "up.json")
	if err := os.WriteFile(noUp, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		says   string
		stderr string
	}{
		{"no id", nil, boot.CodeUsage, "want one REQUEST_ID", ""},
		{"two ids", []string{"a", "b"}, boot.CodeUsage, "want one REQUEST_ID", ""},
		{"no such id", []string{"../debug"}, boot.CodeUsage, "is not a request id", ""},
		{"not remembered", []string{"--sidecar-admin=" + empty, "r-1"}, boot.CodeFailed, "none of the 1 pickers and sidecars that answered remembers r-1", ""},
		{"no program answers", []string{"--epp-admin=127.0.0.1:9", "r-1"}, boot.CodeMissing, "no picker and no sidecar answers", "127.0.0.1:9 does not tell: "},
		{"another port", []string{"--epp-admin=" + wrong.Listener.Addr().String(), "--sidecar-admin=" + empty, "r-1"}, boot.CodeFailed, "none of the 1", "404 Not Found (is this its admin port?)"},
		{"no address", []string{"--epp-admin=9091", "r-1"}, boot.CodeConfig, "epp-admin", ""},
		{"two sources", []string{"--namespace=a", "--up=-", "r-1"}, boot.CodeConfig, "cannot be combined", ""},
		{"a release without a namespace", []string{"--release=a", "r-1"}, boot.CodeConfig, "needs --namespace", ""},
		{"no ready line", []string{"--up=" + noUp, "r-1"}, boot.CodeConfig, "ready line of tandem up", ""},
		{"no cluster", []string{"--namespace=a", "--kubeconfig=" + noUp + ".no", "r-1"}, boot.CodeConfig, "kubeconfig", ""},
		{"no time", []string{"--timeout=0s", "r-1"}, boot.CodeConfig, "must be positive", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, stderr, err := runWith(t, c.args...)
			code := boot.CodeFailed
			if exit, ok := errors.AsType[boot.Exit](err); ok {
				code = exit.Code
			}
			if err == nil || code != c.code || !strings.Contains(err.Error(), c.says) || !strings.Contains(stderr, c.stderr) {
				t.Errorf("%v (code %d) and %q, want %q (code %d) and %q", err, code, stderr, c.says, c.code, c.stderr)
			}
		})
	}
}
