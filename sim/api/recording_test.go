package api_test

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

	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
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

// wire is an answer as it was sent, in parts.
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
func send(t *testing.T, s *server.Server, request []byte) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(simtest.Timeout)); err != nil {
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

// free are the members whose values differ from run to run. Only their types have to agree.
var free = []string{"id", "item_id", "request_id", "created", "created_at", "text", "content", "delta", "system_fingerprint", "logprobs", "prompt_logprobs",
	"tokens", "token_strs", "count", "token_ids", "prompt_token_ids", "root", "prompt", "input_tokens", "original_input_tokens",
	"token", "logprob", "rank", "decoded_token", "text_offset", "token_logprobs",
	"remote_block_ids", "remote_engine_id", "remote_request_id", "remote_port"}

// tokenCounts are exact only if the recorded prompt has token ids, because text splits into other tokens here.
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
	if member == "bytes" { // of a token, which may have none
		b.WriteString("<bytes>")
		b = new(strings.Builder)
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
			if anyKeys.MatchString(member) && !alternativeKeys.MatchString(name) {
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

// anyKeys are the members that are maps from tokens in one API, and lists of objects with alternativeKeys in another.
var (
	anyKeys         = regexp.MustCompile(`^(top_logprobs|prompt_logprobs)$`)
	alternativeKeys = regexp.MustCompile(`^(token|logprob|bytes)$`)
)

func leaf(token json.Token, member string, exactCounts bool) string {
	kind := fmt.Sprintf("<%T>", token)
	if n, ok := token.(json.Number); ok && strings.ContainsAny(n.String(), ".e") {
		kind = "<float>"
	}
	if token == nil {
		kind = "null"
	}
	switch {
	case slices.Contains(free, member) || anyKeys.MatchString(member) || member == "*" || member == "stop_reason" && kind == "<json.Number>":
		return kind
	case slices.Contains(tokenCounts, member) && !exactCounts:
		return kind
	}
	return fmt.Sprint(token)
}

// compare compares an answer with a recording.
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

// compareEvents compares streams event by event. Consecutive events of one shape count once, because the texts of tokens differ,
// and with them the number of events without text.
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

// numbersInOrder matches the numbers of events of /v1/responses, which differ because events without text are not sent.
var numbersInOrder = regexp.MustCompile(`"sequence_number":\d+`)
