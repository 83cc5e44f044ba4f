package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/batch/upstream"
	"github.com/tandem-serving/tandem/e2e/broker"
)

func TestMain(m *testing.M) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		if err := os.Setenv(name, "tests"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait of a test, also on a machine that does much else.
const patience = 5 * time.Minute

// engine is an upstream.
type engine struct {
	t  testing.TB
	to *upstream.Client

	mu   sync.Mutex
	seen []*http.Request
	body []string
}

// newEngine starts one. answer gets the prompt of each request.
func newEngine(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, prompt string)) *engine {
	t.Helper()
	b := &engine{t: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		var body struct{ Prompt string }
		if err == nil {
			err = json.Unmarshal(text, &body)
		}
		if err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		b.seen, b.body = append(b.seen, r), append(b.body, string(text))
		b.mu.Unlock()
		answer(w, r, body.Prompt)
	}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	b.to = upstream.New(upstream.Config{URL: at, Objective: "batch", Timeout: patience, InFlight: 16, FirstPause: time.Millisecond},
		upstream.Telemetry{Metrics: prometheus.NewRegistry(), Tracer: noop.Tracer{}, Propagator: propagation.TraceContext{}})
	t.Cleanup(b.to.Close)
	return b
}

// bench is a queue in a real Redis, and an upstream.
type bench struct {
	*engine
	server *broker.Redis
	client *goredis.Client
}

// newBench starts both.
func newBench(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, prompt string)) *bench {
	t.Helper()
	b := &bench{engine: newEngine(t, answer), server: broker.StartRedis(t)}
	b.client = b.server.Client()
	return b
}

// echo answers with the prompt.
func echo(w http.ResponseWriter, _ *http.Request, prompt string) {
	fmt.Fprintf(w, `{"text":%q}`, prompt)
}

// requests returns what reached the upstream.
func (b *engine) requests() ([]*http.Request, []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*http.Request(nil), b.seen...), append([]string(nil), b.body...)
}

const pending = "requests"

// source opens the queue.
func (b *bench) source() *Redis {
	b.t.Helper()
	s, err := OpenRedis(b.server.Address(), pending, "result-list")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.t.Error(err)
		}
	})
	return s
}

// running is a consumer that runs.
type running struct {
	t        testing.TB
	registry *prometheus.Registry
	stop     func() // has it drain, and waits for its end
}

// consume runs a consumer until the end of the test, or until it is stopped.
func (b *bench) consume(cfg Config, change func(*Consumer)) running {
	b.t.Helper()
	cfg.Broker, cfg.Queue = b.server.Address(), pending
	if err := cfg.complete(); err != nil {
		b.t.Fatal(err)
	}
	return b.run(cfg, b.source(), change)
}

func (b *engine) run(cfg Config, source Source, change func(*Consumer)) running {
	registry := prometheus.NewRegistry()
	c := New(cfg, source, b.to, patience, Telemetry{Log: slog.New(slog.NewTextHandler(b.t.Output(), nil)), Metrics: NewMetrics(registry), Propagator: propagation.TraceContext{}})
	c.poll = 5 * time.Millisecond
	if change != nil {
		change(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx)
	}()
	r := running{b.t, registry, func() { cancel(); <-ended }}
	b.t.Cleanup(r.stop)
	return r
}

// value returns a metric of the queue, by its name and its other label; 0 if there is none.
func (r running) value(name, label string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if family.GetName() == name && l.GetValue() == label {
					return m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return 0
}

// message returns a message as llm-d's producer writes it.
func message(id string, deadline time.Time, more string) string {
	return fmt.Sprintf(`{"internal":{"request_queue_name":%q,"result_queue_name":"answers","request_token":"token-%s"},"request_kind":"plain","data":{"id":%q,"created":1764044000,"deadline":%d,"payload":{"model":"m","prompt":%q,"seed":12345678901234567890}%s}}`,
		pending, id, id, deadline.Unix(), id, more)
}

// add adds messages whose deadline is in an hour.
func (b *bench) add(ids ...string) {
	b.t.Helper()
	for _, id := range ids {
		b.addRaw(message(id, time.Now().Add(time.Hour), ""), time.Now().Add(time.Hour))
	}
}

func (b *bench) addRaw(text string, deadline time.Time) {
	b.t.Helper()
	if err := b.client.ZAdd(b.t.Context(), pending, goredis.Z{Score: float64(deadline.Unix()), Member: text}).Err(); err != nil {
		b.t.Fatal(err)
	}
}

// results waits for n results of a list, and returns them by id.
func (b *bench) results(list string, n int) map[string]result {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	all := map[string]result{}
	for range n {
		text, err := b.client.BRPop(ctx, 0, list).Result()
		if err != nil {
			b.t.Fatalf("waiting for a result in %s: %v", list, err)
		}
		var r result
		if err := json.Unmarshal([]byte(text[1]), &r); err != nil {
			b.t.Fatalf("%s: %v", text[1], err)
		}
		if _, twice := all[r.ID]; twice {
			b.t.Errorf("%s has two results", r.ID)
		}
		all[r.ID] = r
	}
	return all
}

// letters returns the dead letters.
func (b *bench) letters() (all []DeadLetter) {
	b.t.Helper()
	texts, err := b.client.LRange(b.t.Context(), pending+":tandem:dead", 0, -1).Result()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, text := range texts {
		var letter DeadLetter
		if err := json.Unmarshal([]byte(text), &letter); err != nil {
			b.t.Fatal(err)
		}
		all = append(all, letter)
	}
	return all
}

// mustBeEmpty fails unless nothing is left of the messages but results and dead letters.
func (b *bench) mustBeEmpty() {
	b.t.Helper()
	for _, key := range []string{pending, pending + ":tandem:leases", pending + ":tandem:claims"} {
		if n, err := b.client.Exists(b.t.Context(), key).Result(); err != nil || n != 0 {
			b.t.Errorf("%s is left, %v", key, err)
		}
	}
}

// until waits until something is so.
func (b *engine) until(what string, ok func() bool) {
	b.t.Helper()
	late := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			b.t.Fatalf("%s does not come", what)
		}
	}
}
