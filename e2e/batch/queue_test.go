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

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/nats-io/nats.go/jetstream"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tandem-serving/tandem/e2e/broker"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/s3"
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

// onPage returns the file of queues and the message that a section of docs/queues.md has, and the section.
func onPage(t *testing.T, heading, sends string) (section, file, message string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root, "docs", "queues.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ = strings.Cut(string(text), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, file, _ = strings.Cut(section, "```yaml\n")
	file, _, found := strings.Cut(file, "```")
	sent := regexp.MustCompile(sends + `'(.*)'`).FindStringSubmatch(section)
	if !found || sent == nil {
		t.Fatalf("docs/queues.md has no file for %s, or sends no message", heading)
	}
	return section, file, sent[1]
}

// TestQueuePageSQS does what docs/queues.md says about Amazon SQS.
func TestQueuePageSQS(t *testing.T) {
	server := broker.StartSQS(t)
	page, file, message := onPage(t, "Amazon SQS", "--message-body ")
	for _, c := range regexp.MustCompile(`create-queue --queue-name (\S+)`).FindAllStringSubmatch(page, -1) {
		server.CreateQueue(c[1], nil)
	}
	engine := harness.StartSim(t, "engine")
	what := program(t.TempDir(), "http://"+engine.Addr, "--queues-file="+queuesFile(t, strings.ReplaceAll(file, "sqs://eu-west-1", server.Address())))
	what.Env = s3.Credentials()
	harness.Start(t, what)
	id := server.Producer("requests")(message, nil)
	results := server.Reader("results.fifo")
	var all []types.Message
	queue{got: func(ctx context.Context) (n int, err error) {
		all, err = results.All(ctx)
		return len(all), err
	}}.await(t, 1)
	if request := all[0].MessageAttributes["request"].StringValue; !strings.Contains(*all[0].Body, `"id":"1","status_code":200`) || request == nil || *request != id {
		t.Errorf("the result is %+v, of the message %s", all[0], id)
	}
}

// TestQueuePagePubSub does what docs/queues.md says about Google Cloud Pub/Sub.
func TestQueuePagePubSub(t *testing.T) {
	server := broker.StartPubSub(t)
	page, file, message := onPage(t, "Google Cloud Pub/Sub", "topics publish requests --message=")
	for _, c := range regexp.MustCompile(`topics create (\S+)`).FindAllStringSubmatch(page, -1) {
		server.CreateTopic(c[1])
	}
	subscription := regexp.MustCompile(`subscriptions create (\S+) --topic=(\S+) --enable-exactly-once-delivery`).FindStringSubmatch(page)
	if subscription == nil {
		t.Fatal("docs/queues.md creates no subscription")
	}
	server.CreateSubscription(subscription[1], func(is *pubsubpb.Subscription) {
		is.Topic, is.EnableExactlyOnceDelivery = strings.Replace(is.Topic, subscription[1], subscription[2], 1), true
	})
	engine := harness.StartSim(t, "engine")
	start(t, t.TempDir(), "http://"+engine.Addr, "--queues-file="+queuesFile(t, strings.ReplaceAll(file, "pubsub://my-project", server.Address())))
	id := server.Publish(subscription[2], message, nil)
	queue{got: func(context.Context) (int, error) { return len(server.Published("results")), nil }}.await(t, 1)
	if got := server.Published("results")[0]; !strings.Contains(string(got.Data), `"id":"1","status_code":200`) || got.Attributes["request"] != id {
		t.Errorf("the result is %s of %v", got.Data, got.Attributes)
	}
}

// queue is a queue in a broker, whose messages have their results in one place.
type queue struct {
	file   string   // of --queues-file
	env    []string // of the batch server
	most   int      // messages at a time, of a slow broker; 0: as many as a test likes
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
	{"SQS", sqsQueue},
	{"PubSub", pubsubQueue},
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

// sqsQueue has a FIFO queue of results, which drops the second one of a message.
func sqsQueue(t *testing.T) queue {
	server := broker.StartSQS(t)
	server.CreateQueue("requests", nil)
	server.CreateQueue("answers.fifo", nil)
	results := server.Reader("answers.fifo")
	return queue{
		file: queuesFile(t, "queues:\n- broker: "+server.Address()+"\n  queue: requests\n  results: answers.fifo\n  endpoint: /v1/chat/completions\n"),
		env:  s3.Credentials(),
		most: 300, // moto carries out some hundred requests a second
		add: func(n int) {
			add := server.Producer("requests")
			for i := range n {
				add(strings.Replace(message(fmt.Sprint(i)).Member.(string), `"answers"`, `"answers.fifo"`, 1), nil)
			}
		},
		got: func(ctx context.Context) (int, error) {
			all, err := results.All(ctx)
			return len(all), err
		},
		all: func() (texts []string) {
			all, err := results.All(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range all {
				texts = append(texts, *m.Body)
			}
			return texts
		},
		outage: func() { server.Kill(); server.Restart() },
	}
}

// pubsubQueue leaves out the second result of a message, as applications must.
func pubsubQueue(t *testing.T) queue {
	server := broker.StartPubSub(t)
	for _, name := range []string{"requests", "answers"} {
		server.CreateTopic(name)
	}
	server.CreateSubscription("requests", nil)
	all := func() (texts []string) {
		seen := map[string]bool{}
		for _, m := range server.Published("answers") {
			if request := m.Attributes["request"]; !seen[request] {
				seen[request], texts = true, append(texts, string(m.Data))
			}
		}
		return texts
	}
	return queue{
		file: queuesFile(t, "queues:\n- broker: "+server.Address()+"\n  queue: requests\n  results: answers\n  endpoint: /v1/chat/completions\n"),
		add: func(n int) {
			for i := range n {
				server.Publish("requests", message(fmt.Sprint(i)).Member.(string), nil)
			}
		},
		got:    func(context.Context) (int, error) { return len(all()), nil },
		all:    all,
		outage: func() { server.Kill(); server.Restart() },
	}
}

// some is how many messages a test has.
func (q queue) some(likes int) int {
	if q.most != 0 {
		return min(likes, q.most)
	}
	return likes
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
	const servers, deaths = 2, 4
	messages := q.some(2000)
	url, requests := instant(t, func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(20 * time.Millisecond)):
		}
	})
	what := program(t.TempDir(), url, "--queues-file="+q.file)
	what.Env = q.env
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
			messages := q.some(5000)
			q.add(messages)
			begun := time.Now()
			what := program(t.TempDir(), url, "--queues-file="+q.file)
			what.Env = q.env
			server := harness.Start(t, what)
			before := harness.CPUOf(t, server.PID())
			q.await(t, messages)
			took, cpu := time.Since(begun), harness.CPUOf(t, server.PID())-before
			t.Logf("%d messages in %v: %.0f messages/s for each core of the batch server; peak memory %d MiB", messages, took.Round(time.Millisecond), float64(messages)/cpu.Seconds(), harness.PeakOf(t, server.PID()))
			q.mustHaveEach(t, messages)
		})
	}
}
