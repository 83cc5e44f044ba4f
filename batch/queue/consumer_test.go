package queue

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Messages as llm-d's producer writes them have one result each, in the list that they name, with the answer as it is.
func TestAnswers(t *testing.T) {
	b := newBench(t, func(w http.ResponseWriter, r *http.Request, prompt string) {
		if prompt == "wrong" {
			w.WriteHeader(http.StatusBadRequest)
		}
		echo(w, r, prompt)
	})
	b.add("1", "2", "wrong")
	b.addRaw(message("chat", time.Now().Add(time.Hour), `,"endpoint":"/v1/chat/completions","metadata":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},`+
		`"headers":{"x-session":"s","Authorization":"Bearer forged","x-llm-d-inference-objective":"critical","x-other":"o"}`), time.Now())
	r := b.consume(Config{Headers: []string{"x-session"}}, nil)
	got := b.results("answers", 4)
	if a := got["1"]; a.Status != 200 || a.Payload != `{"text":"1"}` || a.Code != "" {
		t.Errorf("the result is %+v", a)
	}
	if a := got["wrong"]; a.Status != 400 {
		t.Errorf("the result of a request that is wrong is %+v", a)
	}
	requests, bodies := b.requests()
	for i, request := range requests {
		if request.URL.Path == "/v1/chat/completions" {
			for name, want := range map[string]string{"X-Session": "s", "Authorization": "", "X-Other": "", "X-Llm-D-Inference-Objective": "batch", "X-Llm-D-Inference-Fairness-Id": pending} {
				if got := request.Header.Get(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if trace := request.Header.Get("Traceparent"); !strings.HasPrefix(trace, "00-0af7651916cd43dd8448eb211c80319c-") {
				t.Errorf("the trace is %q", trace)
			}
		} else if request.URL.Path != defaultEndpoint || !strings.Contains(bodies[i], `"seed":12345678901234567890`) {
			t.Errorf("%s got %s", request.URL.Path, bodies[i])
		}
	}
	r.stop()
	b.mustBeEmpty()
	if n := len(b.letters()); n != 0 || r.value("tandem_batch_queue_messages_total", "answered") != 4 {
		t.Errorf("%d dead letters, %v answered", n, r.value("tandem_batch_queue_messages_total", "answered"))
	}
}

// Messages that cannot be answered have a result that says why, and those that an operator may want to see are dead letters.
func TestRefused(t *testing.T) {
	b := newBench(t, func(w http.ResponseWriter, r *http.Request, prompt string) {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `{"error":{}}`)
	})
	hour := time.Now().Add(time.Hour)
	b.addRaw(message("late", time.Now().Add(-time.Minute), ""), time.Now().Add(-time.Minute))
	b.addRaw(message("endpoint", hour, `,"endpoint":"/metrics"`), hour)
	b.addRaw(message("cancelled", hour, ""), hour)
	b.addRaw(message("again", hour, ""), hour)
	b.addRaw("no JSON", hour)
	b.add("fails")
	ctx := t.Context()
	for key, value := range map[string]string{"request-cancel:cancelled": "token-cancelled", "request-active:cancelled": "token-cancelled", "request-cancel:again": "token of an earlier use"} {
		if err := b.client.Set(ctx, key, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r := b.consume(Config{}, nil)
	got := b.results("answers", 5)
	none := b.results("result-list", 1)
	for id, want := range map[string]string{"late": codeDeadline, "endpoint": codeInvalid, "cancelled": codeCancelled} {
		if a := got[id]; a.Code != want || a.Status != 0 || !strings.Contains(a.Payload, `{"error":`) {
			t.Errorf("the result of %s is %+v, want %s", id, a, want)
		}
	}
	if a := got["fails"]; a.Status != 500 {
		t.Errorf("the result of a request that fails is %+v", a)
	}
	if a := got["again"]; a.Status != 500 {
		t.Errorf("an id that was cancelled earlier is not sent: %+v", a)
	}
	if a := none[""]; a.Code != codeInvalid {
		t.Errorf("the result of what is no message is %+v", a)
	}
	r.stop()
	b.mustBeEmpty()
	var reasons []string
	for _, letter := range b.letters() {
		reasons = append(reasons, letter.Reason)
		if letter.Time == 0 || letter.Message == "" {
			t.Errorf("the dead letter is %+v", letter)
		}
	}
	if len(reasons) != 4 {
		t.Errorf("the dead letters are %q", reasons)
	}
	if n, err := b.client.Exists(ctx, "request-cancel:cancelled", "request-active:cancelled").Result(); err != nil || n != 0 {
		t.Errorf("%d marks of a message that is finished are left, %v", n, err)
	}
}

// The request of a message that is cancelled, or whose deadline passes, is ended.
func TestEndedWhileSent(t *testing.T) {
	sent := make(chan string, 2)
	b := newBench(t, func(_ http.ResponseWriter, r *http.Request, prompt string) {
		sent <- prompt
		<-r.Context().Done()
	})
	b.add("cancelled")
	soon := time.Now().Add(2 * time.Second)
	b.addRaw(message("late", soon, ""), soon)
	b.consume(Config{}, func(c *Consumer) { c.renew = 5 * time.Millisecond })
	<-sent
	<-sent
	if err := b.client.Set(t.Context(), "request-cancel:cancelled", "token-cancelled", 0).Err(); err != nil {
		t.Fatal(err)
	}
	got := b.results("answers", 2)
	if got["cancelled"].Code != codeCancelled || got["late"].Code != codeDeadline {
		t.Errorf("the results are %+v", got)
	}
}

// Messages of a consumer that is gone go to another one, those of one that lives do not, and the result of the first does not count then.
func TestClaims(t *testing.T) {
	b := newBench(t, echo)
	ctx := t.Context()
	first, second := b.source(), b.source()
	b.add("1", "2")
	claimed, err := first.Claim(ctx, 10, time.Time{})
	if err != nil || len(claimed) != 2 || claimed[0].Deliveries != 1 {
		t.Fatalf("%+v, %v", claimed, err)
	}
	if other, err := second.Claim(ctx, 10, time.Time{}); err != nil || len(other) != 0 {
		t.Fatalf("another consumer claims %+v, %v", other, err)
	}
	b.lapse()
	if lost, _, err := first.Renew(ctx, claimed[:1]); err != nil || len(lost) != 0 {
		t.Fatalf("%q are lost, %v", lost, err)
	}
	other, err := second.Claim(ctx, 10, time.Time{})
	if err != nil || len(other) != 1 || other[0].Key != claimed[1].Key || other[0].Deliveries != 2 {
		t.Fatalf("another consumer claims %+v, %v; want the one that was not renewed", other, err)
	}
	if lost, _, err := first.Renew(ctx, claimed); err != nil || len(lost) != 1 || lost[0] != claimed[1].Key {
		t.Errorf("%q are lost, %v", lost, err)
	}
	if err := first.Finish(ctx, claimed[1], []byte("{}"), ""); !errors.Is(err, ErrLost) {
		t.Errorf("the result of a lost message: %v", err)
	}
	if err := first.Release(ctx, claimed[1]); !errors.Is(err, ErrLost) {
		t.Errorf("the release of a lost message: %v", err)
	}
	for s, m := range map[*Redis]Message{first: claimed[0], second: other[0]} {
		if err := s.Finish(ctx, m, []byte(`{"id":"`+m.ID+`"}`), ""); err != nil {
			t.Error(err)
		}
	}
	if got := b.results("answers", 2); len(got) != 2 {
		t.Errorf("the results are %+v", got)
	}
	b.mustBeEmpty()
}

// A message that its producer adds again, with the same bytes, while it is claimed is the same message.
func TestAddedTwice(t *testing.T) {
	b := newBench(t, echo)
	ctx, hour := t.Context(), time.Now().Add(time.Hour)
	text := message("1", hour, "")
	first, second := b.source(), b.source()
	b.addRaw(text, hour)
	claimed, err := first.Claim(ctx, 10, time.Time{})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%+v, %v", claimed, err)
	}
	b.addRaw(text, hour)
	if got, err := second.Claim(ctx, 10, time.Time{}); err != nil || len(got) != 0 {
		t.Fatalf("another consumer claims %+v, %v", got, err)
	}
	if err := first.Finish(ctx, claimed[0], []byte("{}"), ""); err != nil {
		t.Fatal(err)
	}
	b.mustBeEmpty()
}

// lapse has all claims end now.
func (b *bench) lapse() {
	b.t.Helper()
	ctx := b.t.Context()
	keys, err := b.client.ZRange(ctx, pending+":tandem:leases", 0, -1).Result()
	for _, key := range keys {
		err = errors.Join(err, b.client.ZAddXX(ctx, pending+":tandem:leases", zOf(key)).Err())
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// A message under which consumers die is not tried for ever.
func TestAbandoned(t *testing.T) {
	b := newBench(t, echo)
	b.add("poison")
	for range redisDriver.mostDeliveries {
		if got, err := b.source().Claim(t.Context(), 1, time.Time{}); err != nil || len(got) != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
		b.lapse()
	}
	b.consume(Config{}, nil)
	if got := b.results("answers", 1)["poison"]; got.Code != codeInference {
		t.Errorf("the result is %+v", got)
	}
	if requests, _ := b.requests(); len(requests) != 0 || len(b.letters()) != 1 {
		t.Errorf("%d requests, %d dead letters", len(requests), len(b.letters()))
	}
}

// A result that cannot be stored where its message says is a dead letter, and holds up nothing.
func TestResultsElsewhere(t *testing.T) {
	b := newBench(t, echo)
	if err := b.client.Set(t.Context(), "answers", "a text", 0).Err(); err != nil {
		t.Fatal(err)
	}
	b.add("1")
	b.consume(Config{}, nil)
	b.until("a dead letter", func() bool { return len(b.letters()) == 1 })
	if reason := b.letters()[0].Reason; !strings.Contains(reason, "WRONGTYPE") {
		t.Errorf("the reason is %s", reason)
	}
}

// A consumer that stops has requests in flight end, and releases what was not sent or has no answer.
func TestStops(t *testing.T) {
	sent := make(chan struct{}, 16)
	b := newBench(t, func(_ http.ResponseWriter, r *http.Request, _ string) {
		sent <- struct{}{}
		<-r.Context().Done()
	})
	var ids []string
	for i := range 10 {
		ids = append(ids, fmt.Sprint(i))
	}
	b.add(ids...)
	r := b.consume(Config{}, func(c *Consumer) { c.drain = time.Millisecond })
	<-sent
	r.stop()
	if n, err := b.client.ZCard(t.Context(), pending).Result(); err != nil || n != 10 {
		t.Errorf("%d of 10 messages wait again, %v", n, err)
	}
	if held := r.value("tandem_batch_queue_held", pending); held != 0 {
		t.Errorf("%v are held", held)
	}
}

// While a gate is closed no message is claimed but those whose deadline has passed.
func TestGates(t *testing.T) {
	picker := func(value string) *Saturation {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, value) }))
		t.Cleanup(s.Close)
		return &Saturation{Metrics: s.URL, Below: 0.8}
	}
	hours := func(from, to time.Duration) *Hours {
		now := time.Now().UTC()
		return &Hours{From: now.Add(from).Format("15:04"), To: now.Add(to).Format("15:04")}
	}
	for _, c := range []struct {
		name, gate string
		cfg        Config
		open       bool
	}{
		{"within the hours", "hours", Config{Hours: hours(-2*time.Hour, 2*time.Hour)}, true},
		{"outside the hours", "hours", Config{Hours: hours(2*time.Hour, 4*time.Hour)}, false},
		{"spare engines", "saturation", Config{Saturation: picker("tandem_pool_saturation{stage=\"decode\"} 0.5\ntandem_pool_saturation{stage=\"prefill\"} 0.7\n")}, true},
		{"a full stage", "saturation", Config{Saturation: picker("tandem_pool_saturation{stage=\"decode\"} 0.5\ntandem_pool_saturation{stage=\"prefill\"} 0.9\n")}, false},
		{"a picker without the metric", "saturation", Config{Saturation: picker("other 1\n")}, false},
		{"a budget that is spent", "budget", Config{Budget: &Budget{Messages: 1, Per: 24 * time.Hour}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, echo)
			r := b.consume(c.cfg, func(q *Consumer) {
				if q.budget != nil {
					q.budget.has = 0
				}
			})
			b.add("1")
			past, hour := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
			b.addRaw(message("wrong score", hour, ""), past)
			b.addRaw(message("late", past, ""), past)
			n := 1
			if c.open {
				n = 3
			}
			got := b.results("answers", n)
			if got["late"].Code != codeDeadline || c.open != (got["1"].Status == 200) {
				t.Errorf("the results are %+v", got)
			}
			r.stop()
			want := 1.0
			if c.open {
				want = 0
			}
			if closed := r.value("tandem_batch_queue_closed", c.gate); closed != want {
				t.Errorf("the gate is closed: %v, want %v", closed, want)
			}
			if left := r.value("tandem_batch_queue_waiting", pending); left != float64(3-n) {
				t.Errorf("%v messages wait", left)
			}
		})
	}
}

// While Redis is away results wait, and each message has one in the end.
func TestRedisKilled(t *testing.T) {
	answer, sent := make(chan struct{}), make(chan struct{}, 1)
	b := newBench(t, func(w http.ResponseWriter, r *http.Request, prompt string) {
		sent <- struct{}{}
		select {
		case <-answer:
		case <-r.Context().Done():
			return
		}
		echo(w, r, prompt)
	})
	b.add("1")
	r := b.consume(Config{}, nil)
	<-sent
	b.server.Kill()
	close(answer)
	b.server.Restart()
	if got := b.results("answers", 1)["1"]; got.Status != 200 {
		t.Errorf("the result is %+v", got)
	}
	r.stop()
	b.mustBeEmpty()
	if requests, _ := b.requests(); len(requests) != 1 {
		t.Errorf("%d requests", len(requests))
	}
}

// A queue with many messages and three consumers: each message has one result.
func TestManyConsumers(t *testing.T) {
	b := newBench(t, echo)
	const n = 300
	for i := range n {
		b.add(fmt.Sprint(i))
	}
	for range 3 {
		b.consume(Config{}, nil)
	}
	b.results("answers", n)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if left, err := b.client.LLen(ctx, "answers").Result(); err != nil || left != 0 {
		t.Errorf("%d results too many, %v", left, err)
	}
	if requests, _ := b.requests(); len(requests) != n {
		t.Errorf("%d requests for %d messages", len(requests), n)
	}
}
