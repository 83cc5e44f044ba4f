package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// station is a queue in a real broker that is not Redis. Results go to answers, or to results, and dead letters to dead.
type station struct {
	cfg     Config
	open    func() Source                      // of a batch server of its own, closed by the end of the test
	add     func(text string)                  // stores a message
	stored  func(where string) []string        // all that is stored there
	waits   func() int64                       // messages that are neither finished nor held
	outage  func()                             // kills the broker, and starts it again
	lapse   bool                               // claims end that are not renewed
	renew   time.Duration                      // how often claims must be renewed in tests
	slow    bool                               // the broker, so claims are not renewed all the time
	shorten func(Source)                       // has claims end soon; nil if they do
	holding func(s Source, most int) []Message // claims, waiting for the broker to deliver
}

type stationStart struct {
	name  string
	start func(t testing.TB) station
}

// stations are the brokers of the tests of this file.
var stations = []stationStart{
	{"NATS", startNATS},
	{"Kafka", startKafka},
	{"SQS", func(t testing.TB) station { return startSQS(t, "") }},
	{"SQSFIFO", func(t testing.TB) station { return startSQS(t, ".fifo") }},
	{"PubSub", startPubSub},
}

func eachStation(t *testing.T, test func(t *testing.T, s station)) {
	for _, broker := range stations {
		t.Run(broker.name, func(t *testing.T) {
			t.Parallel()
			test(t, broker.start(t))
		})
	}
}

// until waits until something is so.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	(&engine{t: t}).until(what, ok)
}

// results waits for n results, and fails if there are more, or two of a message.
func (s station) results(t testing.TB, where string, n int) map[string]result {
	t.Helper()
	until(t, fmt.Sprintf("result %d in %s", n, where), func() bool { return len(s.stored(where)) >= n })
	all := map[string]result{}
	for _, text := range s.stored(where) {
		var r result
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if _, twice := all[r.ID]; twice {
			t.Errorf("%s has two results", r.ID)
		}
		all[r.ID] = r
	}
	if len(all) != n {
		t.Errorf("%d results, want %d", len(all), n)
	}
	return all
}

// consume runs a consumer, whose source is closed when it is stopped, as a batch server's is.
func (s station) consume(b *engine, change func(*Consumer)) running {
	source := s.open()
	r := b.run(s.cfg, source, func(c *Consumer) {
		c.renew = s.renew
		if change != nil {
			change(c)
		}
	})
	stop := r.stop
	r.stop = func() {
		stop()
		if err := source.Close(); err != nil {
			b.t.Error(err)
		}
	}
	return r
}

func hour() time.Time { return time.Now().Add(time.Hour) }

// Messages have one result each, where they say if the operator allows it, and dead letters where they failed.
func TestBrokerAnswers(t *testing.T) {
	eachStation(t, func(t *testing.T, s station) {
		e := newEngine(t, func(w http.ResponseWriter, r *http.Request, prompt string) {
			if prompt == "fails" {
				w.WriteHeader(http.StatusInternalServerError)
			}
			echo(w, r, prompt)
		})
		for _, id := range []string{"1", "2", "fails"} {
			s.add(message(id, hour(), ""))
		}
		s.add(message("late", time.Now().Add(-time.Minute), ""))
		s.add(message("elsewhere", hour(), `,"x":1`))
		s.add(strings.Replace(message("forbidden", hour(), ""), `"answers"`, `"$SYS.other"`, 1))
		s.add(strings.Replace(message("nowhere", hour(), ""), `"result_queue_name":"answers",`, "", 1))
		s.add("no JSON")
		r := s.consume(e, nil)
		got := s.results(t, "answers", 5)
		if a := got["1"]; a.Status != 200 || a.Payload != `{"text":"1"}` {
			t.Errorf("the result is %+v", a)
		}
		if a := got["late"]; a.Code != codeDeadline {
			t.Errorf("the result of a late message is %+v", a)
		}
		if a := got["fails"]; a.Status != 500 {
			t.Errorf("the result of a request that fails is %+v", a)
		}
		other := s.results(t, "results", 3)
		if a := other["nowhere"]; a.Status != 200 {
			t.Errorf("the result of a message that names no place for it is %+v", a)
		}
		if a := other["forbidden"]; a.Code != codeInvalid || !strings.Contains(a.Message, "otherResults") {
			t.Errorf("the result of a message that wants it elsewhere is %+v", a)
		}
		if a := other[""]; a.Code != codeInvalid {
			t.Errorf("the result of what is no message is %+v", a)
		}
		r.stop()
		var reasons []string
		for _, text := range s.stored("dead") {
			var letter DeadLetter
			if err := json.Unmarshal([]byte(text), &letter); err != nil || letter.Time == 0 || letter.Message == "" {
				t.Errorf("the dead letter is %s, %v", text, err)
			}
			reasons = append(reasons, letter.Reason)
		}
		if len(reasons) != 3 || !slices.Contains(reasons, "the upstream answered 500") {
			t.Errorf("the dead letters are %q", reasons)
		}
		if n := s.waits(); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}

// Messages of a consumer that is gone go to another one, those of one that lives do not, and a message that both answer has one result.
func TestBrokerClaims(t *testing.T) {
	eachStation(t, func(t *testing.T, s station) {
		if !s.lapse {
			t.Skip("the broker has no claims of single messages")
		}
		ctx := t.Context()
		first, second := s.open(), s.open()
		if s.shorten != nil {
			s.shorten(first)
			s.shorten(second)
		}
		s.add(message("kept", hour(), ""))
		s.add(message("lapses", hour(), ""))
		claimed := s.holding(first, 2)
		slices.SortFunc(claimed, func(a, b Message) int { return strings.Compare(a.ID, b.ID) }) // some brokers have no order
		if claimed[0].Deliveries != 1 || claimed[0].ID != "kept" {
			t.Fatalf("%+v", claimed)
		}
		var other []Message
		until(t, "the message whose claim lapses", func() bool {
			if lost, _, err := first.Renew(ctx, claimed[:1]); err != nil || len(lost) != 0 {
				t.Fatalf("%q are lost, %v", lost, err)
			}
			more, err := second.Claim(ctx, 10, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			other = append(other, more...)
			return len(other) != 0
		})
		if len(other) != 1 || other[0].Key != claimed[1].Key || other[0].Deliveries != 2 {
			t.Fatalf("another consumer claims %+v; want the one that was not renewed", other)
		}
		if err := second.Finish(ctx, other[0], errorResult("lapses", "", "second").encode(), ""); err != nil {
			t.Error(err)
		}
		if err := first.Finish(ctx, claimed[1], errorResult("lapses", "", "first").encode(), ""); !errors.Is(err, ErrLost) {
			t.Errorf("the result of a lost message: %v", err)
		}
		if err := first.Finish(ctx, claimed[0], errorResult("kept", "", "first").encode(), ""); err != nil {
			t.Error(err)
		}
		if got := s.results(t, "answers", 2); got["lapses"].Message != "second" {
			t.Errorf("the results are %+v", got)
		}
		if n := s.waits(); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}

// A consumer that stops releases what has no answer, and another one gets it at once.
func TestBrokerStops(t *testing.T) {
	eachStation(t, func(t *testing.T, s station) {
		sent := make(chan struct{}, 16)
		e := newEngine(t, func(_ http.ResponseWriter, r *http.Request, _ string) {
			sent <- struct{}{}
			<-r.Context().Done()
		})
		const n = 10
		for i := range n {
			s.add(message(fmt.Sprint(i), hour(), ""))
		}
		r := s.consume(e, func(c *Consumer) { c.drain = time.Millisecond })
		<-sent
		r.stop()
		if held := r.value("tandem_batch_queue_held", s.cfg.Queue); held != 0 {
			t.Errorf("%v are held", held)
		}
		s.consume(newEngine(t, echo), nil)
		s.results(t, "answers", n)
	})
}

// While the broker is away results wait, and each message has one in the end.
func TestBrokerKilled(t *testing.T) {
	eachStation(t, func(t *testing.T, s station) {
		answer, sent := make(chan struct{}), make(chan struct{}, 16)
		e := newEngine(t, func(w http.ResponseWriter, r *http.Request, prompt string) {
			sent <- struct{}{}
			select {
			case <-answer:
			case <-r.Context().Done():
				return
			}
			echo(w, r, prompt)
		})
		s.add(message("1", hour(), ""))
		r := s.consume(e, nil)
		<-sent
		s.outage()
		close(answer)
		s.add(message("2", hour(), ""))
		if got := s.results(t, "answers", 2)["1"]; got.Status != 200 {
			t.Errorf("the result is %+v", got)
		}
		until(t, "the end of the claims", func() bool { return s.waits() == 0 })
		r.stop()
		s.results(t, "answers", 2)
	})
}

// A queue with many messages and three consumers: each message has one result.
func TestBrokerManyConsumers(t *testing.T) {
	eachStation(t, func(t *testing.T, s station) {
		e := newEngine(t, echo)
		const n = 200
		for i := range n {
			s.add(message(fmt.Sprint(i), hour(), ""))
		}
		for range 3 {
			s.consume(e, func(c *Consumer) {
				if !s.slow {
					c.renew = time.Millisecond
				}
			})
		}
		s.results(t, "answers", n)
		until(t, "the end of the claims", func() bool { return s.waits() == 0 })
		s.results(t, "answers", n)
	})
}

// A result that the broker does not take, since it is too large, is replaced by an error, and holds up nothing.
func TestBrokerLargeResult(t *testing.T) {
	eachStation(t, func(t *testing.T, s station) {
		s.add(message("large", hour(), ""))
		source := s.open()
		m := s.holding(source, 1)[0]
		if err := source.Finish(t.Context(), m, result{ID: "large", Status: 200, Payload: strings.Repeat("x", 12<<20)}.encode(), ""); err != nil {
			t.Fatal(err)
		}
		if got := s.results(t, "answers", 1)["large"]; got.Code != codeInference || !strings.Contains(got.Message, "bytes") {
			t.Errorf("the result is %+v", got)
		}
		if n := len(s.stored("dead")); n != 1 {
			t.Errorf("%d dead letters", n)
		}
	})
}

// claimAll claims messages until there are so many.
func claimAll(t testing.TB, s Source, most int) (all []Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	until(t, "a message", func() bool {
		more, err := s.Claim(ctx, most-len(all), time.Time{})
		if err != nil {
			t.Log(err)
		}
		all = append(all, more...)
		return len(all) == most
	})
	return all
}
