package queue

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/tandem-serving/tandem/e2e/broker"
)

// shortLease is how long claims last in a test that has some lapse, of brokers that wait for messages when they are asked for some.
const shortLease = 10 * time.Second

// startSQS starts a server with queues whose names end in fifo, which is .fifo or empty.
func startSQS(t testing.TB, fifo string) station {
	t.Helper()
	server := broker.StartSQS(t)
	for _, name := range []string{"requests", "answers", "results", "dead"} {
		server.CreateQueue(name+fifo, nil)
	}
	cfg := Config{Broker: server.Address(), Queue: "requests" + fifo, Results: "results" + fifo, OtherResults: []string{"answers" + fifo}, DeadLetters: "dead" + fifo}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	readers := map[string]*broker.SQSReader{}
	producer := server.Producer(cfg.Queue)
	return station{cfg: cfg, lapse: true, slow: true, renew: leaseTime / 3, shorten: func(s Source) { s.(*SQS).wait = shortLease },
		open: func() Source {
			s, err := OpenSQS(&cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		add: func(text string) { producer(strings.Replace(text, `"answers"`, `"answers`+fifo+`"`, 1), nil) },
		stored: func(where string) (texts []string) {
			if readers[where] == nil {
				readers[where] = server.Reader(where + fifo)
			}
			all, err := readers[where].All(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var seen []string
			for _, m := range all {
				request := m.MessageAttributes[requestAttribute].StringValue
				if request == nil {
					t.Fatalf("%s has a message that does not name its request: %+v", where, m)
				}
				// A queue that is not FIFO may have a result twice, which its readers tell by the request.
				if fifo != "" || !slices.Contains(seen, *request) {
					seen, texts = append(seen, *request), append(texts, *m.Body)
				}
			}
			return texts
		},
		waits:   func() int64 { return server.Unfinished(cfg.Queue) },
		outage:  func() { server.Kill(); server.Restart() },
		holding: func(s Source, most int) []Message { return claimAll(t, s, most) },
	}
}

// openSQS opens a queue of a server.
func openSQS(t *testing.T, server *broker.SQS, change func(*Config)) *SQS {
	t.Helper()
	cfg := Config{Broker: server.Address(), Queue: "requests", Results: "results"}
	if change != nil {
		change(&cfg)
	}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSQS(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// What an operator has not set up is said, and the queue works as soon as it is.
func TestSQSNotSetUp(t *testing.T) {
	server := broker.StartSQS(t)
	source := openSQS(t, server, func(c *Config) { c.DeadLetters = "dead.fifo" })
	claim := func(want string) {
		t.Helper()
		if _, err := source.Claim(t.Context(), 1, time.Time{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one about %q", err, want)
		}
	}
	claim("create-queue --queue-name requests")
	server.CreateQueue("requests", nil)
	claim("there is no queue results")
	server.CreateQueue("results", nil)
	claim("--attributes FifoQueue=true")
	server.CreateQueue("dead.fifo", nil)
	server.Producer("requests")(message("1", hour(), ""), nil)
	if got := claimAll(t, source, 1); len(got) != 1 || got[0].ID != "1" {
		t.Errorf("%+v", got)
	}
	if waiting, err := source.Waiting(t.Context()); err != nil || waiting != 0 {
		t.Errorf("%d messages wait, %v", waiting, err)
	}
	if s := server.Signer(); !strings.Contains(s, "Credential=tests/") || !strings.Contains(s, "/eu-west-1/sqs/") {
		t.Errorf("requests are signed with %q", s)
	}
}

// A redrive policy that would take messages away without a result is refused, and one that is later than ours is not.
func TestSQSRedrive(t *testing.T) {
	server := broker.StartSQS(t)
	for _, name := range []string{"results", "away"} {
		server.CreateQueue(name, nil)
	}
	for name, receives := range map[string]string{"soon": "20", "late": "21"} {
		server.CreateQueue(name, map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:123456789012:away","maxReceiveCount":` + receives + `}`})
		_, err := openSQS(t, server, func(c *Config) { c.Queue = name }).Claim(t.Context(), 1, time.Time{})
		if refused := err != nil && strings.Contains(err.Error(), "redrive policy"); refused != (name == "soon") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A result that a process has stored, and then was killed, is not stored again in a FIFO queue.
func TestSQSTwoResults(t *testing.T) {
	s := startSQS(t, ".fifo")
	s.add(message("1", hour(), ""))
	source := s.open().(*SQS)
	m := s.holding(source, 1)[0]
	queues, err := source.ready(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := (sqsMailbox{source, queues}).send(t.Context(), "answers.fifo", m.Key, errorResult("1", "", "").encode()); err != nil {
			t.Fatal(err)
		}
	}
	if err := source.Finish(t.Context(), m, errorResult("1", "", "").encode(), ""); err != nil {
		t.Fatal(err)
	}
	s.results(t, "answers", 1)
}

// The limit of a queue for results is what its operator has set, and characters that SQS refuses arrive.
func TestSQSResults(t *testing.T) {
	server := broker.StartSQS(t)
	server.CreateQueue("requests", nil)
	server.CreateQueue("results", map[string]string{"MaximumMessageSize": "2048"})
	add := server.Producer("requests")
	for _, id := range []string{"large", "odd"} {
		add(strings.Replace(message(id, hour(), ""), `"result_queue_name":"answers",`, "", 1), nil)
	}
	source := openSQS(t, server, nil)
	for _, m := range claimAll(t, source, 2) {
		payload := "\uFFFE\uFFFF\x00\u2028"
		if m.ID == "large" {
			payload = strings.Repeat("x", 2048)
		}
		if err := source.Finish(t.Context(), m, result{ID: m.ID, Status: 200, Payload: payload}.encode(), ""); err != nil {
			t.Fatal(err)
		}
	}
	all, err := server.Reader("results").All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range all {
		switch body := *m.Body; {
		case strings.Contains(body, `"id":"large"`):
			got["large"] = body
		default:
			got["odd"] = body
		}
	}
	if !strings.Contains(got["large"], "MaximumMessageSize") || !strings.Contains(got["odd"], `"payload":"\ufffe\uffff\u0000\u2028"`) {
		t.Errorf("the results are %q", got)
	}
}

// A message carries the trace of an attribute, but that of its own text comes first.
func TestSQSTrace(t *testing.T) {
	server := broker.StartSQS(t)
	server.CreateQueue("requests", nil)
	server.CreateQueue("results", nil)
	add := server.Producer("requests")
	attribute := map[string]types.MessageAttributeValue{"traceparent": {DataType: new("String"), StringValue: new("attribute")}}
	add(message("attribute", hour(), ""), attribute)
	add(message("text", hour(), `,"metadata":{"traceparent":"text"}`), attribute)
	for _, m := range claimAll(t, openSQS(t, server, nil), 2) {
		if m.Metadata["traceparent"] != m.ID {
			t.Errorf("the trace of %s is %q", m.ID, m.Metadata["traceparent"])
		}
	}
}

// A queue that is made anew, as with another address, is found again after an error.
func TestSQSMadeAnew(t *testing.T) {
	server := broker.StartSQS(t)
	server.CreateQueue("requests", nil)
	server.CreateQueue("results", nil)
	source := openSQS(t, server, nil)
	if _, err := source.Claim(t.Context(), 1, time.Time{}); err != nil {
		t.Fatal(err)
	}
	client := server.Client()
	at, err := client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: new("requests")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.DeleteQueue(t.Context(), &sqs.DeleteQueueInput{QueueUrl: at.QueueUrl}); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Claim(t.Context(), 1, time.Time{}); err == nil {
		t.Error("a queue that was deleted gives no error")
	}
	if _, err := source.Claim(t.Context(), 1, time.Time{}); err == nil || !strings.Contains(err.Error(), "there is no queue requests") {
		t.Errorf("the error is %v", err)
	}
	server.CreateQueue("requests", nil)
	if _, err := source.Claim(t.Context(), 1, time.Time{}); err != nil {
		t.Error(err)
	}
}

// No region is said at the start, and what SQS does not have is refused.
func TestSQSConfig(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "missing"))
	if _, err := OpenSQS(&Config{Broker: "sqs://"}); err == nil || !strings.Contains(err.Error(), "no region") {
		t.Errorf("without a region: %v", err)
	}
	t.Setenv("AWS_REGION", "eu-west-1")
	if s, err := OpenSQS(&Config{Broker: "sqs://"}); err != nil {
		t.Errorf("with the environment's region: %v", err)
	} else {
		_ = s.Close()
	}
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) {
			c.Broker = "sqs://eu-west-1?endpoint=https://sqs.example.com&account=123456789012&profile=p"
		}, ""},
		{func(c *Config) { c.Broker = "sqs://key:secret@eu-west-1" }, "has no password"},
		{func(c *Config) { c.Broker = "sqs://eu-west-1?region=eu-west-2" }, "parameter region"},
		{func(c *Config) { c.Broker = "sqs://eu-west-1?endpoint=localhost:5000" }, "endpoint is"},
		{func(c *Config) { c.Queue = "a.b" }, "not the name of a queue"},
		{func(c *Config) { c.Results = strings.Repeat("a", 76) + ".fifo" }, "not the name of a queue"},
		{func(c *Config) { c.Consumer = "c" }, "not for SQS"},
		{func(c *Config) { c.Credentials = "c" }, "not for SQS"},
	} {
		cfg := Config{Broker: "sqs://eu-west-1", Queue: "requests.fifo"}
		c.change(&cfg)
		err := cfg.complete()
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%+v: %v, want %q", cfg, err, c.want)
		}
	}
}
