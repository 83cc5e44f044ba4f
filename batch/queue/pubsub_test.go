package queue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"github.com/tandem-serving/tandem/e2e/broker"
)

// startPubSub starts a server with a topic of messages, whose subscription counts deliveries, and topics of results and dead letters.
func startPubSub(t testing.TB) station {
	t.Helper()
	server := broker.StartPubSub(t)
	for _, name := range []string{"requests", "answers", "results", "dead"} {
		server.CreateTopic(name)
	}
	server.CreateSubscription("requests", broker.CountDeliveries(100))
	cfg := Config{Broker: server.Address(), Queue: "requests", Results: "results", OtherResults: []string{"answers"}, DeadLetters: "dead"}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	return station{cfg: cfg, lapse: true, renew: leaseTime / 3, shorten: func(s Source) { s.(*PubSub).wait = shortLease },
		open: func() Source {
			s, err := OpenPubSub(&cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		add: func(text string) { server.Publish("requests", text, nil) },
		stored: func(where string) (texts []string) {
			var seen []string
			for _, m := range server.Published(where) {
				request := m.Attributes[requestAttribute]
				if request == "" {
					t.Fatalf("%s has a message that does not name its request: %+v", where, m)
				}
				if !slices.Contains(seen, request) { // results may come twice, and their readers tell it by the request
					seen, texts = append(seen, request), append(texts, string(m.Data))
				}
			}
			return texts
		},
		waits: func() (n int64) {
			for _, m := range server.Published("requests") {
				if m.Acks == 0 {
					n++
				}
			}
			return n
		},
		outage:  func() { server.Kill(); server.Restart() },
		holding: func(s Source, most int) []Message { return claimAll(t, s, most) },
	}
}

// openPubSub opens a queue of a server.
func openPubSub(t *testing.T, server *broker.PubSub) *PubSub {
	t.Helper()
	cfg := Config{Broker: server.Address(), Queue: "requests", Results: "results"}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	s, err := OpenPubSub(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// What an operator has not set up is said, and the queue works as soon as it is.
func TestPubSubNotSetUp(t *testing.T) {
	server := broker.StartPubSub(t)
	source := openPubSub(t, server)
	claim := func(want string) {
		t.Helper()
		if _, err := source.Claim(t.Context(), 1, time.Time{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one about %q", err, want)
		}
	}
	again := func(change func(*pubsubpb.Subscription)) {
		t.Helper()
		server.DeleteSubscription("requests")
		server.CreateSubscription("requests", change)
	}
	claim("gcloud pubsub subscriptions create requests --topic=TOPIC")
	server.CreateTopic("requests")
	server.CreateTopic("dead")
	server.CreateSubscription("requests", broker.CountDeliveries(20))
	claim("dead letter policy")
	again(func(is *pubsubpb.Subscription) {
		is.PushConfig = &pubsubpb.PushConfig{PushEndpoint: "https://example.com"}
	})
	claim("delivery type pull")
	again(broker.CountDeliveries(21))
	claim("gcloud pubsub topics create results")
	server.CreateTopic("results")
	server.Publish("requests", message("attribute", hour(), ""), map[string]string{"traceparent": "attribute"})
	server.Publish("requests", message("text", hour(), `,"metadata":{"traceparent":"text"}`), map[string]string{"traceparent": "attribute"})
	for _, m := range claimAll(t, source, 2) {
		if m.Metadata["traceparent"] != m.ID {
			t.Errorf("the trace of %s is %q", m.ID, m.Metadata["traceparent"])
		}
	}
	server.DeleteSubscription("requests")
	if _, err := source.Claim(t.Context(), 1, time.Time{}); err == nil {
		t.Error("a subscription that was deleted gives no error")
	}
	claim("there is no subscription requests")
}

// A server that is away is an error.
func TestPubSubAway(t *testing.T) {
	server := broker.StartPubSub(t)
	server.CreateTopic("requests")
	server.CreateTopic("results")
	server.CreateSubscription("requests", nil)
	source := openPubSub(t, server)
	if got, err := source.Claim(t.Context(), 1, time.Time{}); err != nil || len(got) != 0 {
		t.Errorf("an empty queue: %+v, %v", got, err)
	}
	server.Kill()
	if _, err := source.Claim(t.Context(), 1, time.Time{}); err == nil {
		t.Error("no error while the server is away")
	}
	server.Restart()
	until(t, "the server", func() bool { _, err := source.Claim(context.Background(), 1, time.Time{}); return err == nil })
}

// Of claims that are renewed together, those that the server refuses are lost, as subscriptions with exactly-once delivery do, and the others are not.
func TestPubSubRefused(t *testing.T) {
	server := broker.StartPubSub(t)
	server.CreateTopic("requests")
	server.CreateTopic("results")
	server.CreateSubscription("requests", nil)
	for _, id := range []string{"kept", "refused"} {
		server.Publish("requests", strings.Replace(message(id, hour(), ""), `"result_queue_name":"answers",`, "", 1), nil)
	}
	source := openPubSub(t, server)
	claimed := claimAll(t, source, 2)
	slices.SortFunc(claimed, func(a, b Message) int { return strings.Compare(a.ID, b.ID) })
	refused, _ := source.get(claimed[1].Key)
	server.Refuse(refused.handle)
	lost, _, err := source.Renew(t.Context(), claimed)
	if err != nil || !slices.Equal(lost, []string{claimed[1].Key}) {
		t.Errorf("%q are lost, %v; want %s", lost, err, claimed[1].Key)
	}
	if err := source.Finish(t.Context(), claimed[1], errorResult("refused", "", "").encode(), ""); !errors.Is(err, ErrLost) {
		t.Errorf("the result of a lost message: %v", err)
	}
	kept, _ := source.get(claimed[0].Key)
	server.Refuse(kept.handle)
	if err := source.Finish(t.Context(), claimed[0], errorResult("kept", "", "").encode(), ""); !errors.Is(err, ErrLost) {
		t.Errorf("the end of a claim that the server refuses: %v", err)
	}
	if n := len(server.Published("results")); n != 1 {
		t.Errorf("%d results", n)
	}
}

// What Pub/Sub does not have is refused.
func TestPubSubConfig(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.Broker += "?endpoint=https://europe-west1-pubsub.googleapis.com" }, ""},
		{func(c *Config) { c.Broker = "pubsub://key:secret@p" }, "has no password"},
		{func(c *Config) { c.Broker = "pubsub://" }, "pubsub://my-project"},
		{func(c *Config) { c.Broker += "?emulator=x" }, "parameters other than endpoint"},
		{func(c *Config) { c.Broker += "?endpoint=localhost:8085" }, "endpoint is"},
		{func(c *Config) { c.Queue = "1st" }, "not the name of a topic"},
		{func(c *Config) { c.Results = "googresults" }, "not the name of a topic"},
		{func(c *Config) { c.Consumer = "c" }, "not for Pub/Sub"},
	} {
		cfg := Config{Broker: "pubsub://my-project", Queue: "requests"}
		c.change(&cfg)
		err := cfg.complete()
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%+v: %v, want %q", cfg, err, c.want)
		}
	}
}

// The credentials of the environment are sent, with TLS only, and a place that has none is an error at the start.
func TestPubSubCredentials(t *testing.T) {
	t.Setenv("PUBSUB_EMULATOR_HOST", "")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
	if _, err := OpenPubSub(&Config{Broker: "pubsub://my-project"}); err == nil || !strings.Contains(err.Error(), "credentials of Google Cloud") {
		t.Errorf("without credentials: %v", err)
	}
	t.Setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
	s, err := OpenPubSub(&Config{Broker: "pubsub://my-project"})
	if err != nil {
		t.Fatalf("an emulator of the environment: %v", err)
	}
	if got := s.conn.Target(); got != "127.0.0.1:1" {
		t.Errorf("the emulator is %s", got)
	}
	_ = s.Close()
}
