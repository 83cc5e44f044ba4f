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

	"github.com/nats-io/nats.go/jetstream"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tandem-serving/tandem/e2e/broker"
	"github.com/tandem-serving/tandem/e2e/harness"
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
	server := broker.StartRedis(t)
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
	harness.AwaitSum(t, batches.Addr("metrics"), "tandem_batch_queue_messages_total", 1) // which is counted when the result is stored
}

// TestQueuePageNATS does what docs/queues.md says about NATS.
func TestQueuePageNATS(t *testing.T) {
	server := broker.StartNATS(t)
	text, err := os.ReadFile(filepath.Join(harness.Root, "docs", "queues.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(text), "\n## NATS JetStream\n")
	page, _, _ = strings.Cut(page, "\n## ")
	_, file, _ := strings.Cut(page, "```yaml\n")
	file, _, found := strings.Cut(file, "```")
	sent := regexp.MustCompile(`nats request (\S+) '(.*)'`).FindStringSubmatch(page)
	waited := regexp.MustCompile(`nats subscribe --stream=(\S+) '(\S+)'`).FindStringSubmatch(page)
	if !found || sent == nil || waited == nil {
		t.Fatal("docs/queues.md has no file for NATS, sends no message or waits for no result")
	}
	js := server.Client()
	for _, c := range regexp.MustCompile(`nats stream add (\S+) --subjects='?([^' ]+)'?( --retention=work)?`).FindAllStringSubmatch(page, -1) {
		stream := jetstream.StreamConfig{Name: c[1], Subjects: strings.Split(c[2], ",")}
		if c[3] != "" {
			stream.Retention = jetstream.WorkQueuePolicy
		}
		if _, err := js.CreateStream(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
	}
	engine := harness.StartSim(t, "engine")
	start(t, t.TempDir(), "http://"+engine.Addr, "--queues-file="+queuesFile(t, strings.ReplaceAll(file, "nats://127.0.0.1:4222", server.Address())))
	if _, err := js.Publish(t.Context(), sent[1], []byte(sent[2])); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	results, err := js.OrderedConsumer(ctx, waited[1], jetstream.OrderedConsumerConfig{FilterSubjects: []string{waited[2]}})
	if err != nil {
		t.Fatal(err)
	}
	msg, err := results.Next(jetstream.FetchMaxWait(harness.Patience))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(msg.Data()); !strings.Contains(got, `"id":"1","status_code":200`) || !strings.Contains(got, `\"choices\"`) {
		t.Errorf("the result is %s", got)
	}
}

// TestQueuePageKafka does what docs/queues.md says about Kafka.
func TestQueuePageKafka(t *testing.T) {
	server := broker.StartKafka(t)
	text, err := os.ReadFile(filepath.Join(harness.Root, "docs", "queues.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(text), "\n## Kafka\n")
	page, _, _ = strings.Cut(page, "\n## ")
	_, file, _ := strings.Cut(page, "```yaml\n")
	file, _, found := strings.Cut(file, "```")
	sent := regexp.MustCompile(`echo '(.*)' \| kafka-console-producer.sh .* --topic (\S+)`).FindStringSubmatch(page)
	read := regexp.MustCompile(`kafka-console-consumer.sh .* --topic (\S+) .*--isolation-level read_committed`).FindStringSubmatch(page)
	if !found || sent == nil || read == nil {
		t.Fatal("docs/queues.md has no file for Kafka, sends no message or reads no result")
	}
	for _, c := range regexp.MustCompile(`--create --topic (\S+)`).FindAllStringSubmatch(page, -1) {
		server.CreateTopics(1, c[1])
	}
	engine := harness.StartSim(t, "engine")
	start(t, t.TempDir(), "http://"+engine.Addr, "--queues-file="+queuesFile(t, strings.ReplaceAll(file, "kafka://127.0.0.1:9092", server.Address())))
	if err := server.Client().ProduceSync(t.Context(), &kgo.Record{Topic: sent[2], Value: []byte(sent[1])}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	reader := server.Client(kgo.ConsumeTopics(read[1]), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	records := reader.PollRecords(ctx, 1).Records()
	if len(records) != 1 || string(records[0].Key) != "1" || !strings.Contains(string(records[0].Value), `"id":"1","status_code":200`) {
		t.Errorf("the results are %v", records)
	}
}

// queue is a queue in a real broker, whose messages have their results in one place.
type queue struct {
	file   string // of --queues-file
	add    func(n int)
	got    func(ctx context.Context) (int, error) // the number of results
	all    func() []string                        // the results
	outage func()                                 // kills the broker, and starts it again
}

var queueBrokers = []struct {
	name  string
	start func(t *testing.T) queue
}{
	{"Redis", redisQueue},
	{"NATS", natsQueue},
	{"Kafka", kafkaQueue},
}

func redisQueue(t *testing.T) queue {
	server := broker.StartRedis(t)
	client := server.Client()
	return queue{
		file: queuesFile(t, "queues:\n- broker: "+server.Address()+"\n  queue: request-sortedset\n  endpoint: /v1/chat/completions\n"),
		add: func(n int) {
			for i := range n {
				if err := client.ZAdd(t.Context(), "request-sortedset", message(fmt.Sprint(i))).Err(); err != nil {
					t.Fatal(err)
				}
			}
		},
		got: func(ctx context.Context) (int, error) {
			n, err := client.LLen(ctx, "answers").Result()
			return int(n), err
		},
		all: func() []string {
			all, err := client.LRange(t.Context(), "answers", 0, -1).Result()
			if err != nil {
				t.Fatal(err)
			}
			return all
		},
		outage: func() { server.Kill(); server.Restart() },
	}
}

func natsQueue(t *testing.T) queue {
	server := broker.StartNATS(t)
	js := server.Client()
	var results jetstream.Stream
	for _, c := range []jetstream.StreamConfig{{Name: "REQUESTS", Subjects: []string{"requests"}}, {Name: "RESULTS", Subjects: []string{"answers.>"}}} {
		var err error
		if results, err = js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	return queue{
		file: queuesFile(t, "queues:\n- broker: "+server.Address()+"\n  queue: requests\n  results: answers\n  endpoint: /v1/chat/completions\n"),
		add: func(n int) {
			for i := range n {
				if _, err := js.PublishAsync("requests", []byte(message(fmt.Sprint(i)).Member.(string)), jetstream.WithStallWait(harness.Patience)); err != nil {
					t.Fatal(err)
				}
			}
			<-js.PublishAsyncComplete()
		},
		got: func(ctx context.Context) (int, error) {
			info, err := results.Info(ctx)
			if err != nil {
				return 0, err
			}
			return int(info.State.Msgs), nil
		},
		all: func() (all []string) {
			info, err := results.Info(t.Context())
			for i := info.State.FirstSeq; err == nil && i <= info.State.LastSeq; i++ {
				var msg *jetstream.RawStreamMsg
				if msg, err = results.GetMsg(t.Context(), i); err == nil {
					all = append(all, string(msg.Data))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			return all
		},
		outage: func() { server.Kill(); server.Restart() },
	}
}

func kafkaQueue(t *testing.T) queue {
	server := broker.StartKafka(t)
	server.CreateTopics(4, "requests")
	server.CreateTopics(1, "answers", "dead")
	reader := server.Client(kgo.ConsumeTopics("answers"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	var all []string
	read := func() {
		var noWait context.Context // it returns what has come
		reader.PollRecords(noWait, 0).EachRecord(func(r *kgo.Record) { all = append(all, string(r.Value)) })
	}
	return queue{
		file: queuesFile(t, "queues:\n- broker: "+server.Address()+"\n  queue: requests\n  results: answers\n  deadLetters: dead\n  endpoint: /v1/chat/completions\n"),
		add: func(n int) {
			producer := server.Client()
			for i := range n {
				producer.Produce(t.Context(), &kgo.Record{Topic: "requests", Key: []byte(fmt.Sprint(i)), Value: []byte(message(fmt.Sprint(i)).Member.(string))}, func(_ *kgo.Record, err error) {
					if err != nil {
						t.Error(err)
					}
				})
			}
			if err := producer.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		got:    func(context.Context) (int, error) { read(); return len(all), nil },
		all:    func() []string { read(); return all },
		outage: func() { server.Kill(); server.Restart() },
	}
}

// await waits for n results.
func (q queue) await(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		got, err := q.got(ctx)
		if err == nil && got >= n {
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("%d results, want %d, %v", got, n, err)
		}
	}
}

// mustHaveEach fails unless each of n messages has one result.
func (q queue) mustHaveEach(t *testing.T, n int) {
	t.Helper()
	times := map[string]int{}
	for _, text := range q.all() {
		var got struct {
			ID     string
			Status int `json:"status_code"`
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Status != 200 {
			t.Fatalf("the result is %s, %v", text, err)
		}
		times[got.ID]++
	}
	for i := range n {
		if n := times[fmt.Sprint(i)]; n != 1 {
			t.Errorf("message %d has %d results", i, n)
		}
	}
}

// TestQueueKilled kills consumers of a queue (kill -9), and its broker once, at random moments. Every message has one result.
func TestQueueKilled(t *testing.T) {
	for _, broker := range queueBrokers {
		t.Run(broker.name, func(t *testing.T) { t.Parallel(); killConsumers(t, broker.start(t)) })
	}
}

func killConsumers(t *testing.T, q queue) {
	const messages, servers, deaths = 2000, 2, 4
	url, requests := instant(t, func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(20 * time.Millisecond)):
		}
	})
	what := program(t.TempDir(), url, "--queues-file="+q.file)
	q.add(messages)
	running := make([]harness.Program, servers)
	for i := range running {
		what.Args[0] = "--data=" + filepath.Join(t.TempDir(), "data")
		running[i] = launchProgram(t, what)
	}
	for death := range deaths {
		q.await(t, (death+1)*messages/(deaths+2))
		if death == deaths/2 {
			q.outage()
			continue
		}
		if err := running[death%servers].Kill(); err != nil {
			t.Fatal(err)
		}
		<-running[death%servers].Done()
		what.Args[0] = "--data=" + filepath.Join(t.TempDir(), "data")
		running[death%servers] = launchProgram(t, what)
	}
	q.await(t, messages)
	q.mustHaveEach(t, messages)
	t.Logf("%d messages, %d consumers, %d deaths, %d requests", messages, servers, deaths, requests.Load())
}

// TestQueueCost shows what the messages of a queue cost the batch server, with an upstream that answers at once.
func TestQueueCost(t *testing.T) {
	for _, broker := range queueBrokers {
		t.Run(broker.name, func(t *testing.T) {
			q := broker.start(t)
			url, _ := instant(t, func(context.Context) {})
			const messages = 5000
			q.add(messages)
			begun := time.Now()
			server := start(t, t.TempDir(), url, "--queues-file="+q.file)
			before := harness.CPUOf(t, server.PID())
			q.await(t, messages)
			took, cpu := time.Since(begun), harness.CPUOf(t, server.PID())-before
			t.Logf("%d messages in %v: %.0f messages/s for each core of the batch server; peak memory %d MiB", messages, took.Round(time.Millisecond), messages/cpu.Seconds(), harness.PeakOf(t, server.PID()))
			q.mustHaveEach(t, messages)
		})
	}
}
