package queue

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-serving/tandem/e2e/broker"
)

// natsWait is how long claims last in tests.
const natsWait = 3 * time.Second

// startNATS starts a server with a stream of messages, which keeps none that is finished, and one of results.
func startNATS(t testing.TB) station {
	t.Helper()
	server := broker.StartNATS(t)
	js := server.Client()
	ctx := t.Context()
	requests, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "REQUESTS", Subjects: []string{"requests"}, Retention: jetstream.WorkQueuePolicy})
	if err != nil {
		t.Fatal(err)
	}
	results, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "RESULTS", Subjects: []string{"answers.>", "results.>", "dead.>"}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Broker: server.Address(), Queue: "requests", Results: "results", OtherResults: []string{"answers"}, DeadLetters: "dead"}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	return station{cfg: cfg, lapse: true, renew: natsWait / 3,
		open: func() Source {
			s, err := OpenNATS(&cfg)
			if err != nil {
				t.Fatal(err)
			}
			s.wait = natsWait
			t.Cleanup(func() { _ = s.Close() })
			until(t, "the connection", s.conn.IsConnected)
			return s
		},
		add: func(text string) {
			if _, err := js.Publish(t.Context(), "requests", []byte(text)); err != nil {
				t.Fatal(err)
			}
		},
		stored: func(where string) (all []string) {
			info, err := results.Info(t.Context(), jetstream.WithSubjectFilter(where+".>"))
			if err != nil {
				t.Log(err)
				return nil
			}
			for subject, n := range info.State.Subjects {
				if n != 1 {
					t.Errorf("%s has %d results", subject, n)
				}
				msg, err := results.GetLastMsgForSubject(t.Context(), subject)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, string(msg.Data))
			}
			return all
		},
		waits: func() int64 {
			info, err := requests.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return int64(info.State.Msgs)
		},
		outage:  func() { server.Kill(); server.Restart() },
		holding: func(s Source, most int) []Message { return claimAll(t, s, most) },
	}
}

// A producer finds its result by what JetStream answers when it stores the message.
func TestNATSResultSubject(t *testing.T) {
	s := startNATS(t)
	s.consume(newEngine(t, echo), nil)
	s.add(message("1", hour(), ""))
	s.results(t, "answers", 1)
	if got := s.stored("answers.REQUESTS.1"); len(got) != 1 {
		t.Errorf("the results below answers.REQUESTS.1 are %q", got)
	}
}

// A server that was killed may not know that it has delivered a message. It does not answer to the end of the claim, and delivers the message
// again: the result is stored once, and no claim is left.
func TestNATSForgetsADelivery(t *testing.T) {
	s := startNATS(t)
	source := s.open().(*NATS)
	source.timeout = time.Second
	s.add(message("1", hour(), ""))
	m := claimAll(t, source, 1)[0]
	stream, err := source.js.Stream(t.Context(), "REQUESTS")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteConsumer(t.Context(), "tandem"); err != nil {
		t.Fatal(err)
	}
	source.consumer = nil
	if _, err := source.ready(t.Context()); err != nil { // makes another one
		t.Fatal(err)
	}
	if err := source.Finish(t.Context(), m, []byte("first"), ""); err != nil {
		t.Errorf("the first claim ends with %v", err)
	}
	again := claimAll(t, source, 1)[0]
	if err := source.Finish(t.Context(), again, []byte("second"), ""); !errors.Is(err, ErrLost) {
		t.Errorf("the second claim ends with %v, want %v", err, ErrLost)
	}
	if got := s.stored("answers"); len(got) != 1 || got[0] != "first" {
		t.Errorf("the results are %q", got)
	}
	if waits, held := s.waits(), len(source.held); waits != 0 || held != 0 {
		t.Errorf("%d messages wait, and %d are held", waits, held)
	}
}

// What an operator has not set up is said, and the queue works as soon as it is.
func TestNATSNotSetUp(t *testing.T) {
	server := broker.StartNATS(t)
	js := server.Client()
	ctx := t.Context()
	cfg := Config{Broker: server.Address(), Queue: "requests", Results: "results", DeadLetters: "dead"}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	source, err := OpenNATS(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	until(t, "the connection", source.conn.IsConnected)
	claim := func(want string) {
		t.Helper()
		_, err := source.Claim(ctx, 1, time.Time{})
		if err == nil && want == "" {
			return
		}
		if err == nil || want == "" || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one about %q", err, want)
		}
	}
	stream := func(name string, subjects ...string) {
		t.Helper()
		if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: subjects}); err != nil {
			t.Fatal(err)
		}
	}
	claim("no stream has the subject requests")
	stream("REQUESTS", "requests", "others")
	claim("no stream has the subject results.>")
	stream("RESULTS", "results.>")
	claim("no stream has the subject dead.>")
	stream("DEAD", "dead.>")
	consumer := jetstream.ConsumerConfig{Durable: "tandem", FilterSubject: "others", AckPolicy: jetstream.AckExplicitPolicy}
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() {}, "another name with consumer"},
		{func() { consumer.FilterSubject = "requests"; consumer.MaxDeliver = 3 }, "would lose messages"},
		{func() { consumer.MaxDeliver, consumer.AckWait = -1, time.Second }, "would lose messages"},
		{func() { consumer.AckWait = leaseTime }, ""},
	} {
		c.change()
		if err := js.DeleteConsumer(ctx, "REQUESTS", "tandem"); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Fatal(err)
		}
		if _, err := js.CreateConsumer(ctx, "REQUESTS", consumer); err != nil {
			t.Fatal(err)
		}
		claim(c.want)
	}
	if _, err := js.Publish(ctx, "requests", []byte(message("1", hour(), ""))); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(ctx, "REQUESTS", "tandem"); err != nil {
		t.Fatal(err)
	}
	if got := claimAll(t, source, 1); len(got) != 1 {
		t.Errorf("after its consumer was deleted: %+v", got)
	}
}

// A server that is away is an error that says so, and no messages are claimed for their deadline, whose order JetStream does not know.
func TestNATSAway(t *testing.T) {
	cfg := Config{Broker: "nats://user:secret@127.0.0.1:1", Queue: "requests"}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	source, err := OpenNATS(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if _, err := source.Claim(context.Background(), 1, time.Time{}); err == nil || !strings.Contains(err.Error(), "NATS does not answer") || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error is %v", err)
	}
	if got, err := source.Claim(context.Background(), 1, time.Now()); got != nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}
