package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tandem-serving/tandem/e2e/broker"
)

// kafkaSession is after which time a process loses its partitions in tests.
const kafkaSession = 2 * time.Second

// kafkaQueue is a station, and the server behind it.
type kafkaQueue struct {
	station
	server *broker.Kafka
}

func startKafka(t testing.TB) station { return newKafkaQueue(t, 1).station }

// newKafkaQueue starts a server with a topic of messages, and those of results and dead letters.
func newKafkaQueue(t testing.TB, partitions int32) kafkaQueue {
	t.Helper()
	server := broker.StartKafka(t)
	server.CreateTopics(partitions, "requests")
	server.CreateTopics(1, "answers", "results", "dead")
	producer := server.Client(kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	cfg := Config{Broker: server.Address(), Queue: "requests", Results: "results", OtherResults: []string{"answers"}, DeadLetters: "dead"}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	stored := map[string][]string{}
	reader := server.Client(kgo.ConsumeTopics("answers", "results", "dead"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	looks, err := OpenKafka(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = looks.Close() })
	return kafkaQueue{server: server, station: station{cfg: cfg, renew: time.Second,
		open: func() Source {
			s, err := OpenKafka(&cfg)
			if err != nil {
				t.Fatal(err)
			}
			s.session = kafkaSession
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		add: func(text string) {
			if err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: "requests", Value: []byte(text)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		},
		stored: func(where string) []string {
			reader.PollRecords(noWait, 0).EachRecord(func(r *kgo.Record) { stored[r.Topic] = append(stored[r.Topic], string(r.Value)) })
			return stored[where]
		},
		waits: func() int64 {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			n, err := looks.lag(ctx, false)
			if err != nil {
				t.Fatal(err)
			}
			return n
		},
		outage:  func() { server.Kill(); server.Restart() },
		holding: func(s Source, most int) []Message { return claimAll(t, s, most) },
	}}
}

// What is committed of a partition is what the next process needs to know.
func TestKafkaState(t *testing.T) {
	p := &partition{next: 100, last: 112, done: map[int64]bool{101: true, 103: true, 104: true}, held: map[int64]*claim{100: {times: 1}, 102: {times: 1}, 105: {times: 2}, 106: {times: 1}, 107: {times: 1}},
		back: []*kgo.Record{{Offset: 108}}}
	for i := int64(109); i < 112; i++ {
		p.done[i] = true
	}
	ending := map[int64]bool{100: true, 102: true}
	if low := p.low(nil); low != 100 {
		t.Errorf("%d can be committed, want 100", low)
	}
	low := p.low(ending)
	if low != 105 {
		t.Errorf("%d can be committed, want 105: all below it end", low)
	}
	text := p.state(low, ending)
	if want := "n=7;d=4-6;h1=1-2;h2=0"; text != want {
		t.Errorf("the state is %s, want %s", text, want)
	}
	got := &partition{unread: true}
	got.restore(low, text)
	if got.unread || got.next != 105 || got.last != 105 || !maps.Equal(got.done, map[int64]bool{109: true, 110: true, 111: true}) || !maps.Equal(got.tried, map[int64]int{105: 2, 106: 1, 107: 1}) {
		t.Errorf("restored: %+v", got)
	}
	for _, text := range []string{"", "another program's", "d=;h=1;hx=2;d=5-", "d=-3;h1=0-99999999999"} {
		got.restore(5, text)
		if len(got.done) != 0 || len(got.tried) != 0 || got.next != 5 {
			t.Errorf("of %q: %+v", text, got)
		}
	}
	many := &partition{last: 2 * kafkaWindow, done: map[int64]bool{}, held: map[int64]*claim{0: {times: 1}}}
	for i := int64(1); i < kafkaWindow; i++ {
		if i%2 == 0 {
			many.done[i] = true
		} else {
			many.held[i] = &claim{times: int(i)}
		}
	}
	if n := len(many.state(0, nil)); n > kafkaMetadata {
		t.Errorf("the worst state has %d bytes", n)
	}
}

// Messages end in any order: one that takes long holds up no others, and after a kill the finished ones are not answered again.
func TestKafkaOutOfOrder(t *testing.T) {
	s := newKafkaQueue(t, 1)
	const n = 20
	for i := range n {
		s.add(message(fmt.Sprint(i), hour(), ""))
	}
	first := s.open().(*Kafka)
	claimed := s.holding(first, n)
	for _, m := range claimed {
		if m.ID != "0" && m.ID != "7" {
			if err := first.Finish(t.Context(), m, errorResult(m.ID, "", "first").encode(), ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	kill(t, first)
	rest := s.holding(s.open(), 2)
	ids := []string{rest[0].ID, rest[1].ID}
	slices.Sort(ids)
	if !slices.Equal(ids, []string{"0", "7"}) || rest[0].Deliveries != 2 || rest[1].Deliveries != 2 {
		t.Errorf("the next process claims %+v", rest)
	}
}

// kill has a process vanish, as far as the brokers see: its heartbeats end, and it gives nothing back. The process believes that it has its messages.
func kill(t *testing.T, k *Kafka) {
	t.Helper()
	k.mu.Lock()
	consumer, had := k.consumer, k.partitions
	k.partitions = map[int32]*partition{}
	k.mu.Unlock()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_ = consumer.LeaveGroupContext(gone)
	consumer.Close()
	k.mu.Lock()
	k.partitions = had
	k.mu.Unlock()
}

// A process that has lost its partitions, and does not know, stores no results.
func TestKafkaFenced(t *testing.T) {
	s := newKafkaQueue(t, 1)
	s.add(message("1", hour(), ""))
	first, second := s.open().(*Kafka), s.open()
	m := s.holding(first, 1)[0]
	kill(t, first)
	other := s.holding(second, 1)[0]
	if other.ID != "1" || other.Deliveries != 2 {
		t.Errorf("the next process claims %+v", other)
	}
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := first.Finish(soon, m, errorResult("1", "", "first").encode(), ""); err == nil {
		t.Error("a process without partitions stores a result")
	}
	if err := second.Finish(t.Context(), other, errorResult("1", "", "second").encode(), ""); err != nil {
		t.Error(err)
	}
	if got := s.results(t, "answers", 1)["1"]; got.Message != "second" {
		t.Errorf("the result is %+v", got)
	}
}

// Partitions move between processes as these come and go. Every message has one result, and none seems to kill consumers.
func TestKafkaRebalances(t *testing.T) {
	s := newKafkaQueue(t, 4)
	e := newEngine(t, echo)
	const n, rounds = 400, 4
	for i := range n {
		s.add(message(fmt.Sprint(i), hour(), ""))
	}
	stays := s.consume(e, nil)
	for i := range rounds {
		comes := s.consume(e, nil)
		until(t, "progress", func() bool { return len(s.stored("answers")) >= (i+1)*n/(rounds+1) })
		comes.stop()
	}
	for _, r := range s.results(t, "answers", n) {
		if r.Status != 200 {
			t.Errorf("the result is %+v", r)
		}
	}
	stays.stop()
}

// What an operator has not set up is said, and the queue works as soon as it is.
func TestKafkaNotSetUp(t *testing.T) {
	server := broker.StartKafka(t)
	cfg := Config{Broker: server.Address(), Queue: "requests", Results: "results", DeadLetters: "dead"}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	source, err := OpenKafka(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	for _, topic := range []string{"requests", "results", "dead"} {
		until(t, "an error about the topic "+topic, func() bool {
			_, err := source.Claim(t.Context(), 1, time.Time{})
			return err != nil && strings.Contains(err.Error(), "no topic "+topic+": make it")
		})
		server.CreateTopics(1, topic)
	}
	if err := server.Client().ProduceSync(t.Context(), &kgo.Record{Topic: "requests", Value: []byte(message("1", hour(), ""))}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	m := claimAll(t, source, 1)[0]
	if err := source.Release(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if again := claimAll(t, source, 1)[0]; again.Deliveries != 1 {
		t.Errorf("a message that was released is claimed as %+v", again)
	}
}

// Brokers that are away are an error, and no messages are claimed for their deadline.
func TestKafkaAway(t *testing.T) {
	cfg := Config{Broker: "kafka://user:secret@127.0.0.1:1?sasl=scram-sha-512", Queue: "requests"}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	source, err := OpenKafka(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := source.Claim(ctx, 1, time.Time{}); err == nil || !strings.Contains(err.Error(), "Kafka does not answer") || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error is %v", err)
	}
	if got, err := source.Claim(ctx, 1, time.Now()); got != nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}
