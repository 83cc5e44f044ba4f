package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/simtest"
)

func TestGoldenAnswers(t *testing.T) {
	s := simtest.Start(t)
	for _, name := range []string{
		"completions", "completions-again-cached", "completions-batch2", "completions-ids", "completions-logprobs-echo", "completions-maxtok0",
		"completions-maxtok1", "completions-n2", "completions-stream", "completions-stream-usage", "completions-stream-continuous-usage",
		"chat", "chat-stream", "chat-stream-usage", "chat-max-completion-tokens", "chat-request-id-header", "chat-two-request-id-headers",
		"responses", "responses-stream", "messages", "messages-stream", "messages-count", "tokenize", "tokenize-chat", "detokenize",
		"get-health", "get-ping", "get-version", "get-load", "get-models", "get-notfound", "orca-json", "orca-text", "unknown-field-ignored",
		"err-content-type-text", "err-empty-body", "err-empty-prompt", "err-kvparams-wrong-type", "err-malformed-json", "err-method",
		"err-min-gt-max", "err-negative-maxtokens", "err-no-messages", "err-not-object", "err-prompt-plus-max", "err-stream-options-without-stream",
		"err-temperature", "err-token-id-range", "err-too-long-prompt", "err-too-long-prompt-stream", "err-unknown-model", "err-unknown-model-stream",
		"err-wrong-type-maxtokens", "err-wrong-type-messages", "err-delete-models", "err-prompt-of-model-length",
		"chat-logprobs", "chat-logprobs-stream", "chat-logprobs-no-top", "chat-stream-continuous-usage", "chat-parts", "chat-too-long",
		"completions-stream-logprobs", "completions-token-lists-ids", "completions-stop-token", "completions-model-missing", "completions-long-exact",
		"responses-messages", "responses-no-tokens", "messages-system", "kv-event-sources-off", "render-disabled",
		"tokenize-strs", "tokenize-unknown-model", "tokenize-empty",
	} {
		t.Run(name, func(t *testing.T) {
			r := recordings.Read(t, name)
			recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, s.URL, r.Request)), simtest.ParseWire(t, r.Response), strings.HasSuffix(name, "-ids"))
		})
	}
}

// TestGoldenGenerate replays the API that the real engine serves with --enable-scale-out only.
func TestGoldenGenerate(t *testing.T) {
	scaled := func(c *sim.Config) { c.ScaleOut = true }
	s := simtest.Start(t, scaled)
	for _, name := range []string{"generate", "generate-stream"} {
		t.Run(name, func(t *testing.T) {
			r := recordings.Read(t, name)
			recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, s.URL, r.Request)), simtest.ParseWire(t, r.Response), true)
		})
	}
	t.Run("legs", func(t *testing.T) {
		p, d := simtest.Start(t, scaled), simtest.Start(t, scaled)
		leg1, leg2 := recordings.Read(t, "pd-generate-P"), recordings.Read(t, "pd-generate-D")
		answer := simtest.ParseWire(t, simtest.Exchange(t, p.URL, leg1.Request))
		recordings.Compare(t, answer, simtest.ParseWire(t, leg1.Response), true)
		recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, d.URL, withParams(t, leg2.Request, answer.Body))), simtest.ParseWire(t, leg2.Response), true)
	})
}

func TestGoldenLegs(t *testing.T) {
	p, d := simtest.Start(t), simtest.Start(t)
	for _, name := range []string{"completions-second", "completions-short-below-block", "completions-exact-blocks", "completions-stream", "chat", "chat-stream"} {
		t.Run(name, func(t *testing.T) {
			leg1, leg2 := recordings.Read(t, "pd-"+name+"-P"), recordings.Read(t, "pd-"+name+"-D")
			exact := strings.HasPrefix(name, "completions")
			answer := simtest.ParseWire(t, simtest.Exchange(t, p.URL, leg1.Request))
			recordings.Compare(t, answer, simtest.ParseWire(t, leg1.Response), exact)
			recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, d.URL, withParams(t, leg2.Request, answer.Body))), simtest.ParseWire(t, leg2.Response), exact)
		})
	}
}

// withParams replaces the recorded hand-off of a decode leg by the one in a prefill answer.
func withParams(t *testing.T, request, answer []byte) []byte {
	t.Helper()
	var c simtest.Completion
	if err := json.Unmarshal(answer, &c); err != nil || c.KVTransferParams == nil {
		t.Fatalf("no hand-off in %s", answer)
	}
	return withBody(t, request, func(body map[string]json.RawMessage) { body["kv_transfer_params"] = c.KVTransferParams })
}

func withBody(t *testing.T, request []byte, change func(map[string]json.RawMessage)) []byte {
	t.Helper()
	head, body, _ := bytes.Cut(request, []byte("\r\n\r\n"))
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		t.Fatal(err)
	}
	change(members)
	body = pyjson.Encode(members)
	head = regexp.MustCompile(`(?i)content-length: \d+`).ReplaceAll(head, fmt.Appendf(nil, "Content-Length: %d", len(body)))
	return append(append(head, "\r\n\r\n"...), body...)
}

// TestGoldenPrefillOddities replays prefill legs whose KV stays pinned without a usable hand-off: streams, several choices,
// several prompts, other APIs.
func TestGoldenPrefillOddities(t *testing.T) {
	for _, c := range []struct {
		name   string
		pinned int // blocks that stay for a lease
	}{
		{"pd-P-stream-true", 4}, {"pd-P-chat-stream-true", 0}, {"pd-n2-P", 5}, {"pd-batch2-P", 8}, {"pd-responses-P", 0}, {"pd-messages-P", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := simtest.Start(t)
			r := recordings.Read(t, c.name)
			if c.name == "pd-n2-P" || c.name == "pd-messages-P" { // recorded with a warm prefix cache
				warm := withBody(t, r.Request, func(b map[string]json.RawMessage) { delete(b, "kv_transfer_params") })
				simtest.Exchange(t, p.URL, warm)
			}
			recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, p.URL, r.Request)), simtest.ParseWire(t, r.Response), strings.HasPrefix(c.name, "pd-n2"))
			st := p.Engine.State()
			if c.pinned > 0 && st.Blocks.Pinned != c.pinned || st.Blocks.Pinned == 0 {
				t.Errorf("%d blocks pinned, want %d", st.Blocks.Pinned, c.pinned)
			}
		})
	}
}

func TestGoldenFailures(t *testing.T) {
	t.Run("admission", func(t *testing.T) {
		s := simtest.Start(t, func(c *sim.Config) { c.Schedule.MaxQueuedRequests = 1; c.TimeScale = 1e6 })
		simtest.Occupy(t, s)
		r := recordings.Read(t, "err-503-admission")
		recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, s.URL, r.Request)), simtest.ParseWire(t, r.Response), true)
	})
	t.Run("wrong engine id", func(t *testing.T) {
		p, d := simtest.Start(t), simtest.Start(t)
		r := recordings.Read(t, "pdfail-wrong-engine-id-right-port")
		request := withBody(t, r.Request, func(b map[string]json.RawMessage) {
			h := simtest.Prefill(t, p, simtest.Prompt(1, 100))
			h["remote_engine_id"] = "00000000-0000-0000-0000-000000000000"
			b["kv_transfer_params"] = pyjson.Encode(h)
		})
		recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, d.URL, request)), simtest.ParseWire(t, r.Response), true)
	})
	t.Run("stream that fails", func(t *testing.T) {
		d := simtest.Start(t, func(c *sim.Config) { c.KV.HandshakeTimeout = time.Millisecond })
		r := recordings.Read(t, "pdfail-wrong-engine-id-wrong-port-stream")
		recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, d.URL, r.Request)), simtest.ParseWire(t, r.Response), true)
	})
	t.Run("death", func(t *testing.T) {
		d := simtest.Start(t)
		r := recordings.Read(t, "pdfail-fewer-block-ids")
		recordings.Compare(t, simtest.ParseWire(t, simtest.Exchange(t, d.URL, r.Request)), simtest.ParseWire(t, r.Response), true)
		if err := d.Wait(); err == nil {
			t.Error("the engine did not die of it")
		}
	})
}

// TestGoldenMetrics: a scraper of the real page finds the same families, types and labels here.
func TestGoldenMetrics(t *testing.T) {
	data, err := os.ReadFile("testdata/golden/metrics-nixl-prefill.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := simtest.Start(t)
	simtest.Complete(t, s, simtest.Greedy(simtest.Prompt(1, 40), 2, nil))
	r := simtest.Do(t, http.MethodGet, s.URL+"/metrics", "")
	if got := r.Header.Get("Content-Type"); got != "text/plain; version=1.0.0; charset=utf-8" {
		t.Errorf("content type %q", got)
	}
	real, ours := metricSeries(string(data)), metricSeries(string(r.Body))
	for name := range ours {
		if !real[name] {
			t.Errorf("series %s is not on the real page", name)
		}
	}
	for name := range real {
		if strings.HasPrefix(name, "vllm:") && !ours[name] && !leftOut.MatchString(name) {
			t.Errorf("series %s is missing", name)
		}
	}
}

// leftOut matches the families that package sim's documentation lists as missing.
var leftOut = regexp.MustCompile(`^vllm:(estimated_|mm_cache_|request_max_num_generation|request_params_|request_time_per_output|request_num_preemptions|cache_config_info|nixl_num_failed_.*_created)`)

// metricSeries returns the names of a page's series with their labels; buckets and the cache's configuration without.
func metricSeries(page string) map[string]bool {
	set := make(map[string]bool)
	for line := range strings.Lines(page) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "} ")
		switch {
		case strings.HasPrefix(line, "# TYPE vllm:"):
			set[strings.TrimSpace(line)] = true
		case strings.HasPrefix(line, "#") || !strings.HasPrefix(line, "vllm:"):
		case strings.Contains(name, "_bucket{"), strings.HasPrefix(name, "vllm:cache_config_info"):
			set[name[:strings.IndexByte(name, '{')]] = true
		default:
			set[name] = true
		}
	}
	return set
}
