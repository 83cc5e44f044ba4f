package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// recording is one exchange with the real engine.
type recording struct{ request, response []byte }

const (
	responseMark = "=====8<===== response bytes =====8<=====\n"
	noteMark     = "=====8<===== note:"
)

func readRecording(t *testing.T, name string) recording {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "golden", name+".http"))
	if err != nil {
		t.Fatal(err)
	}
	data, _, _ = bytes.Cut(data, []byte(noteMark))
	request, response, ok := bytes.Cut(data, []byte(responseMark))
	if !ok {
		t.Fatalf("%s has no response", name)
	}
	// The recorder puts a line end before its mark.
	return recording{bytes.TrimSuffix(request, []byte("\n")), response}
}

// wire is an answer taken apart as it came over the wire.
type wire struct {
	status string
	header map[string]string // lower-case names
	body   []byte
	chunks []string // of a chunked body
}

func parseWire(t *testing.T, data []byte) wire {
	t.Helper()
	head, body, _ := bytes.Cut(data, []byte("\r\n\r\n"))
	lines := strings.Split(string(head), "\r\n")
	w := wire{status: lines[0], header: make(map[string]string), body: body}
	for _, l := range lines[1:] {
		name, value, _ := strings.Cut(l, ": ")
		w.header[strings.ToLower(name)] = value
	}
	if w.header["transfer-encoding"] != "chunked" {
		return w
	}
	r := bufio.NewReader(bytes.NewReader(body))
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("reading chunks of %q: %v", data, err)
		}
		var size int
		if _, err := fmt.Sscanf(line, "%x", &size); err != nil {
			t.Fatalf("reading the chunk size %q: %v", line, err)
		}
		chunk := make([]byte, size+2)
		if _, err := io.ReadFull(r, chunk); err != nil {
			t.Fatalf("reading a chunk: %v", err)
		}
		if size == 0 {
			return w
		}
		w.chunks = append(w.chunks, string(chunk[:size]))
	}
}

// send replays a recorded request, byte for byte, and returns the bytes of the answer.
func send(t *testing.T, s *Server, request []byte) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	r := bufio.NewReader(io.TeeReader(conn, &raw))
	method, _, _ := strings.Cut(string(request), " ")
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return raw.Bytes()
}

// free are the members whose values differ from run to run: their types have to agree, and no more.
var free = []string{"id", "item_id", "created", "created_at", "text", "content", "delta", "system_fingerprint", "logprobs", "prompt_logprobs",
	"tokens", "token_strs", "count", "token_ids", "prompt_token_ids", "root", "prompt", "input_tokens", "original_input_tokens",
	"remote_block_ids", "remote_engine_id", "remote_request_id", "remote_port", "stop_reason_free"}

// counts are exact only where the recording gave token ids, because the splitters differ.
var tokenCounts = []string{"prompt_tokens", "total_tokens", "completion_tokens", "cached_tokens", "created_cache_tokens", "cache_write_tokens",
	"cache_read_input_tokens", "cache_creation_input_tokens", "remote_num_tokens", "remote_prefill_cached_tokens"}

// shape writes a JSON document with its members in order, values where they have to agree, and types elsewhere.
// Lists of plain values become one element.
func shape(t *testing.T, doc string, exactCounts bool) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	var b strings.Builder
	if err := writeShape(&b, d, "", exactCounts); err != nil {
		t.Fatalf("reading %q: %v", doc, err)
	}
	return b.String()
}

func writeShape(b *strings.Builder, d *json.Decoder, member string, exactCounts bool) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		b.WriteString(leaf(token, member, exactCounts))
		return nil
	}
	fmt.Fprint(b, open)
	last := ""
	for d.More() {
		name := member
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			name = key.(string)
			if anyKeys.MatchString(member) {
				name = "*"
			}
			b.WriteString(name + ":")
		}
		var item strings.Builder
		if err := writeShape(&item, d, name, exactCounts); err != nil {
			return err
		}
		if open == '{' || item.String() != last {
			b.WriteString(item.String() + ",")
		}
		last = item.String()
	}
	end, err := d.Token()
	fmt.Fprint(b, end)
	return err
}

// anyKeys are the members that are maps from tokens.
var anyKeys = regexp.MustCompile(`^(top_logprobs|prompt_logprobs)$`)

func leaf(token json.Token, member string, exactCounts bool) string {
	kind := fmt.Sprintf("<%T>", token)
	if n, ok := token.(json.Number); ok && strings.ContainsAny(n.String(), ".e") {
		kind = "<float>"
	}
	if token == nil {
		kind = "null"
	}
	switch {
	case slices.Contains(free, member) || anyKeys.MatchString(member) || strings.HasSuffix(member, "logprob") || member == "*" || member == "rank" || member == "decoded_token" || member == "text_offset" || member == "token_logprobs":
		return kind
	case slices.Contains(tokenCounts, member) && !exactCounts:
		return kind
	}
	return fmt.Sprint(token)
}

// compare holds an answer to a recording.
func compare(t *testing.T, got, want wire, exactCounts bool) {
	t.Helper()
	if got.status != want.status {
		t.Errorf("status %q, recorded %q (body %.300s)", got.status, want.status, got.body)
	}
	compareHeaders(t, got.header, want.header)
	switch {
	case want.header["transfer-encoding"] == "chunked":
		compareEvents(t, got.chunks, want.chunks, exactCounts)
	case strings.Contains(want.status, " 200 "):
		if len(want.body) == 0 {
			if len(got.body) != 0 {
				t.Errorf("body %q, recorded none", got.body)
			}
			return
		}
		if g, w := shape(t, string(got.body), exactCounts), shape(t, string(want.body), exactCounts); g != w {
			t.Errorf("body\n%s\nrecorded\n%s\nas sent: %s", g, w, got.body)
		}
	default:
		if !bytes.Equal(got.body, want.body) {
			t.Errorf("body\n%s\nrecorded\n%s", got.body, want.body)
		}
	}
}

func compareHeaders(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, value := range want {
		g, ok := got[name]
		varies := name == "date" || name == "content-length"
		if !ok || !varies && g != value {
			t.Errorf("header %s: %q, recorded %q", name, g, value)
		}
	}
	for name, value := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("header %s: %q was not recorded", name, value)
		}
	}
}

// compareEvents compares streams event by event. Runs of events of one shape count once: texts of tokens, and with them
// the events that carry none, differ.
func compareEvents(t *testing.T, got, want []string, exactCounts bool) {
	t.Helper()
	g, w := eventShapes(t, got, exactCounts), eventShapes(t, want, exactCounts)
	if !slices.Equal(g, w) {
		t.Errorf("events\n%s\nrecorded\n%s", strings.Join(g, "\n"), strings.Join(w, "\n"))
	}
}

func eventShapes(t *testing.T, chunks []string, exactCounts bool) []string {
	t.Helper()
	var shapes []string
	for _, c := range chunks {
		event, ok := strings.CutSuffix(c, "\n\n")
		if !ok || strings.Contains(event, "\n\n") {
			t.Errorf("chunk %q is not one event", c)
		}
		head, data, _ := strings.Cut(event, "data: ")
		switch {
		case data == "[DONE]", strings.HasPrefix(data, `{"error"`):
			shapes = append(shapes, event)
		default:
			data = numbersInOrder.ReplaceAllString(data, `"sequence_number":0`)
			shapes = append(shapes, head+shape(t, data, exactCounts))
		}
	}
	return slices.Compact(shapes)
}

// numbersInOrder: events that are dropped for having no text shift the numbers of /v1/responses.
var numbersInOrder = regexp.MustCompile(`"sequence_number":\d+`)

func TestGoldenAnswers(t *testing.T) {
	s := start(t)
	for _, name := range []string{
		"completions", "completions-again-cached", "completions-batch2", "completions-ids", "completions-logprobs-echo", "completions-maxtok0",
		"completions-maxtok1", "completions-n2", "completions-stream", "completions-stream-usage", "completions-stream-continuous-usage",
		"chat", "chat-stream", "chat-stream-usage", "chat-max-completion-tokens", "chat-request-id-header", "chat-two-request-id-headers",
		"responses", "responses-stream", "messages", "messages-stream", "messages-count", "tokenize", "tokenize-chat", "detokenize",
		"get-health", "get-ping", "get-version", "get-load", "get-models", "get-notfound", "orca-json", "orca-text", "unknown-field-ignored",
		"err-content-type-text", "err-empty-body", "err-empty-prompt", "err-kvparams-wrong-type", "err-malformed-json", "err-method",
		"err-min-gt-max", "err-negative-maxtokens", "err-no-messages", "err-not-object", "err-prompt-plus-max", "err-stream-options-without-stream",
		"err-temperature", "err-token-id-range", "err-too-long-prompt", "err-too-long-prompt-stream", "err-unknown-model", "err-unknown-model-stream",
		"err-wrong-type-maxtokens", "err-wrong-type-messages",
	} {
		t.Run(name, func(t *testing.T) {
			r := readRecording(t, name)
			compare(t, parseWire(t, send(t, s, r.request)), parseWire(t, r.response), strings.HasSuffix(name, "-ids"))
		})
	}
}

func TestGoldenLegs(t *testing.T) {
	p, d := start(t), start(t)
	for _, name := range []string{"completions-second", "completions-short-below-block", "completions-exact-blocks", "completions-stream", "chat", "chat-stream"} {
		t.Run(name, func(t *testing.T) {
			leg1, leg2 := readRecording(t, "pd-"+name+"-P"), readRecording(t, "pd-"+name+"-D")
			exact := strings.HasPrefix(name, "completions")
			answer := parseWire(t, send(t, p, leg1.request))
			compare(t, answer, parseWire(t, leg1.response), exact)
			compare(t, parseWire(t, send(t, d, withParams(t, leg2.request, answer.body))), parseWire(t, leg2.response), exact)
		})
	}
}

// withParams replaces the recorded hand-off of a decode leg by the one in a prefill answer.
func withParams(t *testing.T, request, answer []byte) []byte {
	t.Helper()
	var c completionOf
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
	body = encodeJSON(members)
	head = regexp.MustCompile(`(?i)content-length: \d+`).ReplaceAll(head, fmt.Appendf(nil, "Content-Length: %d", len(body)))
	return append(append(head, "\r\n\r\n"...), body...)
}

// TestGoldenPrefillOddities are prefill legs that strand KV: streamed, several choices, several prompts, other APIs.
func TestGoldenPrefillOddities(t *testing.T) {
	for _, c := range []struct {
		name   string
		pinned int // blocks that stay for a lease
	}{
		{"pd-P-stream-true", 4}, {"pd-P-chat-stream-true", 0}, {"pd-n2-P", 5}, {"pd-batch2-P", 8}, {"pd-responses-P", 0}, {"pd-messages-P", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t)
			r := readRecording(t, c.name)
			if c.name == "pd-n2-P" || c.name == "pd-messages-P" { // recorded with a warm prefix cache
				warm := withBody(t, r.request, func(b map[string]json.RawMessage) { delete(b, "kv_transfer_params") })
				send(t, p, warm)
			}
			compare(t, parseWire(t, send(t, p, r.request)), parseWire(t, r.response), strings.HasPrefix(c.name, "pd-n2"))
			st := p.Engine.State()
			if c.pinned > 0 && st.Blocks.Pinned != c.pinned || st.Blocks.Pinned == 0 {
				t.Errorf("%d blocks pinned, want %d", st.Blocks.Pinned, c.pinned)
			}
		})
	}
}

func TestGoldenFailures(t *testing.T) {
	t.Run("admission", func(t *testing.T) {
		s := start(t, func(c *Config) { c.Schedule.MaxQueuedRequests = 1; c.TimeScale = 1e6 })
		occupy(t, s)
		r := readRecording(t, "err-503-admission")
		compare(t, parseWire(t, send(t, s, r.request)), parseWire(t, r.response), true)
	})
	t.Run("wrong engine id", func(t *testing.T) {
		p, d := start(t), start(t)
		r := readRecording(t, "pdfail-wrong-engine-id-right-port")
		request := withBody(t, r.request, func(b map[string]json.RawMessage) {
			h := prefill(t, p, prompt(1, 100))
			h["remote_engine_id"] = "00000000-0000-0000-0000-000000000000"
			b["kv_transfer_params"] = encodeJSON(h)
		})
		compare(t, parseWire(t, send(t, d, request)), parseWire(t, r.response), true)
	})
	t.Run("stream that fails", func(t *testing.T) {
		d := start(t, func(c *Config) { c.KV.HandshakeTimeout = time.Millisecond })
		r := readRecording(t, "pdfail-wrong-engine-id-wrong-port-stream")
		compare(t, parseWire(t, send(t, d, r.request)), parseWire(t, r.response), true)
	})
	t.Run("death", func(t *testing.T) {
		d := start(t)
		r := readRecording(t, "pdfail-fewer-block-ids")
		compare(t, parseWire(t, send(t, d, r.request)), parseWire(t, r.response), true)
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
	s := start(t)
	complete(t, s, ask(prompt(1, 40), 2, nil))
	r := do(t, http.MethodGet, s.URL+"/metrics", "")
	if got := r.header.Get("Content-Type"); got != "text/plain; version=1.0.0; charset=utf-8" {
		t.Errorf("content type %q", got)
	}
	real, ours := metricSeries(string(data)), metricSeries(string(r.body))
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

// leftOut are the families that doc.go lists as missing.
var leftOut = regexp.MustCompile(`^vllm:(estimated_|mm_cache_|request_max_num_generation|request_params_|request_time_per_output|request_num_preemptions|cache_config_info|nixl_num_failed_.*_created)`)

// metricSeries are the names with their labels; buckets and the cache's configuration by name alone.
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
