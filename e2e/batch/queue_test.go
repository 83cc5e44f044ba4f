package batch

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/redis"
)

// queuesFile writes the file of --queues-file.
func queuesFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "queues.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// message is a request as llm-d's producer writes it, with the deadline as its score.
func message(id string) goredis.Z {
	deadline := time.Now().Add(time.Hour).Unix()
	return goredis.Z{Score: float64(deadline), Member: fmt.Sprintf(`{"internal":{"request_queue_name":"request-sortedset","result_queue_name":"answers","request_token":"t"},"request_kind":"plain",`+
		`"data":{"id":%q,"created":1764044000,"deadline":%d,"payload":{"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"Hello"}]}}}`, id, deadline)}
}

// TestQueuePage does what docs/queues.md says, with a simulated engine behind the server.
func TestQueuePage(t *testing.T) {
	server := redis.Start(t)
	text, err := os.ReadFile(filepath.Join(harness.Root, "docs", "queues.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	_, file, _ := strings.Cut(page, "```yaml\n")
	file, _, found := strings.Cut(file, "```")
	added := regexp.MustCompile(`redis-cli ZADD (\S+) (\d+) '(.*)'`).FindStringSubmatch(page)
	if !found || added == nil || !strings.Contains(file, "queue: "+added[1]+"\n") {
		t.Fatal("docs/queues.md has no file, or adds no message to its queue")
	}
	engine := harness.StartSim(t, "engine")
	batches := start(t, t.TempDir(), "http://"+engine.Addr, "--queues-file="+queuesFile(t, strings.ReplaceAll(file, "redis://127.0.0.1:6379/0", server.Address())))
	client := server.Client()
	if err := client.Do(t.Context(), "ZADD", added[1], added[2], added[3]).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	result, err := client.BRPop(ctx, 0, "result-list").Result()
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		ID      string
		Status  int `json:"status_code"`
		Payload string
	}
	if err := json.Unmarshal([]byte(result[1]), &got); err != nil || got.ID != "1" || got.Status != 200 || !strings.Contains(got.Payload, `"choices"`) {
		t.Errorf("the result is %s, %v", result[1], err)
	}
	if n := harness.SumOf(t, batches.Addr("metrics"), "tandem_batch_queue_messages_total"); n != 1 {
		t.Errorf("%v messages are counted", n)
	}
}

// TestQueueKilled kills consumers of a queue (kill -9), and Redis once, at random moments. Every message has one result.
func TestQueueKilled(t *testing.T) {
	const messages, servers, deaths = 2000, 2, 4
	server := redis.Start(t)
	url, requests := instant(t, func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(20 * time.Millisecond)):
		}
	})
	file := queuesFile(t, "queues:\n- broker: "+server.Address()+"\n  queue: request-sortedset\n  endpoint: /v1/chat/completions\n")
	what := program(t.TempDir(), url, "--queues-file="+file)
	client := server.Client()
	for i := range messages {
		if err := client.ZAdd(t.Context(), "request-sortedset", message(fmt.Sprint(i))).Err(); err != nil {
			t.Fatal(err)
		}
	}
	running := make([]harness.Program, servers)
	for i := range running {
		what.Args[0] = "--data=" + filepath.Join(t.TempDir(), "data")
		running[i] = launchProgram(t, what)
	}
	results := func(ctx context.Context) int64 {
		n, err := client.LLen(ctx, "answers").Result()
		if err != nil {
			return -1 // Redis starts
		}
		return n
	}
	await := func(n int64) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		poll := time.NewTicker(20 * time.Millisecond)
		defer poll.Stop()
		for results(ctx) < n {
			select {
			case <-poll.C:
			case <-ctx.Done():
				t.Fatalf("%d results, want %d", results(t.Context()), n)
			}
		}
	}
	for death := range deaths {
		await(int64((death + 1) * messages / (deaths + 2)))
		if death == deaths/2 {
			server.Kill()
			server.Restart()
			continue
		}
		if err := running[death%servers].Kill(); err != nil {
			t.Fatal(err)
		}
		<-running[death%servers].Done()
		what.Args[0] = "--data=" + filepath.Join(t.TempDir(), "data")
		running[death%servers] = launchProgram(t, what)
	}
	await(messages)
	all, err := client.LRange(t.Context(), "answers", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, text := range all {
		var got struct {
			ID     string
			Status int `json:"status_code"`
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Status != 200 {
			t.Fatalf("the result is %s, %v", text, err)
		}
		times[got.ID]++
	}
	for i := range messages {
		if n := times[fmt.Sprint(i)]; n != 1 {
			t.Errorf("message %d has %d results", i, n)
		}
	}
	t.Logf("%d messages, %d consumers, %d deaths, %d requests", messages, servers, deaths, requests.Load())
}
