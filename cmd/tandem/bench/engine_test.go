package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// serving starts an engine for a test.
func serving(t *testing.T, answer answer) *engine {
	t.Helper()
	e, stop, err := startEngine(t.Context(), largeBuffer, answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return e
}

// exchanged sends a request and returns the headers and body of the answer.
func exchanged(t *testing.T, e *engine, request []byte) (header http.Header, body string) {
	t.Helper()
	c, err := dial(t.Context(), e.addr(), request)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if _, err := c.Write(request); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", answer.Status, err)
	}
	return answer.Header, string(b)
}

func TestEngineAnswers(t *testing.T) {
	e := serving(t, whole(decoded))
	request := shape{size: kB}.request()
	if header, body := exchanged(t, e, request); body != decoded || !json.Valid([]byte(body)) ||
		header.Get("Content-Type") != "application/json" {
		t.Errorf("%v %s", header, body)
	}
	e.answers(streamed(3, time.Microsecond))
	header, body := exchanged(t, e, shape{size: 32 * kB, chunked: true}.request())
	if strings.Count(body, "data: {") != 3 || !strings.HasSuffix(body, "data: [DONE]\n\n") ||
		header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v %s", header, body)
	}
	if n := e.accepted.Load(); n != 2 {
		t.Errorf("%d requests were accepted", n)
	}
	if _, body := exchanged(t, e, []byte("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")); !strings.HasPrefix(body, `{"object":"list","data":[],"disaggregation_mode":"prefill",`) {
		t.Errorf("models: %s", body)
	}
}

func TestHandOffGrowsWithThePrompt(t *testing.T) {
	for size, blocks := range map[int]int{1: 0, kB: 16, 32 * kB: 500, 4 * mB: 62500} {
		var answer struct {
			Usage  struct{ PromptTokens int } `json:"usage"`
			Params struct {
				Blocks [][]int `json:"remote_block_ids"`
				Tokens int     `json:"remote_num_tokens"`
			} `json:"kv_transfer_params"`
		}
		if err := json.Unmarshal([]byte(prefilled(size)), &answer); err != nil {
			t.Fatal(err)
		}
		if got := len(answer.Params.Blocks[0]); got != blocks || answer.Params.Tokens != size/bytesPerToken {
			t.Errorf("%d bytes: %d blocks for %d tokens, want %d", size, got, answer.Params.Tokens, blocks)
		}
	}
}

// What engines of each protocol answer is JSON, and names the transfer that the leg has named.
func TestProtocolsAnswer(t *testing.T) {
	for _, p := range protocols() {
		if answer := p.prefilled(kB, "7"); !json.Valid([]byte(answer)) || !json.Valid([]byte(p.decoded)) {
			t.Errorf("%s: %s\n%s", p.name, answer, p.decoded)
		}
		if p.idMark == "" {
			continue
		}
		e := serving(t, whole(p.prefilled(kB, noTransfer)))
		p.prefilling(e, kB)
		for leg, id := range map[string]string{"{" + p.idMark + `123"}`: "123", "{}": noTransfer} {
			request := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(leg), leg)
			if _, got := exchanged(t, e, request); got != p.prefilled(kB, id) {
				t.Errorf("%s: %s is answered %s", p.name, leg, got)
			}
		}
	}
}

func TestEngineHolds(t *testing.T) {
	e := serving(t, whole(decoded))
	s := &legs{prefill: e}
	lanes, err := lanesTo(t.Context(), e.addr(), 20, shape{size: kB}.request())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(lanes)
	if err := s.holdAll(t.Context(), lanes); err != nil || e.accepted.Load() != 20 {
		t.Errorf("%d accepted: %v", e.accepted.Load(), err)
	}
	if err := lanes[0].exchange(t.Context()); err != nil {
		t.Errorf("the gate is not open again: %v", err)
	}
	// A request that is answered without reaching the prefill engine ends the wait with an error.
	other := serving(t, func(w *bufio.Writer) error {
		_, _ = w.WriteString("HTTP/1.1 503 \r\nContent-Length: 4\r\n\r\nfull")
		return w.Flush()
	})
	lost, err := lanesTo(t.Context(), other.addr(), 2, shape{size: kB}.request())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(lost)
	if err := s.holdAll(t.Context(), lost); err == nil || !strings.Contains(err.Error(),
		"ended before its prefill\n503 : full") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.holdAll(ctx, lanes); err == nil {
		t.Error("no error on an interrupt")
	}
}

// The picker must find the metrics that it reads in the page, among many others.
func TestMetricsPage(t *testing.T) {
	text := string(page(pageSize))
	if len(text) < pageSize || len(text) > pageSize+200 {
		t.Errorf("%d bytes", len(text))
	}
	mustContain(t, text, "\nvllm:num_requests_running{", "\nvllm:kv_cache_usage_perc{", `block_size="16"`)
}
