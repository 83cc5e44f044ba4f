package serving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// stockClient is a client as its vendor publishes it. Its script has a class for each kind of call.
type stockClient struct {
	name, script string
	compared     int // how many calls the script's class Answers reports, at least
}

var (
	openAI       = stockClient{"OpenAI", "openai_client.py", 36}
	anthropic    = stockClient{"Anthropic", "anthropic_client.py", 17}
	stockClients = []stockClient{openAI, anthropic}
)

// TestOpenAIClient is the client of chat, completions and responses.
func TestOpenAIClient(t *testing.T) { testClient(t, openAI) }

// TestAnthropicClient is the client of messages.
func TestAnthropicClient(t *testing.T) { testClient(t, anthropic) }

// testClient has a stock Python client do what its users do, through a real Envoy: testdata/clients. Here is what it cannot
// see: what reached the engines, and what is left there afterwards.
func testClient(t *testing.T, c stockClient) {
	requirePython(t)
	f := harness.NewTappedFleet(t, 1)
	for _, fault := range []string{
		`{"leg":"decode","fault":"status","arg":"429","match":"fault-429"}`,
		`{"leg":"decode","fault":"status","arg":"500","match":"fault-500"}`,
		`{"leg":"decode","fault":"status","arg":"429","match":"fault-once","count":1}`,
		`{"leg":"decode","fault":"slow","arg":"stop","match":"fault-hang"}`,
		`{"leg":"decode","fault":"reset-after","at":"6","match":"fault-break"}`, // after the first token in every API
	} {
		f.Decode[0].Fault(t, fault)
	}
	f.Prefill[0].Fault(t, `{"leg":"prefill","fault":"slow","arg":"stop","match":"fault-hang"}`)
	f.StartPicker(t)
	f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"})

	run := func(t *testing.T, class string) { runClient(t, c, f.Fleet, class) }
	t.Run("answers", func(t *testing.T) { testClientAnswers(t, c, f) })
	t.Run("errors", func(t *testing.T) {
		run(t, "Errors")
		f.MustRest(t)
		mustIdle(t, f.Fleet)
	})
	t.Run("cancellation", func(t *testing.T) {
		drawn := func() float64 { return f.Fleet.Decode[0].Engine.Metric(t, "vllm:generation_tokens_total") }
		before := drawn()
		run(t, "Cancellation")
		f.MustRest(t)
		mustIdle(t, f.Fleet)
		const whole = 3 * harness.WholeModel // all streams would, if they went on
		if n := drawn() - before; n >= whole {
			t.Errorf("decode went on to %v tokens", n)
		}
	})
	t.Run("empty pool", func(t *testing.T) {
		f.EmptyPool(t)
		run(t, "EmptyPool")
	})
}

// runClient runs a class of a client's script and returns what it printed.
func runClient(t *testing.T, c stockClient, f *harness.Fleet, class string) string {
	t.Helper()
	python := exec.CommandContext(harness.Within(t), requirePython(t), filepath.Join("testdata", "clients", c.script), class)
	python.Env = append(os.Environ(), "OPENAI_BASE_URL=http://"+f.Front.Addr+"/v1", "OPENAI_API_KEY=none",
		"ANTHROPIC_BASE_URL=http://"+f.Front.Addr, "ANTHROPIC_API_KEY=none",
		"MODEL="+f.Model, "PLAIN_URL=http://"+f.Plain.Addr, "NO_PROXY=*", "PYTHONDONTWRITEBYTECODE=1")
	var stderr bytes.Buffer
	python.Stderr = &stderr
	out, err := python.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if strings.Contains(stderr.String(), "Ran 0 tests") {
		t.Fatalf("nothing was run:\n%s", stderr.String())
	}
	return string(out)
}

// testClientAnswers runs the calls that succeed, and looks at what of them reached the engines.
func testClientAnswers(t *testing.T, c stockClient, f *harness.TappedFleet) {
	sent := json.NewDecoder(strings.NewReader(runClient(t, c, f.Fleet, "Answers")))
	calls := 0
	for sent.More() {
		var call clientCall
		if err := sent.Decode(&call); err != nil {
			t.Fatal(err)
		}
		call.mustReach(t, f.Prefill[0].Tap, f.Decode[0].Tap)
		calls++
	}
	if calls < c.compared {
		t.Errorf("%d calls were compared, want at least %d", calls, c.compared)
	}
	f.MustRest(t)
}

// requirePython returns the Python that has the clients. Where there is none, the test skips, or fails if CI=true.
func requirePython(t *testing.T) (python string) {
	t.Helper()
	python = filepath.Join(harness.Root, ".tools", "clients", "bin", "python")
	_, err := os.Stat(python)
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("%v (make .tools/clients fetches it)", err)
	default:
		t.Skipf("%v (make .tools/clients fetches it)", err)
	}
	return python
}

// mustIdle fails unless the decode engines come to have nothing to do.
func mustIdle(t *testing.T, f *harness.Fleet) {
	t.Helper()
	for _, p := range f.Decode {
		for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting", harness.UsageGauge} {
			f.Eventually(t, name+" of decode", func() (string, bool) {
				v, err := p.Engine.ReadMetric(name)
				return fmt.Sprint(v, err), err == nil && v == 0
			})
		}
	}
}

// legMembers are the members of each API that differ between what a client sends and what makes the prefill leg.
var legMembers = map[string][]string{
	"chat":        {"max_tokens", "stream", "stream_options"},
	"completions": {"max_tokens", "stream", "stream_options"},
	"responses":   {"max_output_tokens", "store", "stream"},
	"messages":    {"max_tokens", "stream"},
}

// clientCall is what a script says of a call.
type clientCall struct {
	API    string
	ID     string
	Sent   string // the body
	Remote bool
}

// mustReach fails unless the engines got what the client sent: locally the same bytes, remotely the same members with the
// same bytes, but for those that make a leg.
func (c clientCall) mustReach(t *testing.T, prefill, decode *harness.Tap) {
	t.Helper()
	atPrefill, atDecode := bodies(prefill.Seen(c.ID)), bodies(decode.Seen(c.ID))
	switch {
	case !c.Remote && len(atPrefill) == 0 && slices.Equal(atDecode, []string{c.Sent}):
	case !c.Remote || len(atPrefill) != 1 || len(atDecode) != 1:
		t.Errorf("%s (remote %v): the client sent\n%s\nprefill got %q\ndecode got %q", c.ID, c.Remote, c.Sent, atPrefill, atDecode)
	default:
		mustDiffer(t, c.ID+" at prefill", c.Sent, atPrefill[0], legMembers[c.API]...)
		mustDiffer(t, c.ID+" at decode", c.Sent, atDecode[0])
	}
}

// mustDiffer fails unless two JSON objects differ in nothing but these members and kv_transfer_params, and in that indeed.
func mustDiffer(t *testing.T, what, sent, got string, in ...string) {
	t.Helper()
	var members [2]map[string]json.RawMessage
	for i, text := range []string{sent, got} {
		if err := json.Unmarshal([]byte(text), &members[i]); err != nil {
			t.Fatalf("%s: %v in %s", what, err, text)
		}
	}
	if members[1]["kv_transfer_params"] == nil {
		t.Errorf("%s: no hand-off in %s", what, got)
	}
	for _, name := range append(in, "kv_transfer_params") {
		delete(members[0], name)
		delete(members[1], name)
	}
	if !maps.EqualFunc(members[0], members[1], func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
		t.Errorf("%s: the client sent\n%s\nthe engine got\n%s", what, sent, got)
	}
}

func bodies(seen []harness.Tapped) []string {
	var all []string
	for _, s := range seen {
		all = append(all, s.Body)
	}
	return all
}
