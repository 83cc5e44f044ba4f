package charts_test

import (
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-serving/tandem/e2e/broker"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// batches is a batch server with a queue, whose upstream answers at once, and tells of headroom as the picker does.
type batches struct {
	api, metrics string // host:port
	queue        *redis.Client
	sent         int // messages
}

const batchQueues = `queues:
- broker: %s
  queue: requests
  budget: {messages: 1000000, per: 24h}
`

func startBatches(t *testing.T) *batches {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set(pd.HeaderHeadroom, "0.50")
		fmt.Fprint(w, `{"choices":[]}`)
	}))
	t.Cleanup(upstream.Close)
	redis := broker.StartRedis(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "queues.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, batchQueues, redis.Address()), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := stack.Start(t.Context(), stack.Program{Name: "batch", Path: program(t, "batch"), Args: []string{"--data=" + filepath.Join(dir, "data"),
		"--upstream=" + upstream.URL, "--queues-file=" + file, "--port=0", "--metrics-port=0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &batches{api: p.Addresses()["http"], metrics: p.Addresses()["metrics"], queue: redis.Client()}
}

// send has a batch of one line run to its end, and a message answered.
func (b *batches) send(t *testing.T, o *observed) {
	t.Helper()
	var text strings.Builder
	form := multipart.NewWriter(&text)
	err := form.WriteField("purpose", "batch")
	part, partErr := form.CreateFormFile("file", "lines.jsonl")
	if err != nil || partErr != nil {
		t.Fatal(err, partErr)
	}
	fmt.Fprintln(part, `{"custom_id":"1","method":"POST","url":"/v1/completions","body":{"model":"tiny","prompt":"Hello"}}`)
	if err := form.Close(); err != nil {
		t.Fatal(err)
	}
	file := b.call(t, o, http.MethodPost, "/v1/files", form.FormDataContentType(), text.String())
	made := b.call(t, o, http.MethodPost, "/v1/batches", "application/json", fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"1h"}`, file.ID))
	b.sent++
	deadline := time.Now().Add(time.Hour).Unix()
	message := fmt.Sprintf(`{"request_kind":"plain","data":{"id":"%d","deadline":%d,"payload":{"model":"tiny","prompt":"Hello"}}}`, b.sent, deadline)
	if err := b.queue.ZAdd(t.Context(), "requests", redis.Z{Score: float64(deadline), Member: message}).Err(); err != nil {
		t.Fatal(err)
	}
	o.eventually(t, "the end of the batch", func() (string, bool) {
		status := b.call(t, o, http.MethodGet, "/v1/batches/"+made.ID, "", "").Status
		return status, status == "completed"
	})
	o.eventually(t, "the result of the message", func() (string, bool) {
		n, err := b.queue.LLen(t.Context(), "result-list").Result()
		return fmt.Sprint(n, err), n == int64(b.sent)
	})
}

// object is what the API answers.
type object struct{ ID, Status string }

func (b *batches) call(t *testing.T, o *observed, method, path, media, text string) (got object) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+b.api+path, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", media)
	resp, err := o.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s, %v", method, path, resp.Status, err)
	}
	return got
}
